"""Whole contents of fields and ndarrays: fills, copies, and transfers from and to NumPy and torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradRuntimeTypeError, SpirogradTypeError, SpirogradValueError
from spirograd.lang import scalar, traced_numbers
from spirograd.lang.data import device_arrays, numpy_transfer, shadows, sparse_contents
from spirograd.lang.data.exports import Exported
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.views import HostView
from spirograd.lang.host_arrays import host_array, without_axes

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike

    from spirograd.base.protocols import Allocation
    from spirograd.lang.data.device_arrays import TorchDevice


class Contents(Exported):
    """The base of fields and ndarrays for whole contents. ``_kind``: their name in messages."""

    _kind = "an ndarray"
    dtype: DType
    element_shape: tuple[int, ...]

    @property
    def component_fields(self) -> Sequence[Contents]:
        """The components of the elements, each as a field of its own, where these can be accessed one by one."""
        return ()

    @property
    def lies_apart(self) -> bool:
        """Whether the components of an element have no common layout: their strides differ, or they are below different sparse nodes."""
        return False

    def _for_all(self, array: object) -> object:
        """Return the array that `from_numpy` takes, for all environments of a batch."""
        return array

    def _subject(self) -> str:
        """Return the name of this object in messages."""
        return "the ndarray"

    def _filling(self, value: object) -> scalar.Number | Array:
        """Return the value that all elements are set to. Raise SpirogradTypeError for values that no element can have."""
        value = without_axes(value)
        if scalar.is_number(value):
            return value
        array = value.to_numpy() if hasattr(value, "to_numpy") else host_array(value)
        data: Array = np.array(value if array is None else array)  # A copy: a tape may fill again later.
        if not self.element_shape or data.shape != self.element_shape or data.dtype.kind not in "biuf":
            raise SpirogradTypeError(f"an element of {self._subject()} has shape {self.element_shape}, got {scalar.describe(value)}")
        return data

    def fill(self, value: object) -> None:
        """Set all elements to ``value``: a number, or a vector or matrix of the element shape."""
        value, numbers = traced_numbers.split(value, self.element_shape)
        element = self._filling(value)
        shadows.host_write(self, repeat=lambda: self.fill(element), numbers=numbers)
        path = self.sparse_path
        if path is not None and (self.lies_apart or np.any(element)):
            sparse_contents.fill(path, self, element)
        else:
            numpy_transfer.fill(self.tree.allocation, self.view, element)

    def clear_memory(self) -> None:
        """Set all elements to zero, like `fill`, while there is no recorder."""
        numpy_transfer.fill(self.tree.allocation, self.view, 0.0)

    def copy_from(self, other: object) -> None:
        """Copy the contents of ``other``, a field or an array of the same shape.

        Raises SpirogradTypeError for anything else, and ValueError if the shapes differ.
        """
        if not isinstance(other, Contents):
            raise SpirogradTypeError(f"`copy_from` takes {self._kind}, not {scalar.describe(other)}")
        if other.element_shape != self.element_shape:
            ours, theirs = elements_text(self.element_shape), elements_text(other.element_shape)
            raise SpirogradValueError(
                f"{self._subject()} of {ours} cannot copy from one of {theirs}: the elements must have the same shape"
            )
        if other.shape != self.shape:
            shapes = f"of shape {self.shape} cannot copy from one of shape {other.shape}"
            raise SpirogradValueError(f"{self._subject()} {shapes}: the shapes must be equal")
        if self.sparse_path is not None or other.sparse_path is not None:
            self.from_numpy(other.to_numpy())
            return
        shadows.host_write(self, source=other, repeat=lambda: self.copy_from(other))
        numpy_transfer.copy(self.tree.allocation, self.view, other.tree.allocation, other.view)

    def to_numpy(self, dtype: DType | DTypeLike | None = None, *, copy: bool | None = True) -> Array:
        """Return the contents as an array of ``shape`` + element shape, converted to ``dtype`` if given.

        ``copy=False`` asks for an array over the memory itself and raises ValueError where there is none; ``None`` copies there.
        """
        shadows.host_read(self, "`to_numpy`")
        path = self.sparse_path
        if path is not None:
            if copy is False:
                problem = f"the elements of {self._subject()} are not contiguous, because it is below sparse nodes"
                raise SpirogradValueError(f"{problem}: omit `copy=False`")
            return _converted(sparse_contents.read(path, self), dtype)
        return _contents_of(self.tree.allocation, self.view, dtype, copy)

    def from_numpy(self, array: object) -> None:
        """Set the contents to those of ``array``; raises ValueError if its shape is not ``shape`` + element shape.

        Below sparse nodes all cells are activated. Fields of a batch also take the contents of one environment, for all of them.
        """
        data = _matching(self._for_all(array), self.shape, self.element_shape, self._subject())
        shadows.host_write(self)
        path = self.sparse_path
        if path is not None:
            sparse_contents.write(path, self, data)
        else:
            numpy_transfer.write(self.tree.allocation, self.view, data)

    def to_torch(self, device: TorchDevice = None, *, copy: bool | None = True) -> torch.Tensor:
        """Return the contents as a torch tensor on ``device``, by default the CPU. ``copy``: as of `to_numpy`."""
        shadows.host_read(self, "`to_torch`")
        tensor = None
        if self.sparse_path is None and copy:
            tensor = device_arrays.copy_to_torch(self.tree.allocation, self.view, device)
        elif self.sparse_path is None:
            tensor = device_arrays.shared_with_torch(self, device)
        return numpy_transfer.to_torch(self.to_numpy(copy=copy), device) if tensor is None else tensor

    def from_torch(self, tensor: torch.Tensor) -> None:
        """Set the contents from a torch tensor on any device."""
        moved = self.sparse_path is None and device_arrays.copy_from_torch(
            self.tree.allocation, self.view, tensor, lambda: shadows.host_write(self)
        )
        if not moved:
            self.from_numpy(numpy_transfer.from_torch(tensor))


def elements_text(element_shape: tuple[int, ...]) -> str:
    """Return what elements of a shape are called: numbers, vectors of 3, 2 x 3 matrices."""
    if not element_shape:
        return "numbers"
    if len(element_shape) == 1:
        return f"vectors of {element_shape[0]}"
    return f"{' x '.join(map(str, element_shape))} matrices"


def _converted(array: Array, dtype: DType | DTypeLike | None) -> Array:
    """Return ``array`` as a NumPy dtype or one of ours; unchanged for None."""
    return array if dtype is None else array.astype(dtype.np if isinstance(dtype, DType) else dtype)


def _contents_of(allocation: Allocation, view: HostView, dtype: DType | DTypeLike | None, copy: bool | None) -> Array:
    """Return a copy of the contents (``copy`` True), an array over the memory itself (False, ValueError if there is none), or either
    (None)."""
    out = None if copy else numpy_transfer.shared(allocation, view)
    if out is not None and (dtype is None or np.dtype(dtype.np if isinstance(dtype, DType) else dtype) == out.dtype):
        return out
    if copy is False:
        raise SpirogradValueError(
            "`copy=False` needs memory that the host can address, in one regular range, and no conversion: omit it to get a copy"
        )
    return _converted(numpy_transfer.read(allocation, view), dtype)


def _matching(array: object, shape: tuple[int, ...], element_shape: tuple[int, ...], what: str) -> Array:
    """Return ``array`` as NumPy has it, with elements of a shape; a trailing axis of 1 is dropped from matrices of one column."""
    out: Array = np.asarray(array)
    wanted = (*shape, *element_shape)
    if len(element_shape) == 1 and out.shape == (*wanted, 1):
        out = out[..., 0]
    if out.shape != wanted:
        raise SpirogradValueError(f"{what} needs an array of shape {wanted}, got {out.shape}")
    if out.dtype.kind not in "biuf":
        raise SpirogradRuntimeTypeError(f"{what} needs an array of numbers, got one of {out.dtype}")
    return out
