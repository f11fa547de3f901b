"""Arrays of other libraries in memory of a GPU: where they lie, and the stream that their library gives its work to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


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
