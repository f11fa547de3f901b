"""The context that the language finds implicitly: the running session, and the kernel being traced."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import field
from typing import Any

from spirograd.base import validity
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, f32, i32
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import dataclass
from spirograd.ir.builder import Builder


@dataclass(slots=True)
class LanguageOptions:
    """What the front end needs of the options of `init`."""

    default_fp: DType = f32
    default_ip: DType = i32
    debug: bool = False
    check_bounds: bool = False  # of views: those of memory are for a pass
    short_circuit: bool = True
    unrolling_limit: int = 0
    unfused_by: str = ""  # the option of the kernel by which its loops stay apart
    group_size: int = 0  # of loops without `block_dim`; 0: the default
    max_group_size: int = 1024
    subgroup_size: int = 32
    reads_subgroups: bool = False  # by an instruction, rather than through memory
    has_ballots: bool = False  # an instruction for votes of subgroups
    subgroup_reductions: tuple[str, ...] = ()  # see `Capabilities`
    subgroup_scans: tuple[str, ...] = ()
    matrix_shapes: tuple[str, ...] = ()  # products of matrices by one instruction of a subgroup
    detect_races: bool = False


@dataclass(slots=True)
class GroupScope:
    """The parallel loop being traced: the number of the iteration, counted from 0 (an operation), of how many (another), and the size of
    its groups of threads. ``used``: whether it has anything that concerns a group; ``exchanges``: shared arrays by type, see `tiles`."""

    number: Any
    count: Any
    size: int
    used: bool = False
    exchanges: dict[Any, Any] = field(default_factory=dict)


class _Scope(threading.local):
    trace: Trace | None = None
    recorder: Recorder | None = None
    watched = False  # whether there is one of these


def options_of_device(caps: Capabilities) -> dict[str, Any]:
    """The members of `LanguageOptions` that a device decides."""
    # Where the compiler forms subgroups for invocations of a device, the device's instructions are about other ones, of its own size.
    own = caps.subgroup_read or not caps.target.invocations
    return {
        "max_group_size": caps.group_limit,
        "subgroup_size": caps.group_lanes,
        "reads_subgroups": caps.subgroup_read,
        "has_ballots": own and caps.subgroup_ballot,
        "subgroup_reductions": caps.subgroup_reductions if own else (),
        "subgroup_scans": caps.subgroup_scans if own else (),
        "matrix_shapes": caps.matrix_shapes,
    }


class Trace:
    """A kernel being traced: the builder that values emit into, and the options."""

    def __init__(self, builder: Builder, options: LanguageOptions) -> None:
        self.b = builder
        self.options = options
        self.group: GroupScope | None = None  # of the parallel loop being traced
        self.shared_arrays = 0
        self.tiles = False  # whether it has tiles, whose slices may be larger than what there is
        self.stops = False  # whether it has markers of `stop_grad` of memory
        self.guards = 0  # how many run-time conditions are around what is being traced: branches, and loops that may have no iteration
        self.warnings: dict[Hashable, str] = {}  # for the user, once the kernel is traced to its end; by what they are about

    def warn(self, about: Hashable, text: str) -> None:
        """Warn the user. ``about``: tells warnings apart, of which the user sees each once in a session."""
        self.warnings.setdefault(about, text)

    @contextlib.contextmanager
    def guarded(self, is_guard: bool = True) -> Iterator[None]:
        """What is traced inside may not run."""
        self.guards += is_guard
        try:
            yield
        finally:
            self.guards -= is_guard


_scope = _Scope()
_gradient: Callable[[Any], Any] | None = None
_after_allocation: Callable[[], None] | None = None
_replay: Callable[..., None] | None = None
_deactivation: Callable[[Any], None] | None = None
_session: Any = None


def current_trace() -> Trace | None:
    """The kernel being traced by this thread, or None in Python scope."""
    return _scope.trace


def language_options() -> LanguageOptions:
    """The options of the kernel being traced, else of the running session, else the defaults."""
    if _scope.trace is not None:
        return _scope.trace.options
    return _session.language if _session is not None else LanguageOptions()


def set_trace(trace: Trace | None) -> Trace | None:
    """Make ``trace`` the current one; returns the one before."""
    before = _scope.trace
    _scope.trace = trace
    _scope.watched = trace is not None or _scope.recorder is not None
    _set_suspended(before is not None, trace is not None)
    return before


class Recorder:
    """Sees what a thread does outside of kernels while it is set: an open tape, for example."""

    def launch(self, kernel: Any, specialization: Any, packer: Any, args: Sequence[Any]) -> Any:
        """Launch a kernel, in place of its plan; returns what that returns. ``packer``: the flat arguments of ``args``."""
        raise NotImplementedError

    def aside(self, function: Callable[[], Any], replaced: bool) -> Any:
        """Run Python code that launches kernels, which is left out of differentiation, or (``replaced``) has a gradient of its own."""
        return function()

    @property
    def reverses(self) -> bool:
        """Whether what runs now is recorded for a reverse pass; then `with_reverse` and `numbers_of` are there."""
        return False

    def with_reverse(self, function: Callable[[], Any], reverse: Callable[[], None], reads: Sequence[Any], saves: bool = False) -> Any:
        """Run Python code that launches kernels; ``reverse`` takes the place of their derivatives. It may write to gradients only.

        ``reads``: the fields and ndarrays that values come from. ``saves``: ``reverse`` needs all memory as ``function`` left it.
        """
        raise NotImplementedError

    def numbers_of(self, memory: Any, what: str) -> None:
        """``what`` takes numbers of ``memory`` out of the device: raise if gradients would end there without a word."""
        raise NotImplementedError

    follows_numbers = False  # whether numbers that Python reads are followed: then the next three are there

    def read_numbers(self, memory: Any, key: Any, values: Sequence[Any], location: Callable[[], Any]) -> Sequence[Any]:
        """What Python gets for the numbers ``values`` of the element at ``key`` of a field or ndarray. ``location`` gives the line."""
        return values

    def numbers_written(
        self, memory: Any, key: Any, component: int | None, numbers: Sequence[Any], clear: Callable[..., None]
    ) -> Callable[..., None]:
        """Return the reverse of a write of ``numbers`` to the element at ``key`` of ``memory``, or to one ``component`` of it, in place
        of ``clear``: see `host_write`."""
        for number in numbers:
            if hasattr(number, "refuse"):
                number.refuse("written to memory")
        return clear

    def numbers_kept(self, memory: Any) -> None:
        """Called after the write to ``memory`` of numbers that `numbers_written` got."""

    def cells_of(self, kernel: Any, args: Sequence[Any]) -> Any:
        """Return what `scalar_cells.cells_of` does for ``kernel`` and ``args``."""
        raise NotImplementedError

    def numbers_passed(self, cells: Sequence[Any]) -> None:
        """A launch follows that takes numbers in ``cells``."""
        raise NotImplementedError

    def nested(self) -> Any:
        """A tape for the reverse pass."""
        raise NotImplementedError

    def host_write(self, memory: Any, key: Any, clear: Callable[..., None], source: Any, repeat: Callable[[], None] | None) -> None:
        """The host is about to write to a field or ndarray: to the element at ``key``, or (None) to all. ``clear`` sets the gradient of
        what it writes (of a role: "dual", "grad_dual") to zero. ``source``: the field or ndarray that is copied, None for numbers.
        ``repeat`` writes the same again, None where only the host has it."""


def recorder() -> Recorder | None:
    """What sees every launch of a kernel by this thread, or None."""
    return _scope.recorder


def set_recorder(new: Recorder | None) -> Recorder | None:
    """Make ``new`` see every launch of this thread; returns the one before."""
    before = _scope.recorder
    _scope.recorder = new
    _scope.watched = new is not None or _scope.trace is not None
    _set_suspended(before is not None, new is not None)
    return before


def gradient_of(kernel: Any) -> Any:
    """What is `kernel.grad`."""
    assert _gradient is not None, "`spirograd.api` says what it is"
    return _gradient(kernel)


def replay_gradient(*args: Any) -> None:
    """Run the gradient of a kernel from memory as it was before the kernel."""
    assert _replay is not None, "`spirograd.api` says what it is"
    _replay(*args)


def set_gradient(make: Callable[[Any], Any], replay: Callable[..., None]) -> None:
    """Say what `kernel.grad` is, and how it replays a kernel (called by the API only)."""
    global _gradient, _replay
    _gradient, _replay = make, replay


def deactivate_cells(node: Any) -> None:
    """Deactivate all cells of a sparse node."""
    assert _deactivation is not None, "`spirograd.api` says what it is"
    _deactivation(node)


def set_deactivation(deactivation: Callable[[Any], None]) -> None:
    """Say how the cells of a sparse node are deactivated (called by the API only)."""
    global _deactivation
    _deactivation = deactivation


def after_allocation(function: Callable[[], None] | None) -> None:
    """Call ``function``, outside of kernels, each time that fields get their memory, before anything reads or writes it."""
    global _after_allocation
    _after_allocation = function


def fields_have_memory() -> None:
    """Some fields got their memory."""
    if _after_allocation is not None:
        trace = set_trace(None)
        try:
            _after_allocation()
        finally:
            set_trace(trace)


def session() -> Any:
    """The running session; SpirogradRuntimeError before `init`."""
    if _session is None:
        raise SpirogradRuntimeError("spirograd is not initialised: call `sg.init(arch=...)` first")
    return _session


def only_launches(session: Any) -> bool:
    """Whether a call of a kernel by this thread is a launch in ``session`` and nothing more: this session runs, no recorder is set, and no
    kernel is being traced."""
    return session is _session and not _scope.watched


def before_read(allocation: Any) -> None:
    """The host is about to read this memory: raise what kernels have reported by then, which it must not take for results."""
    if _session is not None and allocation.device is _session.device:
        _session.raise_reported()


def memory_limit() -> int:
    """Bytes that one allocation of the running session can have; without a session those of a small device."""
    return _session.device.caps.max_allocation if _session is not None else 1 << 30


def has_session() -> bool:
    return _session is not None


def set_session(new: Any) -> None:
    """Install the session (called by the API only)."""
    global _session
    _session = new
    validity.renew()


def _set_suspended(before: bool, now: bool) -> None:
    """Whether there is something for which Python must see all launches."""
    if now != before:
        (validity.suspend if now else validity.resume)()
