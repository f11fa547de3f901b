"""Tensors: one interface over fields and arrays, so that a program can switch between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradTypeError, SpirogradValueError
from spirograd.base.near_names import NearNames
from spirograd.lang.data import field as fields
from spirograd.lang.data import ndarray as ndarrays
from spirograd.lang.data.enums import Backend
from spirograd.lang.data.ndarray import Ndarray, filled
from spirograd.lang.data.scalar_field import BuildElement, ScalarField
from spirograd.lang.data.shapes import shape_tuple
from spirograd.lang.scalar import describe

if TYPE_CHECKING:
    from typing import TypedDict

    from spirograd.lang.typed import Tensor as FieldOrArray

    class TensorOptions(TypedDict, total=False):
        """Options of `tensor`."""

        backend: Backend | int
        layout: Sequence[int] | None
        needs_grad: bool
        fill: object

else:
    FieldOrArray = NearNames

F = TypeVar("F", bound=ScalarField)


class _TensorClass(type):
    """The metaclass of tensors, whose call `Tensor(x)` returns `wrap(x)`."""

    def __call__(cls, *args: object, **options: object) -> object:
        if cls in (Tensor, MatrixTensor, VectorTensor):
            return wrap(*args, **options)
        return super().__call__(*args, **options)


class Tensor(FieldOrArray, metaclass=_TensorClass):
    """A field or an array made by `tensor`, or converted by ``Tensor(x)``. As the annotation of an argument it accepts any field or array.

    ``layout``: the axes from slowest to fastest in memory, None for row-major. Kernels are compiled once for each layout of the arrays that
    they take.
    """

    layout: tuple[int, ...] | None
    shape: tuple[int, ...]
    dtype: DType

    @property
    def backend(self) -> Backend:
        """The backend: a field or an array."""
        return Backend.NDARRAY if isinstance(self, Ndarray) else Backend.FIELD

    def _unwrap(self) -> Tensor:
        """Return the field or array itself, for programs of the family, whose tensors hold one."""
        return self

    def __repr__(self) -> str:
        layout = "" if self.layout is None else f", layout={self.layout}"
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, backend={self.backend.name}{layout})"

    __str__ = __repr__

    def __sg_describe__(self) -> str:
        return f"a tensor of {self.dtype}"


class MatrixTensor(Tensor):
    """A tensor of matrices."""


class VectorTensor(MatrixTensor):
    """A tensor of vectors."""


class ScalarFieldTensor(Tensor, ScalarField):
    """A tensor of scalars that is a field."""


class MatrixFieldTensor(MatrixTensor, fields.MatrixField):
    """A tensor of matrices that is a field."""


class VectorFieldTensor(VectorTensor, fields.MatrixField):
    """A tensor of vectors that is a field."""


class ScalarNdarrayTensor(Tensor, ndarrays.ScalarNdarray):  # type: ignore[override]
    """A tensor of scalars that is an array."""


class MatrixNdarrayTensor(MatrixTensor, ndarrays.MatrixNdarray):  # type: ignore[override]
    """A tensor of matrices that is an array."""


class VectorNdarrayTensor(VectorTensor, ndarrays.VectorNdarray):  # type: ignore[override]
    """A tensor of vectors that is an array."""


# The class of a field or an array -> the class that it has as a tensor.
_AS_TENSOR: dict[type, type[ScalarField] | type[Ndarray]] = {
    ScalarField: ScalarFieldTensor,
    ndarrays.ScalarNdarray: ScalarNdarrayTensor,
    ndarrays.VectorNdarray: VectorNdarrayTensor,
    ndarrays.MatrixNdarray: MatrixNdarrayTensor,
}


def wrap(x: object) -> Tensor:
    """Convert a field or an array, with its gradients, to a tensor: ``x`` itself. Raises TypeError for other objects."""
    if isinstance(x, Tensor):
        return x
    kind = _AS_TENSOR.get(type(x))
    if type(x) is fields.MatrixField:
        kind = VectorFieldTensor if len(x.element_shape) == 1 else MatrixFieldTensor
    if kind is None or not isinstance(x, (ScalarField, Ndarray)):
        raise SpirogradTypeError(f"a tensor is made of a field or an array, not of {describe(x)}")
    x.__class__ = kind
    for shadow in (x.grad, x.dual):
        if shadow is not None:
            wrap(shadow)
    assert isinstance(x, Tensor)
    return x


def _axis_order(layout: Sequence[int] | None, shape: object, backend: Backend) -> tuple[int, ...] | None:
    """Return ``layout`` as a tuple; None for row-major. Raises ValueError unless it is a permutation of the axes."""
    ndim = len(shape_tuple(shape) if backend is Backend.FIELD else ndarrays.array_shape(shape))
    if layout is None:
        return None
    if isinstance(layout, str) or not hasattr(layout, "__iter__"):
        raise SpirogradTypeError(f"`layout` is a sequence of axis numbers, from slowest to fastest in memory, got {layout!r}")
    order = tuple(int(a) for a in layout)
    if sorted(order) != list(range(ndim)):
        raise ValueError(f"layout={order} is not a permutation of range({ndim})")
    return None if order == tuple(range(ndim)) else order


def tensor(
    dtype: object,
    shape: object,
    *,
    backend: Backend | int = Backend.NDARRAY,
    layout: Sequence[int] | None = None,
    needs_grad: bool = False,
    order: None = None,
    fill: object = None,
) -> Tensor:
    """Return a tensor of scalars, or of the elements of a vector or matrix type.

    ``backend``: a `Backend`, or its number. ``layout``: a permutation of the axes, slowest in memory first; indices and ``shape`` stay as
    they are. ``needs_grad``: have a tensor of gradients. ``fill``: what all elements are at first, 0 by default. Raises
    ValueError for a ``layout`` that is no permutation, SpirogradTypeError for ``order``, an option of fields.
    """
    backend = _backend(backend)
    if order is not None:
        raise SpirogradTypeError("`order` is an option of fields", None, "a tensor takes `layout`, as in `layout=(1, 0)` for `order='ji'`")
    if hasattr(dtype, "leaf_dtypes"):
        if not hasattr(dtype, "tensor"):
            raise SpirogradTypeError(f"a tensor holds scalars, vectors or matrices, not {dtype!r}")
        out: Tensor = dtype.tensor(shape, backend=backend, layout=layout, needs_grad=needs_grad, fill=fill)
        return out
    axes = _axis_order(layout, shape, backend)
    if backend is Backend.NDARRAY:
        return filled(ScalarNdarrayTensor(dtype, shape, (), needs_grad, None, axes), fill)
    return _placed(ScalarFieldTensor(dtype, needs_grad=needs_grad), shape, axes, fill)


def element_tensor(
    element_shape: tuple[int, ...],
    dtype: object,
    build: BuildElement,
    shape: object,
    *,
    backend: Backend | int = Backend.NDARRAY,
    layout: Sequence[int] | None = None,
    needs_grad: bool = False,
    fill: object = None,
) -> MatrixTensor:
    """Return a tensor of vectors or matrices; options are those of `tensor`."""
    backend = _backend(backend)
    order = _axis_order(layout, shape, backend)
    is_vector = len(element_shape) == 1
    if backend is Backend.NDARRAY:
        return filled(
            (VectorNdarrayTensor if is_vector else MatrixNdarrayTensor)(dtype, shape, element_shape, needs_grad, build, order), fill
        )
    f = (VectorFieldTensor if is_vector else MatrixFieldTensor)(element_shape, dtype, build, needs_grad=needs_grad)
    return _placed(f, shape, order, fill)


def _placed(f: F, shape: object, order: tuple[int, ...] | None, fill: object) -> F:
    f.layout = order
    f.fill_at_first(fill)
    fields.place_by_shape(f, shape, None if order is None else "".join(chr(ord("i") + a) for a in order), None)
    return f


def _backend(backend: object) -> Backend:
    if isinstance(backend, int) and not isinstance(backend, bool) and backend in Backend.__members__.values():
        return Backend(backend)
    raise SpirogradValueError(f"`backend` is Backend.FIELD or Backend.NDARRAY, got {backend!r}")
