"""The protocol that every device implements, and protocols of optional abilities.

The runtime sees devices and artifacts, never IR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from spirograd.base.artifact import CompiledKernel, Stage
from spirograd.base.caps import Capabilities
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass

if TYPE_CHECKING:
    from spirograd.base.protocols import Allocation

    class TakesWork(Protocol):
        """What steps give their work to: a device, or a recording of one."""

        def launch(self, executable: object, block: bytes | bytearray, counts: tuple[int | None, ...]) -> None:
            """See `Device.launch`."""

        def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
            """See `Device.fill`."""

        def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
            """See `Device.copy`."""

    class Lock(Protocol):
        """A lock that compiled code takes and releases."""

        def acquire(self, blocking: bool = True) -> bool: ...

        def release(self) -> None: ...


# The most bytes of one `Device.read_async`. Staging memory of this size is kept, so larger reads are made in pieces.
READBACK_LIMIT = 1 << 20
# The same for one `ReadsIntoMemory.read_into_async`.
ARRIVAL_LIMIT = 4 << 20


@dataclass(slots=True, eq=False)
class Buffer:
    """A range of device memory. Kernels use its ``address``; ``handle`` belongs to the device."""

    nbytes: int
    address: int
    handle: Any = None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The description of a device, for `spirograd doctor` and dumps."""

    arch: str
    name: str
    driver: str
    detail: tuple[tuple[str, str], ...] = ()


class Readback(Protocol):
    """An asynchronous readback: bytes of device memory as of the work recorded before, see `Device.read_async`.

    Calls may come from any thread. A readback may be dropped without being taken. Both methods raise SpirogradRuntimeError if the device
    was lost, or closed before the bytes were taken.
    """

    def take(self) -> bytes | None:
        """Return the bytes, or None if they have not arrived. Never waits and submits nothing. Later calls return the bytes again.

        They arrive some time after the work is submitted, by later launches or by a wait for the device.
        """

    def wait(self) -> bytes:
        """Submit the work up to the readback, wait for it, and return the bytes. Counts as a wait, even if they had arrived."""


class Device(Protocol):
    """One device. Calls may come from any thread; work is done in the order of the calls.

    `download` waits for earlier launches; `launch` and `fill` may return before they are done.

    ``waits`` counts how often the host has waited for results since the device was opened: each `synchronize`, `download` and
    `Readback.wait`, whether it blocked or not (and, on wgpu, writes and copies that begin or end within a word, which must read first).
    Waits for room for commands, or for memory that earlier work still uses, are not counted.
    """

    info: DeviceInfo
    caps: Capabilities
    waits: int

    def allocate(self, nbytes: int, zeroed: bool = True) -> Buffer:
        """Allocate ``nbytes`` (rounded up, at least 16) of memory, 256-byte aligned. ``zeroed``: False allows undefined contents, which
        costs less on some devices. Raises OutOfDeviceMemory."""

    def free(self, buffer: Buffer) -> None:
        """Free memory once the launches that use it are done."""

    def upload(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """Copy contiguous host bytes to ``buffer`` at ``offset``; ``data`` may be reused on return."""

    def download(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """Wait for earlier work, then copy ``len(out)`` bytes from ``offset`` into ``out``."""

    def read_async(self, buffer: Buffer, offset: int, nbytes: int) -> Readback:
        """Request a copy of ``nbytes`` (at most READBACK_LIMIT) from ``offset`` on, both multiples of 4, in order with launches.

        Does not wait, and submits nothing by itself. Raises ValueError for a range that cannot be read like this.
        """

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        """Fill with a 32-bit pattern; offset and nbytes are multiples of 4."""

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """Copy between buffers of this device, in order with launches."""

    def host_view(self, buffer: Buffer) -> memoryview | None:
        """Return the bytes of ``buffer`` if the host can address them (after a synchronize), else None."""

    def wrap(self, address: int, nbytes: int) -> Buffer | None:
        """Return a buffer over host memory that the caller keeps alive (zero copy), or None if the device cannot use it."""

    def load(self, kernel: CompiledKernel) -> object:
        """Make an executable of an artifact; the result is opaque to the runtime."""

    def launch(self, executable: object, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """Run all tasks in order with this argument block. ``counts[t]``: the number of iterations of task t, whose bounds are in the code,
        if the host knows it (0: skip the task); None if only the device does."""

    def synchronize(self) -> None:
        """Wait until all work is done. Raises the errors that the device reports."""

    def close(self) -> None:
        """Release everything; the device cannot be used afterwards."""


@runtime_checkable
class Assembler(Protocol):
    """A device whose driver compiles the output of the code generator, which takes many times as long as loading the result."""

    def assemble(self, kernel: CompiledKernel) -> CompiledKernel:
        """Return ``kernel`` with machine code for this device as its binaries. `Capabilities.toolchain` identifies everything that the code
        depends on. Raises SpirogradRuntimeError, with the messages of the driver's compiler, if it fails."""


@runtime_checkable
class ShowsMachineCode(Protocol):
    """A device whose driver tells what it makes of the output of the code generator."""

    def code_stages(self, kernel: CompiledKernel) -> dict[str, Stage]:
        """Return the stages that the driver makes of ``kernel``, as far as it tells.

        ``kernel.usage``: the resources of each task, one line each, such as registers and spills. ``kernel.sass``: machine code of all
        tasks. ``<task>.s``: machine code of a task; ``<task>.<name>.txt``: what the driver calls ``name``, such as its IR of the task.
        Raises SpirogradRuntimeError if the driver refuses the kernel.
        """


# Memory that work uses: allocations with the parts of them, "" for all; None for unknown memory.
Uses = Sequence["tuple[Allocation | None, str]"]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step of a series of work. ``work`` calls `launch`, `fill` or `copy` of its argument, a device or a stand-in, and uses the given
    memory."""

    work: Callable[[TakesWork], None]
    reads: Uses
    writes: Uses


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """The work of a step that launches a kernel."""

    executable: object
    block: bytes
    counts: tuple[int | None, ...]

    def __call__(self, device: TakesWork) -> None:
        device.launch(self.executable, self.block, self.counts)


@runtime_checkable
class ReservesMemory(Protocol):
    """A device whose launches are done when they return, and whose memory takes no space before it is touched."""

    def reserve(self, nbytes: int) -> Buffer | None:
        """Reserve addresses for ``nbytes`` of zeros, which may be more than the available memory; None if the system refuses."""


@runtime_checkable
class ReportsFaults(Protocol):
    """A device that computes on the CPU, where an access outside of all memory ends the process, with a message that names the kernel."""

    def locate(self, executable: object, locations: Sequence[Loc | None]) -> None:
        """Set the source location of each task of ``executable``, which `Device.load` returned."""


@runtime_checkable
class RecordsWork(Protocol):
    """A device whose driver runs a recorded series of launches, fills and copies at less cost than separate calls."""

    def record(self, steps: Sequence[Step | Sections]) -> object:
        """Record a series without running it, and return an opaque object for `repeat`; None if the driver does not support the series."""

    def repeat(self, recorded: object) -> None:
        """Run a recorded series after the work so far. Does not wait. Raises the errors of launches."""


@dataclass(frozen=True, slots=True, eq=False)
class Sections:
    """Lists of steps. Steps of different lists may run at the same time if they do not use the same memory."""

    sections: list[list[Step]]


def one_by_one(nodes: Iterable[Step | Sections]) -> Iterator[Step]:
    """Iterate over the steps of a series, in an order in which they may run one after the other."""
    for node in nodes:
        if isinstance(node, Sections):
            yield from chain.from_iterable(node.sections)
        else:
            yield node


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop that runs ``body``, and repeats it while the 32-bit word at the address ``flag`` is not 0 afterwards."""

    flag: int
    body: list[Step | Sections | Loop]


@runtime_checkable
class RecordsLoops(Protocol):
    """A device that evaluates the condition of recorded loops, if it ``reads_flags``."""

    reads_flags: bool

    def record_loop(self, loop: Loop) -> object:
        """Record a loop without running it, and return an object for `RecordsWork.repeat`; None if the driver does not support the loop."""

    def repeat(self, recorded: object) -> None:
        """See `RecordsWork.repeat`."""

    def entry_of(self, recorded: object) -> NativeEntry:
        """Return the entry by which compiled code repeats a recorded loop."""


@runtime_checkable
class HasStreams(Protocol):
    """A device that runs work of several streams at the same time, if it has ``several_queues``. Streams and events are opaque to the
    runtime; None is the device's own stream, which gets all work outside of `on_stream`. `synchronize`, `close` and freed memory wait for
    all streams."""

    several_queues: bool

    def new_stream(self) -> object:
        """Return a new stream."""

    def delete_stream(self, stream: object) -> None:
        """Delete a stream after its work is done."""

    def on_stream(self, stream: object) -> AbstractContextManager[None]:
        """Submit the launches, fills and copies of the block to ``stream``, without order relative to other streams. The block does nothing
        else."""

    def order_streams(self, first: object, then: object) -> None:
        """Order later work of ``then`` after the work of ``first`` so far. Does not wait."""

    def stream_done(self, stream: object) -> bool:
        """Return whether a stream has done all its work. Does not wait."""

    def finish_stream(self, stream: object) -> None:
        """Wait until a stream has done all its work. Counts as a wait."""

    def record_event(self, stream: object) -> object:
        """Record an event that is done after the work of ``stream`` so far."""

    def wait_for_event(self, event: object, stream: object) -> None:
        """Order later work of ``stream`` after an event. Does not wait."""

    def finish_event(self, event: object) -> None:
        """Wait until an event is done. Counts as a wait."""


@runtime_checkable
class HasClock(Protocol):
    """A device whose driver may know the rate of the clock that kernels read."""

    def clock_hz(self) -> int | None:
        """Return the ticks per second of the clock at the nominal speed of the device; None if the driver does not report it."""


class CodeCache(Protocol):
    """A cache of machine code that outlives the process."""

    def code(self, source: str, make: Callable[[], bytes]) -> bytes:
        """Return the code that ``make`` computes, cached under ``source``, which identifies everything that it depends on."""


@runtime_checkable
class KeepsCode(Protocol):
    """A device that compiles its own functions, which are the same in every process."""

    def keep_code(self, cache: CodeCache | None) -> None:
        """Use ``cache``, if it is not None, for these functions. Called before the first `Device.load`."""


@dataclass(slots=True, eq=False)
class NativeEntry:
    """The entry by which compiled code launches a kernel, valid for the present epoch (see `validity`). ``function``, ``context``:
    addresses of a function `void (ptr block, ptr context)`, and of its context. ``lock``: held during launches. ``kept``: objects that must
    outlive the launches. If the 32-bit word at the address ``failed`` is not 0 after a launch, ``report`` is called with the number of the
    launch."""

    function: int
    context: int
    lock: Lock | None = None
    kept: object = None
    failed: int = 0
    report: Callable[[int], None] | None = None


@runtime_checkable
class CallsNatively(Protocol):
    """A device whose kernels compiled code can launch: see `runtime.native`. ``on_host``: whether kernels are done when a launch returns,
    use memory of the host in place, and compute the numbers of iterations themselves."""

    on_host: bool

    def native_code(self) -> Any:
        """Return the code that launches (`native.launch_function.Code`); None if this Python interpreter has none."""

    def entry(self, executable: object, counts: Sequence[int | None]) -> NativeEntry | None:
        """Return the entry for launches of ``executable`` with the ``counts`` of `Device.launch`, which devices ``on_host`` ignore. None if
        only Python can do them."""


@dataclass(frozen=True, slots=True)
class ChunkTime:
    """The time during which a thread of this process (``thread``: its `threading.get_ident`) ran the iterations from ``low`` to ``high`` of
    a task, or the groups of a grouped task, counted from 0."""

    thread: int
    low: int
    high: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TaskTime:
    """The time of task number ``task`` of a launch, in nanoseconds of `time.perf_counter_ns`. ``launch``: the number given to
    `TaskTimer.launch`. ``cpu``: processor time of its threads if they belong to this process; else -1. ``chunks``: the chunks of each of
    these threads, while a trace is recorded."""

    launch: int
    task: int
    begin: int
    end: int
    cpu: int = -1
    chunks: tuple[ChunkTime, ...] = ()


class TaskTimer(Protocol):
    """Launches whose tasks are timed by the device itself."""

    def launch(
        self, kernel: CompiledKernel, executable: object, block: bytes | bytearray, counts: Sequence[int | None], number: int
    ) -> None:
        """Launch as `Device.launch`. ``kernel``: the kernel of ``executable``. ``number``: the number for `TaskTime`."""

    def collect(self) -> list[TaskTime]:
        """Wait for the launches so far, and return the times of their tasks that were not returned yet, by launch. Tasks without a dispatch
        have none."""

    def close(self) -> None:
        """Release the resources of the timer. Times that were not collected are lost."""


@runtime_checkable
class TimesTasks(Protocol):
    """A device that can time tasks."""

    def task_timer(self) -> TaskTimer:
        """Return a timer for later launches. Raises SpirogradUnsupportedError if the driver has no clock for it."""


class Measurement(Protocol):
    """The times of a launch."""

    def take(self) -> Sequence[int] | None:
        """Return the nanoseconds of each task, 0 without a dispatch; None if they are not known yet. Never waits and submits nothing."""


class Stopwatch(Protocol):
    """Launches whose tasks are timed by the device itself, while the queue of work goes on."""

    def measure(self, executable: object, block: bytes | bytearray, counts: Sequence[int | None]) -> Measurement | None:
        """Launch as `Device.launch`. Return None, and launch nothing, if this launch cannot be measured."""

    def close(self) -> None:
        """Release the resources of the stopwatch, which cannot be used afterwards."""


@runtime_checkable
class MeasuresLaunches(Protocol):
    """An asynchronous device that can time launches without a wait, and combine tasks of executables."""

    def stopwatch(self) -> Stopwatch:
        """Return a stopwatch for later launches. Raises SpirogradUnsupportedError if the driver has no clock for it."""

    def combine(self, executables: Sequence[object]) -> object:
        """Return an executable whose task number k is that of ``executables[k]``. They were loaded for one argument block."""


class Arrival(Protocol):
    """Bytes of device memory that arrive in memory of the host. Calls, dropping, and errors are as for `Readback`."""

    def here(self) -> bool:
        """Return whether the bytes have arrived. Never waits and submits nothing."""

    def wait(self) -> None:
        """Wait until the bytes have arrived. Counts as a wait, even if they had."""


@runtime_checkable
class ReadsIntoMemory(Protocol):
    """A device whose own threads copy the bytes of large readbacks into memory of the caller."""

    def read_into_async(self, buffer: Buffer, offset: int, out: memoryview) -> Arrival:
        """Read as `Device.read_async`, at most ARRIVAL_LIMIT bytes, into ``out`` (contiguous, writable). Nothing else may use ``out`` until
        the bytes have arrived, or ever, if the arrival is dropped before. Later launches may run before the copy is done, so they must not
        write to the memory that is read until the bytes have arrived or `synchronize` returns."""


@runtime_checkable
class LendsMemory(Protocol):
    """An asynchronous device whose memory the host can address. Its driver would free the memory when the device is closed, while the host
    may still read it."""

    def lend(self, buffer: Buffer, borrower: object) -> None:
        """Keep the `host_view` of ``buffer`` as long as ``borrower`` lives, also after `free` and `close`. When it is closed, the device
        sets the attribute ``kept`` of ``borrower``. Until then, launches, fills and copies return when they are done. Call `synchronize`
        afterwards, for earlier work."""


@runtime_checkable
class UsesMetalBuffers(Protocol):
    """A device whose kernels can use buffers that another library of the process allocated with Metal."""

    def adopt_metal(self, metal_buffer: int, offset: int, nbytes: int) -> Buffer | None:
        """Return a buffer over ``nbytes`` bytes of an `id<MTLBuffer>`, from ``offset`` on; None if the device cannot use it.

        Metal keeps the memory until the result is freed. Nothing orders the work of the device and of the library: the caller waits for
        the library before a launch, and calls `Device.synchronize` after it.
        """


@runtime_checkable
class SharesMemory(Protocol):
    """A device whose kernels use memory that other libraries of the process allocated on it, in order with the work of these libraries.

    ``ordinal``: the number of the device, which is the same in all libraries. ``dlpack_device``: its DLPack device. ``stream``: the handle
    of the driver's stream for the work of this device; as an argument, of a stream of another library.
    """

    ordinal: int
    dlpack_device: tuple[int, int]

    @property
    def stream(self) -> int: ...

    def switch(self, stream: int) -> int:
        """Submit later work to ``stream``, after the work so far of both streams. Does not wait. Returns the previous stream."""

    def adopt(self, address: int, nbytes: int) -> Buffer | None:
        """Return a non-owning buffer over memory of another library, which the caller keeps alive; None if it is not memory of this
        device."""

    def export(self, buffer: Buffer) -> None:
        """Allow other libraries to use ``buffer``: it lives until it is freed, even if the device is closed before."""

    def follow(self, stream: int) -> None:
        """Order later work after the work of ``stream`` so far. Does not wait."""

    def precede(self, stream: int) -> None:
        """Order later work of ``stream`` after the work so far. Does not wait."""
