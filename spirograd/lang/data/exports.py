"""Exports of fields and ndarrays to other libraries: DLPack, and on GPUs the CUDA array interface (version 3); no copy where possible.

Exported memory counts as shared (see `Allocation.share`), because other code may write to it. On a GPU the consumer's stream continues
after the work that was launched before the export. The program must order later accesses of both sides, as with any two libraries that
share memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spirograd.base.errors import SpirogradValueError, render
from spirograd.lang.data import dlpack, numpy_transfer
from spirograd.lang.data.device_arrays import current_torch_stream
from spirograd.lang.data.views import HostView
from spirograd.lang.scalar import describe

_HOST = (1, 0)  # kDLCPU
_NO_ORDER = -1  # A stream value: the consumer orders the work itself.
# Streams that DLPack's protocol does not define, by kind of device: 0 is ambiguous on CUDA, 1 and 2 are CUDA's names on ROCm.
_REFUSED_STREAMS = {dlpack.CUDA: (0,), dlpack.ROCM: (1, 2)}
_LEGACY_STREAM = {dlpack.CUDA: 1, dlpack.ROCM: 0}


class Exported:
    """The base of fields and ndarrays for exports; they have `view` and `tree.allocation`.

    ``sparse_path``: the path of fields below sparse nodes, else None.
    """

    sparse_path: Any = None

    def __dlpack__(self: Any, **options: Any) -> Any:
        if self.__dlpack_device__() == _HOST:
            return _on_host(self, **options)
        allocation, view = self.tree.allocation, self.view
        return _capsule(allocation, view, _device(allocation, view), **options)

    def __dlpack_device__(self: Any) -> tuple[int, int]:
        return _HOST if self.sparse_path is not None else _device(self.tree.allocation, self.view)

    def to_dlpack(self: Any) -> Any:
        """Return a DLPack capsule of the memory itself, on the GPU or where the host can address it; else of a copy on the host."""
        return self.__dlpack__()

    @property
    def size(self: Any) -> int:
        """The number of elements; a vector or matrix counts once, as in `shape`."""
        return math.prod(self.shape)

    @property
    def device(self: Any) -> str:
        """The name of the back end that owns the memory, on CUDA and AMD's GPUs with the number of the GPU: "cpu", "vulkan", "cuda:0"."""
        allocation = self.tree.allocation
        number = allocation.shared_gpu
        name = allocation.device.info.arch
        return str(name) if number is None else f"{name}:{number}"

    def to_device(self: Any, device: str, *, stream: object = None) -> Any:
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
    def __cuda_array_interface__(self: Any) -> dict[str, Any]:
        """The memory on a GPU for CuPy, Numba and others. Raises AttributeError for memory elsewhere, or at irregular strides."""
        allocation, view = self.tree.allocation, self.view
        if self.__dlpack_device__() == _HOST:
            raise AttributeError("the CUDA array interface needs memory of a CUDA or HIP device, in one regular range")
        numpy_transfer.share(allocation, view)
        stream = current_torch_stream(allocation.shared_gpu)  # torch ignores the stream of the interface.
        if stream is not None:
            allocation.device.precede(stream)
        return {**_interface(view, allocation.address + view.blocks[0].first), "stream": allocation.device.stream}


def exported(allocation: object, view: HostView) -> Any:
    """Return the memory itself where the host can address it, else a copy."""
    out = numpy_transfer.shared(allocation, view)
    return numpy_transfer.read(allocation, view) if out is None else out


def _on_host(
    memory: Any,
    stream: object = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
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
    versioned: dict[str, Any] = {"max_version": max_version} if dlpack.TAKES_VERSION else {}
    return array.__dlpack__(stream=stream, **versioned)


def _device(allocation: Any, view: HostView) -> tuple[int, int]:
    """Return the device of an export, as DLPack defines it: memory at irregular or negative strides is exported as a copy on the host."""
    strides = None if allocation.shared_gpu is None else numpy_transfer.strides_of(view)
    if strides is None or any(stride < 0 for stride in strides):  # torch rejects negative strides.
        return _HOST
    kind: tuple[int, int] = allocation.device.dlpack_device
    return kind


def _interface(view: HostView, address: int) -> dict[str, object]:
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
    allocation: Any,
    view: HostView,
    device: tuple[int, int],
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """Return a capsule as `__dlpack__` of the array API standard defines it. Raises BufferError if the request is impossible."""
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
    allocation.device.export(allocation.buffer)
    if stream != _NO_ORDER:
        allocation.device.precede(_LEGACY_STREAM[device[0]] if stream is None else stream)
    return dlpack.capsule(allocation, _interface(view, allocation.address + offset), device, max_version, bool(copy))
