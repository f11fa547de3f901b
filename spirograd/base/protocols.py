"""What the layers of a running program see of one another, as protocols: memory, the places of array arguments, work that
is recorded. Kernels that are ready to launch are in `arguments`.

The language and the derivatives name these; the classes that implement them are in `spirograd.runtime`. Nothing checks them at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from struct import Struct
from typing import Protocol, TypeVar, Union

from spirograd.base.device import Arrival, Buffer, Device, HasStreams, Readback

Scalar = Union[int, float, bool]  # a number as a launch takes or returns it
A = TypeVar("A", bound="Allocation")


class Allocation(Protocol):
    """A range of device memory: `runtime.allocations.Allocation`. Offsets and lengths are bytes; ``part`` names a part of the memory, ""
    all of it."""

    device: Device
    buffer: Buffer
    address: int
    nbytes: int
    number: int
    generations: dict[str, int]
    shared: set[str]

    @property
    def pool(self) -> CellPool | None:
        """The growing memory that it belongs to, if any."""

    @property
    def generation(self) -> int:
        """The tick of the last write to any part."""

    @property
    def freed(self) -> bool:
        """Whether the memory has been given back."""

    @property
    def host_address(self) -> int | None:
        """Where the host can reach the bytes, or None. From then on all parts are ``shared``."""

    @property
    def shared_gpu(self) -> int | None:
        """The number of the GPU in whose memory it lies, if other libraries of the process use that too, else None."""

    @property
    def readback_limit(self) -> int:
        """Bytes of one `read_into_async` at most."""

    def bump(self, part: str = "") -> None:
        """Note that the contents of a part (may) have changed."""

    def share(self, part: str = "") -> None:
        """Mark that from now on a part may change without a `bump`."""

    def lend(self, borrower: object) -> None:
        """Keep the memory, as the host addresses it, as long as ``borrower`` lives."""

    def read_into(self, offset: int, out: memoryview) -> None:
        """Wait for earlier launches and copy the bytes from ``offset`` on into ``out``."""

    def host_bytes(self) -> memoryview | None:
        """Wait for earlier launches, and give the bytes for the host to read and write at once, where the host can address them."""

    def unpack(self, form: Struct, offset: int) -> tuple[Scalar, ...]:
        """Wait for earlier launches and read the numbers that lie in ``form`` from ``offset`` on."""

    def read_async(self, offset: int, nbytes: int) -> Readback:
        """Ask for a copy of the bytes as they are after earlier launches, without waiting."""

    def read_into_async(self, offset: int, out: memoryview) -> Arrival:
        """Ask for a copy of the bytes from ``offset`` on into ``out``, without waiting."""

    def write(self, offset: int, data: memoryview, part: str = "") -> None:
        """Copy ``data`` to ``offset``, in order with launches."""

    def fill(self, offset: int, nbytes: int, word: int, part: str = "") -> None:
        """Fill with a 32-bit pattern, in order with launches."""

    def copy_from(self: A, source: A, nbytes: int, offset: int = 0, source_offset: int = 0, part: str = "") -> None:
        """Copy ``nbytes`` from another allocation of the same device, in order with launches."""

    def wrote(self, part: str) -> None:
        """Note that a launch has written to ``part``."""

    def duplicate(self: A, offset: int, nbytes: int) -> A:
        """Return a new allocation with a copy of ``nbytes`` from ``offset`` on."""

    def free(self) -> None:
        """Give the memory back now."""


class Memory(Protocol):
    """What gives out the memory of a device: `runtime.allocations.Memory`."""

    def allocate(self, nbytes: int, zeroed: bool = True) -> Allocation:
        """Return ``nbytes`` bytes of zeros (undefined contents unless ``zeroed``). Raises OutOfDeviceMemory."""

    def watch(self, watcher: object) -> bool:
        """Call ``watcher.handed_out(allocation, part)`` whenever memory is handed out. Returns whether any was handed out before."""


class Place(Protocol):
    """The place of an array argument of a launch, `arguments.ArrayBinding`: addresses and allocations by role, and the extents."""

    address: int
    grad_address: int
    dual_address: int
    grad_dual_address: int
    shape: tuple[int, ...]

    @property
    def allocation(self) -> Allocation | None:
        """The memory of the elements; None if another library owns it."""

    @property
    def grad_allocation(self) -> Allocation | None:
        """The memory of the gradients."""

    @property
    def dual_allocation(self) -> Allocation | None:
        """The memory of the tangents."""

    @property
    def grad_dual_allocation(self) -> Allocation | None:
        """The memory of the tangents of the gradients."""

    def read_into(self, offset: int, out: memoryview) -> None:
        """Copy the bytes from ``offset`` on into ``out``, after earlier launches."""


class Transfers(Protocol):
    """The arrays of other libraries in one launch: used in place where the device can, else copied there and back."""

    tensors: dict[int, tuple[str, object]]
    torch_records: bool

    def bind(self, value: object, element_shape: tuple[int, ...], index: int, label: str) -> Place:
        """Return the place of an array that is flat argument ``index``; errors call it ``label``."""

    def host_address(self, binding: Place) -> int:
        """Return where on the host an array lies that the launch works on in a copy; 0 for other arrays."""

    def finish(self, written: set[int]) -> None:
        """After the launch, copy back what the kernel wrote."""


class WorkRecording(Protocol):
    """Work that is recorded and repeated as a whole: `runtime.graph_recording.GraphRecording`."""

    launches: int

    def open(self) -> AbstractContextManager[object]:
        """Return a block whose work is recorded."""

    def repeat(self) -> None:
        """Do the recorded work again."""


class CellPool(Protocol):
    """The memory of the cells of a sparse node, which grows: `runtime.pools.Pool`."""

    @property
    def allocations(self) -> Sequence[Allocation]:
        """The ledger and the cells."""

    def extent(self) -> int:
        """Return how many cells may hold anything."""

    def before_launch(self) -> None:
        """Grow if more than half of the cells are in use."""

    def after_launch(self) -> None:
        """Ask how many cells are in use, after the launch of a kernel that may activate some."""


class SideStream(Protocol):
    """A stream beside the one that the session has anyway: `runtime.stream_order.Side`."""

    number: int
    handle: object


S = TypeVar("S", bound=SideStream)


class StreamOrder(Protocol[S]):
    """The streams of a device, whose work is ordered by the memory that it uses: `runtime.stream_order.Order`."""

    device: HasStreams
    dropped: list[S]

    def new(self, manual: bool = False) -> S:
        """Return a new stream. ``manual``: it waits for events only."""

    def section(self, number: int) -> S:
        """Return a stream for one of several pieces of work that may run at the same time."""

    def delete(self, side: S) -> None:
        """Give a stream back, after its work."""

    def on(self, side: S) -> AbstractContextManager[None]:
        """Have the work of this thread go to a stream in the block."""


class OwnWrites(Protocol):
    """What one thread has written since a moment: `runtime.generations.OwnWrites`."""

    def are_all(self) -> bool:
        """Return whether no other thread has written since then."""

    def include(self, generation: int) -> bool:
        """Return whether a write was one of them."""

    def close(self) -> None:
        """Stop keeping track."""
