"""Exports of fields and ndarrays to other libraries: DLPack, and on GPUs the CUDA array interface (version 3); no copy where possible.

Exported memory counts as shared (see `Allocation.share`), because other code may write to it. On a GPU the consumer's stream continues
after the work that was launched before the export. The program must order later accesses of both sides, as with any two libraries that
share memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from spirograd.base.errors import SpirogradValueError, render
from spirograd.base.near_names import NearNames
from spirograd.lang.data import dlpack, numpy_transfer, shadows
from spirograd.lang.data.device_arrays import current_torch_stream
from spirograd.lang.data.views import HostView
from spirograd.lang.scalar import describe

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

    from spirograd.base.arrays import CudaArrayInterface, StridedInterface
    from spirograd.base.device import SharesMemory
    from spirograd.base.protocols import Allocation
    from spirograd.lang.data.numpy_transfer import Array
    from spirograd.lang.data.regions import Path

_HOST = (1, 0)  # kDLCPU
_NO_ORDER = -1  # A stream value: the consumer orders the work itself.
# Streams that DLPack's protocol does not define, by kind of device: 0 is ambiguous on CUDA, 1 and 2 are CUDA's names on ROCm.
_REFUSED_STREAMS = {dlpack.CUDA: (0,), dlpack.ROCM: (1, 2)}
_LEGACY_STREAM = {dlpack.CUDA: 1, dlpack.ROCM: 0}
E = TypeVar("E", bound="Exported")


class MemoryOwner(Protocol):
    """The owner of the memory of a field or ndarray."""

    @property
    def allocation(self) -> Allocation:
        """The memory."""


class Exported(NearNames):
    """The base of fields and ndarrays for exports. All their bases derive from `NearNames`, as `Tensor` does, so that `wrap` can change the
    class of an object."""

    if TYPE_CHECKING:  # Fields compute these, arrays store them.

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def view(self) -> HostView: ...
        @property
        def tree(self) -> MemoryOwner: ...
        def to_numpy(self) -> Array: ...

    @property
    def sparse_path(self) -> Path | None:
        """The path to the elements of a field through sparse nodes; None where there are none."""
        return None

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        shadows.host_read(self, "DLPack")
        allocation, view = self.tree.allocation, self.view
        sharing = None if self.sparse_path is not None else _exporter(allocation, view)
        if sharing is None:
            return _on_host(self, stream, max_version, dl_device, copy)
        return _capsule(allocation, view, sharing, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _HOST if self.sparse_path is not None else _device(self.tree.allocation, self.view)

    def to_dlpack(self) -> CapsuleType:
        """Return a DLPack capsule of the memory itself, on the GPU or where the host can address it; else of a copy on the host."""
        return self.__dlpack__()

    @property
    def size(self) -> int:
        """The number of elements; a vector or matrix counts once, as in `shape`."""
        return math.prod(self.shape)

    @property
    def device(self) -> str:
        """The name of the back end that owns the memory, on CUDA and AMD's GPUs with the number of the GPU: "cpu", "vulkan", "cuda:0"."""
        allocation = self.tree.allocation
        name, sharing = allocation.device.info.arch, allocation.sharing
        return name if sharing is None else f"{name}:{sharing.ordinal}"

    def to_device(self: E, device: str, *, stream: object = None) -> E | Array:
        """Return the array itself on its own ``device``, or a NumPy array with the contents on "cpu".

        Raises SpirogradValueError for other devices, and for a ``stream``, because copies to the host wait for all work.
        """
        if stream is not None:
            raise SpirogradValueError("`to_device` takes no stream: copies to the host wait for all work")
        if device == self.device:
            return self
        if device != "cpu":
            way = "and does not go to " if self.device == "cpu" else "from where it goes to 'cpu', not to "
            problem = f"{describe(self)} lies on the device '{self.device}', {way}{device!r}"
            raise SpirogradValueError(render(problem, None, "`sg.init(arch=..., device=...)` chooses the device of all memory"))
        return self.to_numpy()

    @property
    def __cuda_array_interface__(self) -> CudaArrayInterface:
        """The memory on a GPU for CuPy, Numba and others. Raises AttributeError for memory elsewhere, or at irregular strides."""
        allocation, view = self.tree.allocation, self.view
        sharing = None if self.sparse_path is not None else _exporter(allocation, view)
        if sharing is None:
            raise AttributeError("the CUDA array interface needs memory of a CUDA or HIP device, in one regular range")
        numpy_transfer.share(allocation, view)
        stream = current_torch_stream(sharing.ordinal)  # torch ignores the stream of the interface.
        if stream is not None:
            sharing.precede(stream)
        return {**_interface(view, allocation.address + view.blocks[0].first), "stream": sharing.stream}


def exported(allocation: Allocation, view: HostView) -> Array:
    """Return the memory itself where the host can address it, else a copy."""
    out = numpy_transfer.shared(allocation, view)
    return numpy_transfer.read(allocation, view) if out is None else out


def _on_host(
    memory: Exported,
    stream: object,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> CapsuleType:
    """Return a capsule of memory that the host can address, or of a copy if a stride is negative (torch would abort the process).

    Raises BufferError if the request is impossible.
    """
    if dl_device is not None and tuple(dl_device) != _HOST:
        raise BufferError(f"the export lies on the DLPack device {_HOST}, and not on {tuple(dl_device)}")
    array = None
    if not copy and memory.sparse_path is None:
        array = numpy_transfer.shared(memory.tree.allocation, memory.view)
        if array is not None and any(stride < 0 for stride in array.strides):
            array = None
    if array is None:
        if copy is False and memory.size:
            raise BufferError(f"DLPack exports {describe(memory)} as a copy: the host cannot address its elements at regular strides")
        array = np.asarray(memory.to_numpy(), order="C")
    # Older versions of NumPy, which its types do not describe, take no version.
    return array.__dlpack__(stream=stream, max_version=max_version) if dlpack.TAKES_VERSION else array.__dlpack__(stream=stream)


def _device(allocation: Allocation, view: HostView) -> tuple[int, int]:
    """Return the device of an export, as DLPack defines it."""
    sharing = _exporter(allocation, view)
    return _HOST if sharing is None else sharing.dlpack_device


def _exporter(allocation: Allocation, view: HostView) -> SharesMemory | None:
    """Return the device that exports memory; None for a copy on the host, as of memory at irregular or negative strides."""
    sharing = allocation.sharing
    strides = None if sharing is None else numpy_transfer.strides_of(view)
    if strides is None or any(stride < 0 for stride in strides):  # torch rejects negative strides.
        return None
    return sharing


def _interface(view: HostView, address: int) -> StridedInterface:
    """Return the array interface of NumPy and CUDA (both version 3) for memory with regular strides.

    Without elements there is no address: the interface of CUDA and DLPack require 0 then.
    """
    return {
        "version": 3,
        "data": (address if view.count else 0, False),
        "shape": view.full_shape,
        "strides": numpy_transfer.strides_of(view),
        "typestr": view.dtype.np.str,
    }


def _capsule(
    allocation: Allocation,
    view: HostView,
    sharing: SharesMemory,
    stream: int | None,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> CapsuleType:
    """Return a capsule as `__dlpack__` of the array API standard defines it. Raises BufferError if the request is impossible."""
    device = sharing.dlpack_device
    if dl_device is not None and tuple(dl_device) != device:
        if tuple(dl_device) != _HOST or copy is False:
            raise BufferError(f"the memory lies on the DLPack device {device}, and not on {tuple(dl_device)}")
        return numpy_transfer.read(allocation, view).__dlpack__()
    if stream in _REFUSED_STREAMS[device[0]]:
        raise BufferError(f"DLPack has no stream {stream} on the device {device}")
    block = view.blocks[0]
    offset = block.first
    if copy:
        allocation, offset = allocation.duplicate(block.offset, block.span), block.first - block.offset
    else:
        numpy_transfer.share(allocation, view)
    sharing.export(allocation.buffer)
    if stream != _NO_ORDER:
        sharing.precede(_LEGACY_STREAM[device[0]] if stream is None else stream)
    return dlpack.capsule(allocation, _interface(view, allocation.address + offset), device, max_version, bool(copy))
