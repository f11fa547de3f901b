"""The implicit context of the language: the running session, and the kernel being traced."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING

from spirograd.base import validity
from spirograd.base.errors import SpirogradRuntimeError, SpirogradUnsupportedError
from spirograd.base.records import dataclass
from spirograd.ir.builder import Builder
from spirograd.lang.language_options import LanguageOptions

if TYPE_CHECKING:
    from spirograd.base.dtypes import DType
    from spirograd.base.protocols import Allocation
    from spirograd.base.recorder import Recorder
    from spirograd.ir.nodes import Op
    from spirograd.lang.data.batches import Batch
    from spirograd.lang.data.ndarray import Ndarray
    from spirograd.lang.data.nodes import SNode
    from spirograd.lang.data.scalar_field import ScalarField
    from spirograd.lang.frontend.kernel import Kernel
    from spirograd.lang.frontend.scalar_cells import Cell
    from spirograd.lang.frontend.specialization import Specialization
    from spirograd.lang.frontend.steps import Packer
    from spirograd.lang.groups import SharedArray
    from spirograd.lang.session_protocol import Session
    from spirograd.lang.traced_numbers import TracedNumber

    ProgramRecorder = Recorder[Kernel, Specialization, Packer, ScalarField | Ndarray, Cell, TracedNumber]


@dataclass(slots=True)
class GroupScope:
    """The parallel loop being traced.

    ``number``: the index and where it begins, which is the number of the iteration, counted from 0; ``count``: where the loop begins and
    ends; ``size``: of its groups of threads. ``used``: whether it uses groups; ``exchanges``: shared arrays by type, see `tiles`.
    """

    number: tuple[Op, Op]
    count: tuple[Op, Op]
    size: int
    used: bool = False
    exchanges: dict[DType, SharedArray] = field(default_factory=dict)


class _Scope(threading.local):
    trace: Trace | None = None
    recorder: ProgramRecorder | None = None
    watched = False  # Whether there is one of these.
    batch: Batch | None = None


class Trace:
    """A kernel being traced: the builder that values emit into, and the options."""

    def __init__(self, builder: Builder, options: LanguageOptions) -> None:
        self.b = builder
        self.options = options
        self.group: GroupScope | None = None  # The parallel loop being traced.
        self.shared_arrays = 0
        self.tiles = False  # Whether it has tiles, whose slices may exceed the memory.
        self.stops = False  # Whether it has markers of `stop_grad` of memory.
        self.guards = 0  # The number of run-time conditions around the traced code: branches, and loops that may have no iteration.
        self.loop_indices: dict[Op, tuple[str, int, int]] = {}  # Indices of loops over fields -> the field, the first and the last one.
        self.warnings: dict[Hashable, str] = {}  # Warnings for the user once tracing is complete, by subject.

    def warn(self, about: Hashable, text: str) -> None:
        """Warn the user. ``about``: the key of the warning; the user sees each key once in a session."""
        self.warnings.setdefault(about, text)

    @contextlib.contextmanager
    def guarded(self, is_guard: bool = True) -> Iterator[None]:
        """Mark that code traced in the block may not run."""
        self.guards += is_guard
        try:
            yield
        finally:
            self.guards -= is_guard


class Services:
    """The services of the packages above the language, which it does not import: `spirograd.api` installs an object with these methods.

    ``session``: the running session. ``after_allocation`` is called, outside of kernels, each time that fields get their memory, before
    anything reads or writes it.
    """

    session: Session | None = None
    after_allocation: Callable[[], None] | None = None

    def gradient_of(self, kernel: Kernel) -> object:
        """Return the value of `kernel.grad`."""
        raise NotImplementedError

    def replay_gradient(
        self, kernel: Kernel, session: Session, specialization: Specialization, args: tuple[object, ...], returned: object
    ) -> None:
        """Run the gradient of a kernel from memory as it was before the kernel."""
        raise NotImplementedError

    def deactivate_cells(self, node: SNode) -> None:
        """Deactivate all cells of a sparse node."""
        raise NotImplementedError


_scope = _Scope()
_services = Services()


def services() -> Services:
    """Return the services of the packages above the language."""
    return _services


def install(new: Services) -> None:
    """Make ``new`` the services (called by the API only)."""
    global _services
    _services = new


def current_trace() -> Trace | None:
    """Return the kernel being traced by this thread, or None in Python scope."""
    return _scope.trace


def language_options() -> LanguageOptions:
    """Return the options of the kernel being traced, else of the running session, else the defaults."""
    if _scope.trace is not None:
        return _scope.trace.options
    return _services.session.language if _services.session is not None else LanguageOptions()


def set_trace(trace: Trace | None) -> Trace | None:
    """Make ``trace`` the current one; return the previous one."""
    before = _scope.trace
    _scope.trace = trace
    _scope.watched = trace is not None or _scope.recorder is not None
    _set_suspended(before is not None, trace is not None)
    return before


def recorder() -> ProgramRecorder | None:
    """Return the recorder of every launch of a kernel by this thread, or None."""
    return _scope.recorder


def set_recorder(new: ProgramRecorder | None) -> ProgramRecorder | None:
    """Make ``new`` the recorder of every launch of this thread; return the previous one."""
    before = _scope.recorder
    _scope.recorder = new
    _scope.watched = new is not None or _scope.trace is not None
    _set_suspended(before is not None, new is not None)
    return before


def batch() -> Batch | None:
    """Return the batch that new fields of this thread belong to, or None."""
    return _scope.batch


def set_batch(new: Batch | None) -> Batch | None:
    """Make ``new`` the batch that new fields of this thread belong to; return the previous one."""
    before, _scope.batch = _scope.batch, new
    return before


def refuse_batch(problem: str, instead: str) -> None:
    """Raise SpirogradUnsupportedError in a block ``with sg.batch(n):``."""
    if _scope.batch is not None:
        hint = f"make a field of the batch by {instead}, and memory that all environments share outside of the block"
        raise SpirogradUnsupportedError(problem, None, hint)


def fields_have_memory() -> None:
    """Call `after_allocation`, because some fields got their memory."""
    if _services.after_allocation is not None:
        trace = set_trace(None)
        try:
            _services.after_allocation()
        finally:
            set_trace(trace)


def session() -> Session:
    """Return the running session; raise SpirogradRuntimeError before `init`."""
    running = _services.session
    if running is None:
        raise SpirogradRuntimeError("spirograd is not initialised: call `sg.init(arch=...)` first")
    return running


def only_launches(session: object) -> bool:
    """Return whether a call of a kernel by this thread is only a launch in ``session``: this session runs, no recorder is set, and no
    kernel is being traced."""
    return session is _services.session and not _scope.watched


def before_read(allocation: Allocation) -> None:
    """Raise the errors that kernels have reported before the host reads this memory, which may contain wrong results."""
    running = _services.session
    if running is not None and allocation.device is running.device:
        running.raise_reported()


def memory_limit() -> int:
    """Return the largest allocation of the running session in bytes; without a session, the limit of a small device."""
    running = _services.session
    return running.device.caps.max_allocation if running is not None else 1 << 30


def has_session() -> bool:
    return _services.session is not None


def set_session(new: Session | None) -> None:
    """Install the session (called by the API only)."""
    _services.session = new
    validity.renew()


def _set_suspended(before: bool, now: bool) -> None:
    """Record whether Python must see all launches."""
    if now != before:
        (validity.suspend if now else validity.resume)()
