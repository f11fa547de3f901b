"""Arrays of other libraries in memory of a GPU: where they lie, the stream that their library gives its work to, copies on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.lang.data.transfer import Block, HostView


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """``address`` and ``nbytes`` of the elements, which lie one after the other if ``contiguous``. ``stream``: the handle of the driver's
    stream with the work on the array, None if there is none under way. ``writable``: whether kernels may write to it."""

    address: int
    nbytes: int
    contiguous: bool
    stream: int | None
    writable: bool


def is_torch(value: Any) -> bool:
    """Whether ``value`` is a torch tensor."""
    return type(value).__module__.startswith("torch") and hasattr(value, "data_ptr")


def device_array(value: Any) -> DeviceArray | None:
    """What is known of an array in memory of a CUDA device: a torch tensor, or one with the CUDA array interface (CuPy, JAX, Numba). None
    for other values."""
    if isinstance(value, np.ndarray):
        return None
    if is_torch(value):
        return _of_torch(value) if value.device.type == "cuda" else None
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        return None
    address, readonly = interface["data"]
    shape, size = interface["shape"], np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides")
    contiguous = strides is None or strides == _dense(shape, size) or 0 in shape
    return DeviceArray(address or 0, math.prod(shape) * size, contiguous, interface.get("stream"), not readonly)


def _of_torch(tensor: Any) -> DeviceArray:
    import torch

    stream = torch.cuda.current_stream(tensor.device).cuda_stream
    return DeviceArray(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor.is_contiguous(), stream, True)


def _dense(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The strides of an array in C order."""
    return tuple(size * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class _DeviceMemory:
    """Memory of an allocation, as torch takes it; keeps the allocation alive."""

    def __init__(self, allocation: Any, block: Block, dtype: DType) -> None:
        self.allocation = allocation
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (allocation.address + block.offset, False),
            "shape": block.dims,
            "strides": block.strides,
            "typestr": dtype.np.str,
        }


def _over(allocation: Any, view: HostView) -> Any:
    """A torch tensor over the very memory, on the GPU where it lies; None if torch has no such tensors."""
    import torch

    if len(view.blocks) != 1 or view.count == 0:
        return None
    try:
        whole = torch.as_tensor(_DeviceMemory(allocation, view.blocks[0], view.dtype), device=f"cuda:{allocation.shared_gpu}")
        return whole.view(view.full_shape)
    except (RuntimeError, TypeError, ValueError):  # a type that torch lacks, or elements at strides that no shape describes
        return None


def copy_to_torch(allocation: Any, view: HostView, device: Any) -> Any:
    """A torch tensor on ``device`` with a copy of the contents, made on the GPU without a wait; None where both lie elsewhere."""
    if allocation.shared_gpu is None or device is None:
        return None
    import torch

    wanted = torch.device(device)
    if wanted.type != "cuda" or (torch.cuda.current_device() if wanted.index is None else wanted.index) != allocation.shared_gpu:
        return None
    source = _over(allocation, view)
    if source is None:
        return None
    stream = torch.cuda.current_stream(source.device).cuda_stream
    allocation.device.precede(stream)
    out = source.clone()
    allocation.device.follow(stream)
    return out


def copy_from_torch(allocation: Any, view: HostView, tensor: Any, before: Callable[[], None]) -> bool:
    """Set the contents from a torch tensor of the same shape and type on the same GPU, without a wait; False where it is another one.
    ``before`` is called first if that is possible."""
    if allocation.shared_gpu is None or not tensor.is_cuda or tensor.device.index != allocation.shared_gpu:
        return False
    target = _over(allocation, view)
    if target is None or target.shape != tensor.shape or target.dtype != tensor.dtype:
        return False
    import torch

    before()
    stream = torch.cuda.current_stream(tensor.device).cuda_stream
    allocation.device.precede(stream)
    target.copy_(tensor.detach())
    allocation.device.follow(stream)
    allocation.bump(view.part)
    return True
