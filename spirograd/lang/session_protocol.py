"""The interface of the running session for the language and the packages above it: `spirograd.session.Session` implements it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from spirograd.base.arguments import Plan, PreparesLaunches
from spirograd.base.caps import Capabilities
from spirograd.base.device import CallsNatively, Device, SharesMemory
from spirograd.base.dtypes import DType
from spirograd.base.loc import Loc
from spirograd.base.options import CompileOptions
from spirograd.base.protocols import Allocation, CellPool, HostTransfers, MemoryAllocator, OwnWrites, Place, StreamOrder, WorkRecording
from spirograd.ir import nodes
from spirograd.lang.language_options import LanguageOptions

if TYPE_CHECKING:
    from spirograd.lang.data.ndarray import Ndarray
    from spirograd.lang.data.regions import CellRegion
    from spirograd.lang.probes import Probes


class OpValues(Protocol):
    """The values of the operations that the interpreter has run."""

    def __getitem__(self, op: nodes.Op) -> object: ...


OnOp = Callable[[nodes.Op, OpValues], None]  # Called after each operation that the interpreter runs.


class CompileTarget(Protocol):
    """The target of compilation as tracing and differentiating see it. ``warned``: the warnings that the user has seen; ``probes``: of
    kernel coverage, None if it is not measured."""

    arch: str
    language: LanguageOptions
    compile_options: CompileOptions
    warned: set[Hashable]

    @property
    def probes(self) -> Probes | None: ...

    @property
    def caps(self) -> Capabilities:
        """The capabilities of the device."""

    @property
    def broken_chains(self) -> str:
        """The reaction where a gradient cannot flow on: the option ``ad_broken_chain`` of `init`."""


class Options(Protocol):
    """The options of `init` that the language reads itself: see `spirograd.config.Config`."""

    debug: bool
    deterministic: bool
    random_seed: int


class LoopPlanner(Protocol):
    """Repeats loops on the device: `runtime.device_loops.DeviceLoops`."""

    def run(self, plan: Callable[[PlannedLoop], None]) -> PreparesLaunches | None:
        """Have the device repeat what ``plan`` plans. Return the loop; None if the device does not repeat it."""


class PlannedLoop(Protocol):
    """The work of one iteration of a loop, as the device would do it: `runtime.device_loops.LoopPlan`."""

    def loop(self, flag: int) -> AbstractContextManager[None]:
        """Plan a loop whose body is planned in the block. ``flag``: the address of its condition."""

    def sections(self, works: Sequence[Callable[[], None]]) -> None:
        """Plan ``works``, which may run at the same time."""


class LaunchNumbers(Protocol):
    """The numbers of launches, which their random numbers depend on: `runtime.launcher.Launcher`."""

    def next_number(self) -> int:
        """Return the number of the next launch."""


class Session(CompileTarget, Protocol):
    """The state between `init` and `reset`: a device, its memory, and compiled kernels. ``plain``: kernels run as plain Python."""

    plain: bool
    compiled: int
    prepared: int
    native: CallsNatively | None
    sharing: SharesMemory | None

    @property
    def cfg(self) -> Options:
        """The options of `init`."""

    @property
    def device(self) -> Device:
        """The device."""

    @property
    def memory(self) -> MemoryAllocator:
        """The allocator of its memory."""

    @property
    def launcher(self) -> LaunchNumbers:
        """The numbers of its launches."""

    @property
    def reports_pending(self) -> bool:
        """Whether kernels that can fail or print were launched since `sync`."""

    @property
    def streams(self) -> StreamOrder[Any] | None:
        """The streams in addition to the default one; None on devices with one queue."""

    @property
    def device_loops(self) -> LoopPlanner | None:
        """The loops that the device repeats by itself; None where the host reads their conditions."""

    def prepare(self, kernel: nodes.Kernel, on_op: OnOp | None = None, opt_level: int | None = None) -> Plan:
        """Compile a kernel, or take it from the offline cache, and load it."""

    def keeps_traces(self) -> bool:
        """Return whether the offline cache keeps traces of kernels."""

    def name_of_trace(self, text: str) -> str:
        """Return the name of a trace in the offline cache: what it depends on of device, options and compiler, and ``text``."""

    def stored_trace(self, name: str) -> bytes | None:
        """Return what the offline cache has under a name."""

    def store_trace(self, name: str, data: bytes) -> None:
        """Keep ``data`` in the offline cache under a name."""

    def recall(self, key: str, locations: Sequence[Loc | None], kernel: Callable[[], nodes.Kernel]) -> Plan | None:
        """Load a kernel from the offline cache by its key; None if it is not there. ``locations``: of its tasks; ``kernel``: gives its
        IR."""

    def stages(self, kernel: nodes.Kernel, generate: bool = True) -> dict[str, str | bytes]:
        """Return all stages of compiling ``kernel``."""

    def bind(self, array: Ndarray) -> Place:
        """Return the place of an ndarray."""

    def transfers(self, gradients: bool = False) -> HostTransfers:
        """Return what passes arrays of other libraries to one launch."""

    def scratch(self, dtype: DType, shape: tuple[int, ...], allocation: Allocation | None = None) -> Place:
        """Return a new array of zeros that only launches see, or the array in ``allocation``."""

    def field_memory(self, nbytes: int) -> Allocation:
        """Return memory of zeros for a field tree."""

    def cells_memory(self, region: CellRegion) -> CellPool:
        """Return memory of zeros for the cells of a region of a sparse tree."""

    def transfers_by_kernel(self, allocation: Allocation) -> bool:
        """Return whether a kernel, not the host, changes memory with strides."""

    def launch_builtin(
        self,
        key: Hashable,
        make: Callable[[], nodes.Kernel],
        arrays: Sequence[tuple[Allocation, DType]],
        part: str,
        numbers: Sequence[int],
    ) -> None:
        """Launch a kernel of spirograd's own, which ``make`` makes at the first launch with this ``key``."""

    def do_sections(self, works: Sequence[Callable[[], None]]) -> None:
        """Run ``works``, which may run at the same time."""

    def new_recording(self) -> WorkRecording:
        """Return a recording of work."""

    def unrecorded(self) -> AbstractContextManager[None]:
        """Return a block whose work no graph repeats."""

    def without_prints(self) -> AbstractContextManager[None]:
        """Return a block whose launches repeat earlier ones: what they print is dropped."""

    def adstack_sizings(self, reset: bool) -> dict[str, int]:
        """Return the counts of how the sizes of adstacks were found. ``reset``: start counting anew."""

    def own_writes(self) -> OwnWrites:
        """Track the writes of the calling thread from now on."""

    def clock_hz(self) -> int | None:
        """Return the frequency of the clock that kernels read, in Hz; None if it is unknown."""

    def set_default_type(self, option: str, dtype: object) -> None:
        """Set what Python's ``float`` (``default_fp``) or ``int`` (``default_ip``) means."""

    def launched(self) -> None:
        """Report errors of a kernel that prints or can fail, at once where launches are synchronous."""

    def sync(self) -> None:
        """Wait for all launches; print, and raise what kernels reported."""

    def close(self) -> None:
        """End the session."""

    def raise_reported(self) -> None:
        """Do what `sync` does, if a kernel that can fail or print was launched since the last time."""
