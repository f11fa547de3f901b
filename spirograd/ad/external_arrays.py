"""Copies of arrays of NumPy and torch. A launch works on such an array in place, or on a copy in device memory, which goes back to the
array after the launch: ``binding`` says which (its ``allocation``, None in place)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Union

import numpy as np

from spirograd.base.arrays import Array
from spirograd.base.protocols import Allocation, Place
from spirograd.lang.data import numpy_transfer

if TYPE_CHECKING:
    from spirograd.lang.data.device_arrays import Tensor
    from spirograd.lang.session_protocol import Session

    ExternalArray = Union[Array, Tensor]


def device_copy(session: Session, array: ExternalArray, binding: Place) -> Allocation:
    """Return an allocation with a copy of what a launch with this binding works on."""
    nbytes = nbytes_of(array)
    copy = session.memory.allocate(max(nbytes, 1))
    if nbytes and binding.allocation is not None:
        copy.copy_from(binding.allocation, nbytes)
    elif nbytes:
        copy.write(0, numpy_transfer.bytes_of(np.ascontiguousarray(on_host(array)).reshape(-1)))
    return copy


def put_back(copy: Allocation, array: ExternalArray, binding: Place) -> None:
    """Set what a launch with this binding works on to the contents of a `device_copy`."""
    nbytes = nbytes_of(array)
    if nbytes and binding.allocation is not None:
        binding.allocation.copy_from(copy, nbytes)
    elif nbytes:
        copy.read_into(0, numpy_transfer.bytes_of(on_host(array).reshape(-1)))  # contiguous: else the launch worked on a copy


def host_copy(array: ExternalArray, binding: Place) -> Array:
    """Return what a launch with this binding left, before it is copied back to the array. Waits for the launch."""
    copy = np.array(on_host(array), order="C")
    if binding.allocation is not None and copy.nbytes:
        binding.allocation.read_into(0, numpy_transfer.bytes_of(copy.reshape(-1)))
    return copy


def undo(array: ExternalArray) -> Callable[[], object]:
    """Return a function that sets the array to what it holds now."""
    if isinstance(array, np.ndarray):
        contents = array.copy()
        return lambda: np.copyto(array, contents) if array.flags.writeable else None
    tensor = array.detach()
    before = tensor.clone()
    return lambda: tensor.copy_(before)


def nbytes_of(array: ExternalArray) -> int:
    """Return the bytes of its elements."""
    return int(array.nbytes if isinstance(array, np.ndarray) else array.numel() * array.element_size())


def address_of(array: ExternalArray) -> int:
    """Return the address of its first element."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr())


def on_host(array: ExternalArray) -> Array:
    """Return the array, or the contents of a tensor in memory of the host."""
    contents: Array = array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()
    return contents
