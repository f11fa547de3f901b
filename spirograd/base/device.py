"""The protocol that every device implements, and those of abilities that only some devices have.

The runtime sees devices and artifacts, never IR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass

# Bytes of one `Device.read_async`. Staging memory for that is kept, so whoever reads more asks for pieces, not for all of them at once.
READBACK_LIMIT = 1 << 20
# The same for one `ReadsIntoMemory.read_into_async`.
ARRIVAL_LIMIT = 4 << 20


@dataclass(slots=True, eq=False)
class Buffer:
    """A range of device memory. ``address`` is what kernels use; ``handle`` belongs to the device."""

    nbytes: int
    address: int
    handle: Any = None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What `spirograd doctor` and dumps say about a device."""

    arch: str
    name: str
    driver: str
    detail: tuple[tuple[str, str], ...] = ()


class Readback(Protocol):
    """An asynchronous readback: bytes of device memory, as they were after all work recorded before: see `Device.read_async`.

    Calls may come from any thread. A readback may be dropped without being taken. Both methods raise SpirogradRuntimeError if the device
    was lost, or closed before the bytes were taken.
    """

    def take(self) -> bytes | None:
        """The bytes, or None as long as they are not there. Never waits, submits nothing; once it gave the bytes, it always does.

        They come some time after the work was submitted: by later launches, which go in batches, or by whoever waits for the device.
        """

    def wait(self) -> bytes:
        """Submit what is recorded up to the readback, wait for it, and give the bytes; counts as a wait, even if they were there."""


class Device(Protocol):
    """One device. Calls may come from any thread; work is done in the order of the calls.

    `download` waits for earlier launches, `launch` and `fill` may return before they are done.

    ``waits`` counts how often the host has waited for results since the device was opened: each `synchronize`, `download` and
    `Readback.wait`, whether it blocked or not (and, on wgpu, writes and copies that begin or end within a word, which must read first).
    What else may block is not counted: room for commands or memory that earlier work still uses.
    """

    info: DeviceInfo
    caps: Capabilities
    waits: int

    def allocate(self, nbytes: int, zeroed: bool = True) -> Buffer:
        """``nbytes`` (rounded up, at least 16) of memory, 256-byte aligned; raises OutOfDeviceMemory. ``zeroed``: False allows contents
        that are undefined, which costs less on some devices."""

    def free(self, buffer: Buffer) -> None:
        """Give memory back (once the launches that use it are done)."""

    def upload(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """Copy contiguous host bytes to ``buffer`` at ``offset``; ``data`` may be reused on return."""

    def download(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """Wait for earlier work, then copy ``len(out)`` bytes from ``offset`` into ``out``."""

    def read_async(self, buffer: Buffer, offset: int, nbytes: int) -> Readback:
        """Ask for a copy of ``nbytes`` (at most READBACK_LIMIT) from ``offset`` on, both multiples of 4, in order with launches.

        Does not wait, and submits nothing by itself. Raises ValueError for a range that cannot be read like this.
        """

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        """Fill with a 32-bit pattern; offset and nbytes are multiples of 4."""

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """Copy between buffers of this device, in order with launches."""

    def host_view(self, buffer: Buffer) -> memoryview | None:
        """The bytes of ``buffer`` if the host can address them (after a synchronize), else None."""

    def wrap(self, address: int, nbytes: int) -> Buffer | None:
        """A buffer over host memory that the caller keeps alive (zero copy), or None where the device cannot."""

    def load(self, kernel: CompiledKernel) -> object:
        """Make an executable of an artifact; the result is opaque to the runtime."""

    def launch(self, executable: object, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """Run all tasks in order with this argument block. ``counts[t]``: begin and end are in the code; the number of iterations
        of task t if the host knows it (0: skip the task), None if only the device does."""

    def synchronize(self) -> None:
        """Wait until all work is done; raises what the device reports."""

    def close(self) -> None:
        """Release everything; the device cannot be used afterwards."""


@runtime_checkable
class Assembler(Protocol):
    """A device whose driver compiles what the code generator makes, which takes many times as long as loading the result."""

    def assemble(self, kernel: CompiledKernel) -> CompiledKernel:
        """``kernel`` with machine code for this device in place of its binaries. `Capabilities.toolchain` names what the code depends on.
        Raises SpirogradRuntimeError, with the messages of the driver's compiler, if it refuses."""

    def usage(self, kernel: CompiledKernel) -> str:
        """What each task of ``kernel`` takes on this device, one line each: registers, what was spilled, shared memory."""


# Memory that work uses: allocations with the parts of them that it touches, "" for all; None for memory that is not known.
Uses = Sequence["tuple[object, str]"]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A piece of work of a series. ``work`` calls `launch`, `fill` or `copy` of what it is given, as of a device, and uses this memory."""

    work: Callable[[object], None]
    reads: Uses
    writes: Uses


@dataclass(frozen=True, slots=True)
class Launch:
    """The work of a step that launches a kernel."""

    executable: object
    block: bytes
    counts: tuple[int | None, ...]

    def __call__(self, device: Any) -> None:
        device.launch(self.executable, self.block, self.counts)


@runtime_checkable
class ReservesMemory(Protocol):
    """A device whose launches are done when they return, and on which memory takes no space before it is touched."""

    def reserve(self, nbytes: int) -> Buffer | None:
        """Addresses for ``nbytes`` of zeros, possibly more than there is memory, without any limit; None if the system refuses."""


@runtime_checkable
class ReportsFaults(Protocol):
    """A device that computes on the CPU, where an access outside of all memory ends the process, and the message names the kernel."""

    def locate(self, executable: object, locations: Sequence[Loc | None]) -> None:
        """Where each task of ``executable``, which `Device.load` gave, stands in the source."""


@runtime_checkable
class RecordsWork(Protocol):
    """A device whose driver does a series of launches, fills and copies as one piece, for less than the calls would cost one by one."""

    def record(self, steps: Sequence[Step | Sections]) -> object:
        """Record a series, without doing it. The result, opaque to the runtime, is for `repeat`; None if the driver does not take the
        series."""

    def repeat(self, recorded: object) -> None:
        """Do what was recorded, after the work so far. Does not wait. Raises what launches raise."""


@dataclass(frozen=True, slots=True, eq=False)
class Sections:
    """Lists of steps; those of different lists may be done at the same time where they do not use the same memory."""

    sections: list[list[Step]]


def one_by_one(nodes: Iterable[Step | Sections]) -> Iterator[Step]:
    """The steps of a series, in an order in which one may be done after the other."""
    for node in nodes:
        if isinstance(node, Sections):
            yield from chain.from_iterable(node.sections)
        else:
            yield node


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """``body``, and again as long as the 32-bit word at the address ``flag`` is not 0 after it."""

    flag: int
    body: list[Step | Sections | Loop]


@runtime_checkable
class RecordsLoops(Protocol):
    """A device that decides by itself how often work is repeated, if it ``reads_flags``."""

    reads_flags: bool

    def record_loop(self, loop: Loop) -> object:
        """Record a loop, without doing it. The result is for `RecordsWork.repeat`; None if the driver does not take the loop."""

    def repeat(self, recorded: object) -> None:
        """See `RecordsWork.repeat`."""


@runtime_checkable
class HasStreams(Protocol):
    """A device that does work of several streams at the same time, if it has ``several_queues``. Streams and events are opaque to the
    runtime; None is the stream that the device has anyway, to which all work goes but what is done in `on_stream`. `synchronize`, `close`
    and freed memory wait for all streams."""

    several_queues: bool

    def new_stream(self) -> object:
        """A new stream."""

    def delete_stream(self, stream: object) -> None:
        """Give a stream back, after the work that it was given."""

    def on_stream(self, stream: object) -> AbstractContextManager[None]:
        """Give the launches, fills and copies of the block to ``stream``, in no order with the others. Nothing else is done in it."""

    def order_streams(self, first: object, then: object) -> None:
        """Have ``then`` do what it is given from now on after what ``first`` was given so far. Does not wait."""

    def stream_done(self, stream: object) -> bool:
        """Whether a stream has done all its work. Does not wait."""

    def finish_stream(self, stream: object) -> None:
        """Wait until a stream has done all its work. Counts as a wait."""

    def record_event(self, stream: object) -> object:
        """An event that is done after what ``stream`` was given so far."""

    def wait_for_event(self, event: object, stream: object) -> None:
        """Have ``stream`` do what it is given from now on after an event. Does not wait."""

    def finish_event(self, event: object) -> None:
        """Wait until an event is done. Counts as a wait."""


@runtime_checkable
class HasClock(Protocol):
    """A device whose driver may know the rate of the clock that kernels read."""

    def clock_hz(self) -> int | None:
        """How often the clock ticks in a second at the nominal speed of the device; None if the driver does not say."""


class CodeCache(Protocol):
    """Machine code that outlives the process."""

    def code(self, source: str, make: Callable[[], bytes]) -> bytes:
        """The code that ``make`` makes of ``source``, which names all that it depends on; made once."""


@runtime_checkable
class KeepsCode(Protocol):
    """A device that compiles functions of its own, which are the same in every process."""

    def keep_code(self, cache: CodeCache | None) -> None:
        """Look for them in ``cache``, if there is one, and store them there. Called before the first `Device.load`."""


@dataclass(slots=True, eq=False)
class NativeEntry:
    """How compiled code launches a kernel, during the present time (see `validity`). ``function``, ``context``: addresses of a function
    `void (ptr block, ptr context)`, and of its context. ``lock``: held during launches. ``kept``: what must live as long as launches are
    done. If the 32-bit word at the address ``failed`` is not 0 after a launch, ``report`` is called with the number of the launch."""

    function: int
    context: int
    lock: object = None
    kept: object = None
    failed: int = 0
    report: Callable[[int], None] | None = None


@runtime_checkable
class CallsNatively(Protocol):
    """A device whose kernels compiled code can launch: see `runtime.native`. ``on_host``: they are done when a launch returns, use memory
    of the host in place, and find the numbers of iterations themselves."""

    on_host: bool

    def native_code(self) -> Any:
        """The code that does (`native.launch_function.Code`); None if there is none for this interpreter."""

    def entry(self, executable: object, counts: Sequence[int | None]) -> NativeEntry | None:
        """Launches of ``executable``, for which `Device.launch` gets these ``counts`` unless the device is ``on_host``. None if they are
        for Python only."""


@dataclass(frozen=True, slots=True)
class ChunkTime:
    """When a thread of this process (``thread``: as `threading.get_ident` numbers it) ran the iterations from ``low`` to ``high`` of a
    task; of a grouped task the groups, counted from 0."""

    thread: int
    low: int
    high: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TaskTime:
    """When task number ``task`` of a launch ran, in nanoseconds of `time.perf_counter_ns`. ``launch``: the number that `TaskTimer.launch`
    got. ``cpu``: processor time that its threads took, where they are those of this process; else -1. ``chunks``: what each of these
    threads ran, while a trace is recorded."""

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
        """As `Device.launch`. ``kernel``: what ``executable`` was loaded from. ``number``: for `TaskTime`."""

    def collect(self) -> list[TaskTime]:
        """Wait for the launches so far, and give the times of their tasks that were not given yet, by launch. A task that nothing was
        dispatched for has none."""

    def close(self) -> None:
        """Give back what the device holds for the timer. Times that were not collected are lost."""


@runtime_checkable
class TimesTasks(Protocol):
    """A device that can tell when tasks ran."""

    def task_timer(self) -> TaskTimer:
        """A timer for the launches from now on. Raises SpirogradUnsupportedError where the driver has no clock for it."""


class Arrival(Protocol):
    """Bytes of device memory that go to memory of the host. Calls, what dropping it means, and errors: as of `Readback`."""

    def here(self) -> bool:
        """Whether the bytes are there. Never waits, submits nothing."""

    def wait(self) -> None:
        """Wait until the bytes are there; counts as a wait, even if they were."""


@runtime_checkable
class ReadsIntoMemory(Protocol):
    """A device whose own threads copy the bytes of large readbacks into memory of the caller."""

    def read_into_async(self, buffer: Buffer, offset: int, out: memoryview) -> Arrival:
        """As `Device.read_async`, of at most ARRIVAL_LIMIT bytes, into ``out`` (contiguous, writable), which nothing else may use until the
        bytes are there; if the arrival is dropped before that, never again. Later launches may run before the copy is done, so they must
        not write to what is read until the bytes are there, or `synchronize` returns."""


@runtime_checkable
class LendsMemory(Protocol):
    """An asynchronous device whose memory the host can address. Its driver would take memory back when the device is closed, while the host
    still reads it."""

    def lend(self, buffer: Buffer, borrower: object) -> None:
        """Keep what `host_view` gives of ``buffer`` as long as ``borrower`` lives, also after `free` and `close`. On closing the device
        sets the attribute ``kept`` of ``borrower``. Until then launches, fills and copies return when they are done. `synchronize` is to
        follow, for the work before."""


@runtime_checkable
class SharesMemory(Protocol):
    """A device whose kernels use memory that other libraries of the process allocated on it, in order with the work of these libraries.

    ``ordinal``: the number of the device, as all libraries have it. ``dlpack_device``: what DLPack calls it. ``stream``: the handle of the
    driver's stream that the work goes to; as an argument, of one that another library gives its work to.
    """

    ordinal: int
    dlpack_device: tuple[int, int]

    @property
    def stream(self) -> int: ...

    def switch(self, stream: int) -> int:
        """Give the work from now on to ``stream``, after the work so far of both. Does not wait. Returns the stream that it went to."""

    def adopt(self, address: int, nbytes: int) -> Buffer | None:
        """A non-owning buffer over memory of another library, which the caller keeps alive; None if that is not memory of this device."""

    def export(self, buffer: Buffer) -> None:
        """From now on other libraries may use ``buffer``: it stays until it is freed, even if the device is closed before."""

    def follow(self, stream: int) -> None:
        """Do the work from now on after what ``stream`` was given so far. Does not wait."""

    def precede(self, stream: int) -> None:
        """Have ``stream`` do what it is given from now on after the work so far. Does not wait."""
