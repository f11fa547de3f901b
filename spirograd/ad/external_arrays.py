"""Copies of arrays of NumPy and torch. A launch works on such an array in place, or on a copy in device memory, which goes back to the
array after the launch: ``binding`` says which (its ``allocation``, None in place)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spirograd.base.protocols import Allocation, Place
from spirograd.lang.data import numpy_transfer


def device_copy(session: Any, array: object, binding: Place) -> Allocation:
    """Return an allocation with a copy of what a launch with this binding works on."""
    nbytes = nbytes_of(array)
    copy: Allocation = session.memory.allocate(max(nbytes, 1))
    if nbytes and binding.allocation is not None:
        copy.copy_from(binding.allocation, nbytes)
    elif nbytes:
        copy.write(0, numpy_transfer.bytes_of(np.ascontiguousarray(_on_host(array)).reshape(-1)))
    return copy


def put_back(copy: Allocation, array: object, binding: Place) -> None:
    """Set what a launch with this binding works on to the contents of a `device_copy`."""
    nbytes = nbytes_of(array)
    if nbytes and binding.allocation is not None:
        binding.allocation.copy_from(copy, nbytes)
    elif nbytes:
        copy.read_into(0, numpy_transfer.bytes_of(_on_host(array).reshape(-1)))  # contiguous: else the launch worked on a copy


def host_copy(array: object, binding: Place) -> numpy_transfer.Array:
    """Return what a launch with this binding left, before it is copied back to the array. Waits for the launch."""
    copy = np.array(_on_host(array), order="C")
    if binding.allocation is not None and copy.nbytes:
        binding.allocation.read_into(0, numpy_transfer.bytes_of(copy.reshape(-1)))
    return copy


def undo(array: Any) -> Callable[[], None]:
    """Return a function that sets the array to what it holds now."""
    if isinstance(array, np.ndarray):
        contents = array.copy()
        return lambda: np.copyto(array, contents) if array.flags.writeable else None
    tensor = array.detach()
    before = tensor.clone()
    return lambda: tensor.copy_(before)


def nbytes_of(array: Any) -> int:
    """Return the bytes of its elements."""
    return int(array.nbytes if isinstance(array, np.ndarray) else array.numel() * array.element_size())


def _on_host(array: Any) -> numpy_transfer.Array:
    return array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()
