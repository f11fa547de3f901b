"""Arrays of other libraries in memory of a GPU: their addresses, the streams of their libraries, and copies on the device."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard, Union

import numpy as np

from spirograd.base.arrays import Array
from spirograd.base.dtypes import DType, u8
from spirograd.base.records import dataclass
from spirograd.lang.data.dlpack import NumpyMemory
from spirograd.lang.data.overlapping import have_common_memory
from spirograd.lang.data.views import Block, HostView

if TYPE_CHECKING:
    import torch
    from torch import Tensor as Tensor

    from spirograd.base.arrays import CudaArrayInterface, StridedInterface
    from spirograd.base.protocols import Allocation
    from spirograd.lang.data.exports import Exported

    TorchDevice = Union[torch.device, str, int, None]

_HOST_TYPE = 1  # kDLCPU


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array on a device: ``shape``, ``address`` and ``nbytes`` of the elements, which are adjacent if ``contiguous``.

    ``stream``: the handle of the driver's stream with the work on the array, None if no work is pending. ``writable``: whether kernels may
    write to it. ``metal_buffer``: the `id<MTLBuffer>` that holds the array, in which ``address`` is an offset; 0 for memory with addresses.
    """

    shape: tuple[int, ...]
    address: int
    nbytes: int
    contiguous: bool
    stream: int | None
    writable: bool
    metal_buffer: int = 0


def is_torch(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether ``value`` is a torch tensor."""
    kind: type = type(value)
    return _has_tensors(kind)


@functools.lru_cache(maxsize=256)
def _has_tensors(cls: type) -> bool:
    """Return whether ``cls`` is torch's class of tensors or one derived from it, by names, since torch need not be there. The result is
    cached, because each launch asks several times for each array."""
    return any((base.__module__, base.__name__) == ("torch", "Tensor") for base in cls.__mro__)


def device_array(value: object) -> DeviceArray | None:
    """Return the description of an array in memory of a GPU: a torch tensor on CUDA, HIP or Metal, or one with the CUDA array interface
    (CuPy, JAX, Numba).

    Returns None for other values.
    """
    if isinstance(value, np.ndarray):
        return None
    if is_torch(value):
        describe = _OF_TORCH.get(value.device.type)
        return None if describe is None else describe(value)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        return None
    address, readonly = interface["data"]
    shape, size = interface["shape"], np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides")
    contiguous = strides is None or strides == _dense(shape, size) or 0 in shape
    return DeviceArray(tuple(shape), address or 0, math.prod(shape) * size, contiguous, interface.get("stream"), not readonly)


def unread(value: object) -> Array:
    """Return a NumPy array with the address and the layout of an array that `device_array` knows. Its elements must not be read."""
    if is_torch(value):
        size, address = value.element_size(), value.data_ptr()
        shape, strides = tuple(value.shape), tuple([size * stride for stride in value.stride()])
    else:
        interface: CudaArrayInterface = value.__cuda_array_interface__  # type: ignore[attr-defined]  # device_array found it there
        size, address = np.dtype(interface["typestr"]).itemsize, interface["data"][0]
        shape = tuple(interface["shape"])
        strides = interface.get("strides") or _dense(shape, size)
    if 0 in shape:
        return np.empty(shape, f"V{size}")
    described: StridedInterface = {"data": (address, True), "typestr": f"|V{size}", "shape": shape, "strides": strides, "version": 3}
    return np.asarray(NumpyMemory(described, value))


def _of_torch(tensor: torch.Tensor) -> DeviceArray:
    stream = current_torch_stream(tensor.device.index)
    nbytes = tensor.numel() * tensor.element_size()
    return DeviceArray(tuple(tensor.shape), tensor.data_ptr(), nbytes, tensor.is_contiguous(), stream, True)


def _of_torch_on_metal(tensor: torch.Tensor) -> DeviceArray:
    """Describe a tensor whose storage has an `id<MTLBuffer>` in place of an address, as torch's allocator for Metal makes it. Adding an
    offset to that, as `Tensor.data_ptr` does, gives nothing of use."""
    size = tensor.element_size()
    metal_buffer, offset = tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()) * size
    return DeviceArray(tuple(tensor.shape), offset, tensor.numel() * size, tensor.is_contiguous(), None, True, metal_buffer)


_OF_TORCH = {"cuda": _of_torch, "mps": _of_torch_on_metal}  # By the type of the device.


def have_common_device_memory(a: object, b: object) -> bool:
    """Return whether two arrays that `device_array` knows have elements at the same place."""
    buffers = [value.untyped_storage().data_ptr() for value in (a, b) if is_torch(value) and value.device.type == "mps"]
    return len(set(buffers)) < 2 and have_common_memory(unread(a), unread(b))


def current_torch_stream(ordinal: int) -> int | None:
    """Return the driver's handle of torch's current stream for a GPU; None until torch uses GPUs."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    handle: int = torch.cuda.current_stream(ordinal).cuda_stream
    return handle


def _dense(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the strides of an array in C order."""
    return tuple(size * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class _DeviceMemory:
    """The memory of an allocation, as torch takes it; it keeps the allocation alive."""

    def __init__(self, allocation: Allocation, block: Block, dtype: DType) -> None:
        self.allocation = allocation
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (allocation.address + block.first, False),
            "shape": block.dims,
            "strides": block.strides,
            "typestr": dtype.np.str,
        }


def _over(allocation: Allocation, view: HostView) -> list[torch.Tensor]:
    """Return torch tensors over the memory itself, on its GPU, one for each block; none if torch has no suitable tensors."""
    if view.count == 0:
        return []
    shape = view.full_shape if len(view.blocks) == 1 else view.shape
    try:
        return [_block_over(allocation, block, view.dtype).view(shape) for block in view.blocks]
    except (RuntimeError, TypeError, ValueError):  # A type that torch lacks, or elements at strides that no shape describes.
        return []


def _block_over(allocation: Allocation, block: Block, dtype: DType) -> torch.Tensor:
    import torch

    sharing = allocation.sharing
    assert sharing is not None
    return torch.as_tensor(_DeviceMemory(allocation, block, dtype), device=f"cuda:{sharing.ordinal}")


def octets_over(allocation: Allocation, nbytes: int) -> torch.Tensor:
    """Return a torch tensor over the first ``nbytes`` bytes, on their GPU. Code that writes to it must report that to the allocation."""
    return _block_over(allocation, Block(0, (nbytes,), (1,), nbytes), u8)


def copy_to_torch(allocation: Allocation, view: HostView, device: TorchDevice) -> torch.Tensor | None:
    """Return a torch tensor on ``device`` with a copy of the contents, made on the GPU without a wait; None where both are elsewhere."""
    sharing = allocation.sharing
    if sharing is None or device is None:
        return None
    import torch

    wanted = torch.device(device)
    if wanted.type != "cuda" or (torch.cuda.current_device() if wanted.index is None else wanted.index) != sharing.ordinal:
        return None
    sources = _over(allocation, view)
    if not sources:
        return None
    stream = torch.cuda.current_stream(sharing.ordinal).cuda_stream
    sharing.precede(stream)
    out = sources[0].clone() if len(sources) == 1 else torch.stack(sources, dim=-1).view(view.full_shape)
    sharing.follow(stream)
    return out


def copy_from_torch(allocation: Allocation, view: HostView, tensor: torch.Tensor, before: Callable[[], None]) -> bool:
    """Set the contents from a torch tensor of the same shape and type on the same GPU, without a wait. Return False for another GPU.

    ``before`` is called first if the copy is possible.
    """
    sharing = allocation.sharing
    if sharing is None or not tensor.is_cuda or tensor.device.index != sharing.ordinal:
        return False
    targets = _over(allocation, view)
    if not targets or tuple(tensor.shape) != view.full_shape or targets[0].dtype != tensor.dtype:
        return False
    import torch

    before()
    stream = torch.cuda.current_stream(tensor.device).cuda_stream
    sharing.precede(stream)
    source = tensor.detach()
    parts = [source] if len(targets) == 1 else source.reshape(*view.shape, len(targets)).unbind(-1)
    for target, part in zip(targets, parts):
        target.copy_(part)
    sharing.follow(stream)
    allocation.bump(view.part)
    return True


def shared_with_torch(exported: Exported, device: TorchDevice) -> torch.Tensor | None:
    """Return a torch tensor over the memory of ``exported`` itself; None where torch cannot address it, or if ``device`` is another one."""
    sharing = exported.tree.allocation.sharing
    if sharing is None or exported.__dlpack_device__()[0] == _HOST_TYPE:
        return None
    import torch
    from torch.utils.dlpack import from_dlpack

    if device is not None and torch.device(device).index not in (None, sharing.ordinal):
        return None
    return from_dlpack(exported)
