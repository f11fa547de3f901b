"""Protocols between the layers of a running program: memory, the places of array arguments, recorded work. Those of kernels that are ready
to launch are in `arguments`.

The language and the derivatives name these; the classes that implement them are in `spirograd.runtime`. Nothing checks them at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from struct import Struct
from typing import Protocol, TypeVar, Union

from spirograd.base.device import Arrival, Buffer, Device, HasStreams, Readback, SharesMemory

Scalar = Union[int, float, bool]  # a number that a launch takes or returns
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
    keep: object  # the owner of the memory, if that is another library
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
        """The address of the bytes for the host, or None. Reading it marks all parts as ``shared``."""

    @property
    def sharing(self) -> SharesMemory | None:
        """The device, if other libraries of the process use the same GPU, else None; None also once the memory is freed."""

    @property
    def readback_limit(self) -> int:
        """The most bytes of one `read_into_async`."""

    def bump(self, part: str = "") -> None:
        """Increase the generation of a part, whose contents may have changed."""

    def share(self, part: str = "") -> None:
        """Mark a part as shared: it may change without a `bump` from now on."""

    def lend(self, borrower: object) -> None:
        """Keep the host's view of the memory as long as ``borrower`` lives."""

    def read_into(self, offset: int, out: memoryview) -> None:
        """Wait for earlier launches and copy the bytes from ``offset`` on into ``out``."""

    def host_bytes(self) -> memoryview | None:
        """Wait for earlier launches, and return the bytes for immediate reads and writes of the host, if it can address them."""

    def unpack(self, form: Struct, offset: int) -> tuple[Scalar, ...]:
        """Wait for earlier launches and read numbers in the format ``form`` from ``offset`` on."""

    def read_async(self, offset: int, nbytes: int) -> Readback:
        """Request a copy of the bytes as of earlier launches, without waiting."""

    def read_into_async(self, offset: int, out: memoryview) -> Arrival:
        """Request a copy of the bytes from ``offset`` on into ``out``, without waiting."""

    def write(self, offset: int, data: memoryview, part: str = "") -> None:
        """Copy ``data`` to ``offset``, in order with launches."""

    def fill(self, offset: int, nbytes: int, word: int, part: str = "") -> None:
        """Fill with a 32-bit pattern, in order with launches."""

    def copy_from(self: A, source: A, nbytes: int, offset: int = 0, source_offset: int = 0, part: str = "") -> None:
        """Copy ``nbytes`` from another allocation of the same device, in order with launches."""

    def wrote(self, part: str) -> None:
        """Record that a launch has written to ``part``."""

    def duplicate(self: A, offset: int, nbytes: int) -> A:
        """Return a new allocation with a copy of ``nbytes`` from ``offset`` on."""

    def free(self) -> None:
        """Free the memory now."""


class Watcher(Protocol):
    """An observer of memory that is handed out: see `MemoryAllocator.watch`."""

    def handed_out(self, allocation: Allocation, part: str) -> None:
        """Note that a part of ``allocation`` may change without a `bump` from now on."""


class MemoryAllocator(Protocol):
    """The allocator of a device: `runtime.allocations.Memory`."""

    def allocate(self, nbytes: int, zeroed: bool = True) -> Allocation:
        """Return ``nbytes`` bytes of zeros (undefined contents unless ``zeroed``). Raises OutOfDeviceMemory."""

    def watch(self, watcher: Watcher) -> bool:
        """Call ``watcher.handed_out(allocation, part)`` whenever memory is handed out. Return whether any was handed out before."""


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


class Tensor(Protocol):
    """A tensor of torch."""

    requires_grad: bool
    is_leaf: bool
    retains_grad: bool

    def is_floating_point(self) -> bool:
        """Return whether its elements are floats."""


class HostTransfers(Protocol):
    """The arrays of other libraries in one launch: used in place if the device can, else copied there and back."""

    tensors: dict[int, tuple[str, Tensor]]
    torch_records: bool

    def bind(self, value: object, element_shape: tuple[int, ...], index: int, label: str) -> Place:
        """Return the place of an array that is flat argument ``index``; errors call it ``label``."""

    def host_address(self, binding: Place) -> int:
        """Return the host address of an array that the launch uses as a copy; 0 for other arrays."""

    def finish(self, written: set[int]) -> None:
        """After the launch, copy back what the kernel wrote."""


class WorkRecording(Protocol):
    """Work that is recorded and repeated as a whole: `runtime.graph_recording.GraphRecording`."""

    launches: int

    def open(self) -> AbstractContextManager[object]:
        """Return a block whose work is recorded."""

    def repeat(self) -> None:
        """Repeat the recorded work."""


class CellPool(Protocol):
    """The memory of the cells of a sparse node, which grows: `runtime.pools.Pool`."""

    @property
    def allocations(self) -> Sequence[Allocation]:
        """The ledger and the cells."""

    def extent(self) -> int:
        """Return the number of cells that may have contents."""

    def grow(self, cells: int) -> bool:
        """Have memory for ``cells`` in use. Returns whether there is enough."""

    def before_launch(self) -> None:
        """Grow if more than half of the cells are in use."""

    def after_launch(self) -> None:
        """Request the number of cells in use, after the launch of a kernel that may activate some."""


class SideStream(Protocol):
    """A stream in addition to the session's own: `runtime.stream_order.Side`."""

    number: int
    handle: object


S = TypeVar("S", bound=SideStream)


class StreamOrder(Protocol[S]):
    """The streams of a device, whose work is ordered by the memory that it uses: `runtime.stream_order.Order`."""

    device: HasStreams
    dropped: list[S]

    def new(self, manual: bool = False) -> S:
        """Return a new stream. ``manual``: whether it waits only for events."""

    def section(self, number: int) -> S:
        """Return a stream for one of several pieces of work that may run at the same time."""

    def delete(self, side: S) -> None:
        """Delete a stream after its work is done."""

    def on(self, side: S) -> AbstractContextManager[None]:
        """Submit the work of this thread in the block to a stream."""


class OwnWrites(Protocol):
    """The writes of one thread since a point in time: `runtime.generations.OwnWrites`."""

    def is_only(self) -> bool:
        """Return whether nothing else keeps track of the writes of the thread."""

    @property
    def end_address(self) -> int:
        """The address of the tick after the last write, which compiled code changes."""

    def missed(self, gap: tuple[int, int]) -> None:
        """Record that another thread took the ticks from the first number of ``gap`` up to the second one."""

    def is_complete(self) -> bool:
        """Return whether no such ticks are known."""

    def are_all(self) -> bool:
        """Return whether no other thread has written since then."""

    def include(self, generation: int) -> bool:
        """Return whether a write was one of them."""

    def close(self) -> None:
        """Stop keeping track."""
