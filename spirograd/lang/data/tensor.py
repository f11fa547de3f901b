"""Tensors: one interface over fields and arrays, so that a program can switch between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spirograd.base.errors import SpirogradTypeError
from spirograd.lang.data import field as fields
from spirograd.lang.data import ndarray as ndarrays
from spirograd.lang.data.enums import Backend
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import BuildElement, ScalarField, shape_tuple


class Tensor:
    """A field or an array behind one interface; as an annotation of kernel arguments it takes either.

    ``impl``: the field or array. ``backend``: which of the two. ``layout``: the axes from slowest to fastest in memory, None for row-major.
    Fields lie in memory as ``layout`` says. Arrays are row-major always, because one compiled kernel serves all arrays.
    """

    __slots__ = ("__weakref__", "_impl", "layout")

    def __init__(self, impl: Any, layout: tuple[int, ...] | None = None) -> None:
        self._impl = impl
        self.layout = layout

    @property
    def impl(self) -> Any:
        return self._impl

    @property
    def backend(self) -> Backend:
        return Backend.NDARRAY if isinstance(self._impl, Ndarray) else Backend.FIELD

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._impl.shape
        return shape

    @property
    def element_shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._impl.element_shape
        return shape

    @property
    def dtype(self) -> Any:
        return self._impl.dtype

    @property
    def grad(self) -> Tensor | None:
        """The tensor of gradients, or None if there is none."""
        return type(self)(self._impl.grad, self.layout) if self._impl.has_grad() else None

    @property
    def dual(self) -> Tensor | None:
        """The tensor of tangents, or None if there is none."""
        return type(self)(self._impl.dual, self.layout) if self._impl.has_dual() else None

    def has_grad(self) -> bool:
        return bool(self._impl.has_grad())

    def has_dual(self) -> bool:
        return bool(self._impl.has_dual())

    def __repr__(self) -> str:
        layout = "" if self.layout is None else f", layout={self.layout}"
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, backend={self.backend.name}{layout})"

    def __sg_describe__(self) -> str:
        return f"a tensor of {self.dtype}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensor) and self._impl is other._impl

    def __hash__(self) -> int:
        return id(self._impl)

    def __getitem__(self, key: Any) -> Any:
        return self._impl[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._impl[key] = value

    def fill(self, value: Any) -> None:
        """Set all elements to ``value``."""
        self._impl.fill(value)

    def copy_from(self, other: Any) -> None:
        """Take over the contents of a tensor, field or array of the same shape."""
        self._impl.copy_from(other._impl if isinstance(other, Tensor) else other)

    def to_numpy(self, dtype: Any = None, *, copy: bool = True) -> Any:
        """The contents as a NumPy array of ``shape`` + ``element_shape``."""
        return self._impl.to_numpy(dtype=dtype, copy=copy)

    def from_numpy(self, array: Any) -> None:
        """Set the contents; raises ValueError if the shape differs."""
        self._impl.from_numpy(array)

    def to_torch(self, device: Any = None, *, copy: bool = True) -> Any:
        """The contents as a torch tensor on ``device`` (the CPU by default)."""
        return self._impl.to_torch(device=device, copy=copy)

    def from_torch(self, tensor: Any) -> None:
        """Set the contents from a torch tensor on any device."""
        self._impl.from_torch(tensor)

    def to_dlpack(self) -> Any:
        """A DLPack capsule, as of fields and arrays."""
        return self._impl.to_dlpack()

    def __dlpack__(self, **options: Any) -> Any:
        return self._impl.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._impl.__dlpack_device__()
        return device

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._impl, self.layout))


class MatrixTensor(Tensor):
    """A tensor of matrices."""

    __slots__ = ()

    @property
    def n(self) -> int:
        return self.element_shape[0]

    @property
    def m(self) -> int:
        return self.element_shape[1] if len(self.element_shape) == 2 else 1


class VectorTensor(MatrixTensor):
    """A tensor of vectors."""

    __slots__ = ()


def _axis_order(layout: Sequence[int] | None, ndim: int) -> tuple[int, ...] | None:
    """``layout`` as a tuple; None for row-major. Raises ValueError unless it is a permutation of the axes."""
    if layout is None:
        return None
    if isinstance(layout, str) or not hasattr(layout, "__iter__"):
        raise SpirogradTypeError(f"`layout` is a sequence of axis numbers, from slowest to fastest in memory, got {layout!r}")
    order = tuple(int(a) for a in layout)
    if sorted(order) != list(range(ndim)):
        raise ValueError(f"layout={order} is not a permutation of range({ndim})")
    return None if order == tuple(range(ndim)) else order


def _field_order(order: tuple[int, ...] | None) -> str | None:
    return None if order is None else "".join(chr(ord("i") + a) for a in order)


def tensor(
    dtype: Any, shape: Any, *, backend: Backend = Backend.NDARRAY, layout: Sequence[int] | None = None, needs_grad: bool = False
) -> Tensor:
    """A tensor of scalars, or of the elements of a vector or matrix type.

    ``layout``: a permutation of the axes, slowest in memory first; indices and ``shape`` stay as they are. Raises ValueError if it is none.
    """
    _check_backend(backend)
    if hasattr(dtype, "leaf_dtypes"):
        if not hasattr(dtype, "tensor"):
            raise SpirogradTypeError(f"a tensor holds scalars, vectors or matrices, not {dtype!r}")
        out: Tensor = dtype.tensor(shape, backend=backend, layout=layout, needs_grad=needs_grad)
        return out
    order = _axis_order(layout, len(shape_tuple(shape)) if backend is Backend.FIELD else len(ndarrays.array_shape(shape)))
    impl: ScalarField | Ndarray
    if backend is Backend.FIELD:
        impl = fields.field(dtype, shape, order=_field_order(order), needs_grad=needs_grad)
    else:
        impl = ndarrays.ScalarNdarray(dtype, shape, (), needs_grad)
    return Tensor(impl, order)


def element_tensor(
    element_shape: tuple[int, ...],
    dtype: Any,
    build: BuildElement,
    shape: Any,
    *,
    backend: Backend = Backend.NDARRAY,
    layout: Sequence[int] | None = None,
    needs_grad: bool = False,
) -> MatrixTensor:
    """A tensor of vectors or matrices; options as of `tensor`."""
    _check_backend(backend)
    order = _axis_order(layout, len(shape_tuple(shape)) if backend is Backend.FIELD else len(ndarrays.array_shape(shape)))
    impl: ScalarField | Ndarray
    if backend is Backend.FIELD:
        impl = fields.matrix_field(element_shape, dtype, build, shape, order=_field_order(order), needs_grad=needs_grad)
    else:
        impl = ndarrays.element_ndarray(element_shape, dtype, build, shape, needs_grad)
    return (VectorTensor if len(element_shape) == 1 else MatrixTensor)(impl, order)


def _check_backend(backend: Any) -> None:
    if not isinstance(backend, Backend):
        raise SpirogradTypeError(f"`backend` is Backend.FIELD or Backend.NDARRAY, got {backend!r}")
