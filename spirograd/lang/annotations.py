"""Types that users write in annotations: vectors, matrices, arrays, templates."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, overload

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradTypeError
from spirograd.base.near_names import NearNames
from spirograd.base.wording import counted
from spirograd.lang import arithmetic, scalar
from spirograd.lang.data import field as fields
from spirograd.lang.data import ndarray as ndarrays
from spirograd.lang.data import tensor as tensors
from spirograd.lang.host_arrays import host_array, without_axes
from spirograd.lang.indexing import shape_name
from spirograd.lang.leaves import AggregateType, typed
from spirograd.lang.matrix import Matrix, make, make_host_element
from spirograd.lang.scalar import Scalar, type_error

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from spirograd.lang.data.enums import Layout
    from spirograd.lang.data.field import FieldOptions
    from spirograd.lang.data.tensor import TensorOptions


def _type_until_use(dtype: object) -> object:
    """Return a dtype, or Python's int or float, which mean the default types of the session: annotations exist before `init`."""
    return dtype if dtype is int or dtype is float else arithmetic.as_dtype(dtype)


class MatrixType(AggregateType):
    """The type of n x m matrices of ``dtype``; `VectorType` is that of vectors. Calling it makes a value.

    Without ``dtype`` the entries keep their types: for arguments of functions, and elements of arrays of any type. ``vec3(1)`` repeats a
    number, ``vec3(v.xy, 1)`` joins vectors and numbers, ``mat2([[1, 2], [3, 4]])`` takes rows.
    """

    __slots__ = ("_dtype", "shape")

    def __init__(self, n: int, m: int, dtype: object) -> None:
        self._set((n, m), dtype)

    def _set(self, shape: Sequence[int], dtype: object) -> None:
        for extent in shape:
            if not isinstance(extent, (int, np.integer)) or extent < 1:
                raise type_error(f"the extents of a vector or matrix type are positive integers, got {extent!r}")
        self.shape: tuple[int, ...] = tuple(map(int, shape))
        self._dtype = None if dtype is None else _type_until_use(dtype)

    @property
    def dtype(self) -> DType:
        """The type of the entries."""
        entry_type = self.entry_dtype
        if entry_type is None:
            raise type_error(f"{self!r} has no type of entries", "give one: `vector(3, sg.f32)`")
        return entry_type

    @property
    def entry_dtype(self) -> DType | None:
        """The type of the entries; None if it is unspecified."""
        return None if self._dtype is None else arithmetic.as_dtype(self._dtype)

    @property
    def n(self) -> int:
        """The number of rows, or of entries of a vector."""
        return self.shape[0]

    @property
    def m(self) -> int:
        """The number of columns; 1 for vectors."""
        return self.shape[1] if len(self.shape) == 2 else 1

    @property
    def ndim(self) -> int:
        """The number of axes: 1 for vectors, 2 for matrices."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of entries."""
        return self.n * self.m

    def get_shape(self) -> tuple[int, ...]:
        return self.shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MatrixType) and self.shape == other.shape and self.entry_dtype is other.entry_dtype

    def __hash__(self) -> int:
        return hash((self.shape, str(self.entry_dtype)))

    def __reduce__(self) -> tuple[object, ...]:
        return (element_type, (self.shape, self._dtype))

    def __repr__(self) -> str:
        name = "vector" if self.ndim == 1 else "matrix"
        parts = self.shape if self.entry_dtype is None else (*self.shape, self.entry_dtype)
        return f"{name}({', '.join(map(str, parts))})"

    def __sg_describe__(self) -> str:
        return f"the type of a {self._called}"

    @property
    def _called(self) -> str:
        return shape_name(self.shape) + ("" if self.entry_dtype is None else f" of {self.entry_dtype}")

    __sg_traceable__ = True

    def __call__(self, *args: object) -> Matrix:
        """Return a value of this type from one scalar, from entries, rows, vectors, or any concatenation of these."""
        if not args:
            raise type_error(f"{self!r} needs values", f"`{self!r}(0)` fills with zeros")
        flat = [e for a in args for e in _flatten(a)]
        if len(args) == 1 and scalar.is_scalar(without_axes(args[0])):
            flat *= self.size
        if len(flat) != self.size:
            raise type_error(f"a {shape_name(self.shape)} has {self.size} entries, got {len(flat)}")
        dtype = self.entry_dtype
        return make(flat if dtype is None else [typed(e, dtype) for e in flat], self.shape)

    def leaf_dtypes(self) -> tuple[DType, ...]:
        return (self.dtype,) * self.size

    def build(self, leaves: Sequence[Scalar]) -> Matrix:
        return make(leaves, self.shape)

    def host_types(self) -> tuple[type, ...]:
        return (self.dtype.np.type,) * self.size

    def numbers_of(self, value: object) -> list[Scalar]:
        if isinstance(value, (list, tuple)) or host_array(value) is not None:
            value = Matrix(value)
        if not isinstance(value, Matrix) or value.shape != self.shape:
            raise type_error(f"expected a {self._called}, got {scalar.describe(value)}")
        return list(value.entries)

    def converted(self, value: object) -> Matrix:
        return self.build(self.numbers_of(value) if self.entry_dtype is None else self.leaves_of(value))

    def unplaced_field(self, name: str, needs_grad: bool, needs_dual: bool, layout: Layout) -> fields.MatrixField:
        return fields.MatrixField(self.shape, self.dtype, make_host_element, name, needs_grad, needs_dual, layout)

    def cast(self, value: object) -> Matrix:
        """Return ``value`` converted to this type."""
        return self(value)

    def field(self, shape: object = None, **options: Unpack[FieldOptions]) -> fields.MatrixField:
        """Make a field of this type; the options are those of `field`."""
        return fields.matrix_field(self.shape, self.dtype, make_host_element, shape, **options)

    def ndarray(self, shape: object, needs_grad: bool = False, needs_dual: bool = False, *, fill: object = None) -> ndarrays.Ndarray:
        """Make an array of this type; ``shape``, ``needs_grad``, ``needs_dual``, ``fill`` are the options of `ndarray`."""
        return ndarrays.element_ndarray(self.shape, self.dtype, make_host_element, shape, needs_grad, needs_dual, fill=fill)

    def tensor(self, shape: object, **options: Unpack[TensorOptions]) -> tensors.MatrixTensor:
        """Make a tensor of this type; the options are those of `tensor`."""
        return tensors.element_tensor(self.shape, self.dtype, make_host_element, shape, **options)


def _flatten(x: object) -> list[Scalar]:
    if scalar.is_scalar(x):
        return [x]
    if isinstance(x, Matrix):
        return list(x.entries)
    if isinstance(x, (list, tuple)):
        return [e for item in x for e in _flatten(item)]
    array = host_array(x)
    if array is not None:
        return list(array.reshape(-1).tolist())
    raise type_error(f"a vector or matrix cannot be made of {scalar.describe(x)}")


class VectorType(MatrixType):
    """The type of vectors of n entries of ``dtype``. ``unpacked`` has no effect: entries are scalars of their own always."""

    __slots__ = ()

    def __init__(self, n: int, dtype: object, unpacked: bool = False) -> None:
        self._set((n,), dtype)


def element_type(shape: Sequence[int], dtype: object) -> MatrixType:
    """Return the type of vectors or matrices of this shape."""
    return VectorType(shape[0], dtype) if len(shape) == 1 else MatrixType(shape[0], shape[1], dtype)


class UnsizedType(AggregateType):
    """Annotation of vectors (``ndim`` 1) or matrices (2) of any size, of ``dtype`` or of any type: for arguments and results of functions,
    and for elements of arrays. ``n``, ``m`` and ``shape`` are None."""

    __slots__ = ("_dtype", "ndim")
    n = m = shape = None

    def __init__(self, ndim: int, dtype: object) -> None:
        self.ndim = ndim
        self._dtype = dtype

    @property
    def entry_dtype(self) -> DType | None:
        """The type of the entries; None if it is unspecified."""
        return None if self._dtype is None else arithmetic.as_dtype(self._dtype)

    dtype = entry_dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnsizedType) and self.ndim == other.ndim and self.entry_dtype is other.entry_dtype

    def __hash__(self) -> int:
        return hash((self.ndim, str(self.entry_dtype)))

    def __reduce__(self) -> tuple[object, ...]:
        return (UnsizedType, (self.ndim, self._dtype))

    def __repr__(self) -> str:
        name = "vector" if self.ndim == 1 else "matrix"
        return f"{name}()" if self.entry_dtype is None else f"{name}(dtype={self.entry_dtype})"

    def converted(self, value: object) -> Matrix:
        if isinstance(value, (list, tuple)):
            value = Matrix(value)
        if not isinstance(value, Matrix) or value.ndim != self.ndim:
            raise type_error(f"expected a {'vector' if self.ndim == 1 else 'matrix'}, got {scalar.describe(value)}")
        return make(value.entries, value.shape) if self.entry_dtype is None else value.cast(self.entry_dtype)

    def __call__(self, *args: object) -> Matrix:
        raise self._unsized("a value of it cannot be made")

    def leaf_dtypes(self) -> tuple[DType, ...]:
        raise self._unsized("its values have no fixed number of entries")

    def build(self, leaves: Sequence[Scalar]) -> Matrix:
        raise self._unsized("its values have no fixed number of entries")

    def numbers_of(self, value: object) -> list[Scalar]:
        raise self._unsized("its values have no fixed number of entries")

    def unplaced_field(self, name: str, needs_grad: bool, needs_dual: bool, layout: Layout) -> NoReturn:
        raise self._unsized("fields cannot have elements of it")

    def _unsized(self, problem: str) -> SpirogradTypeError:
        sizes = "3" if self.ndim == 1 else "3, 3"
        hint = f"give its size, as in `{'vector' if self.ndim == 1 else 'matrix'}({sizes}, {self.entry_dtype or 'sg.f32'})`"
        return type_error(f"the type `{self!r}` has no size: {problem}", hint)


@overload
def vector(n: int, dtype: object = None, unpacked: bool = False) -> MatrixType: ...


@overload
def vector(n: None = None, dtype: object = None, unpacked: bool = False) -> UnsizedType: ...


def vector(n: int | None = None, dtype: object = None, unpacked: bool = False) -> MatrixType | UnsizedType:
    """Return the type of vectors of n entries. Without ``dtype``, it is an annotation for vectors of any type; without ``n``, for those of
    any size. ``unpacked``, of Quadrants, has no effect: a vector in a kernel is n scalars, each of which may have a register."""
    return UnsizedType(1, dtype) if n is None else VectorType(n, dtype, unpacked)


@overload
def matrix(n: int, m: int, dtype: object = None) -> MatrixType: ...


@overload
def matrix(n: None = None, m: None = None, dtype: object = None) -> UnsizedType: ...


def matrix(n: int | None = None, m: int | None = None, dtype: object = None) -> MatrixType | UnsizedType:
    """Return the type of matrices of n rows and m columns. Without ``dtype``, it is an annotation for matrices of any type; without ``n``
    and ``m``, of any size."""
    if n is None and m is None:
        return UnsizedType(2, dtype)
    if n is None or m is None:
        raise type_error(f"a matrix type has rows and columns, got n = {n} and m = {m}", "write `matrix(3, 3, sg.f32)`")
    return MatrixType(n, m, dtype)


class VectorOf:
    """The annotation ``types.Vector[3, sg.f32]``, which means ``vector(3, sg.f32)``, in a form that type checkers accept."""

    __qualname__ = "types.Vector"

    def __class_getitem__(cls, item: object) -> MatrixType:
        if not isinstance(item, tuple) or len(item) != 2:
            raise type_error("`types.Vector` takes a number of entries and a type", "write `types.Vector[3, sg.f32]`")
        return VectorType(*item)


class MatrixOf:
    """The annotation ``types.Matrix[2, 3, sg.f32]``, which means ``matrix(2, 3, sg.f32)``, in a form that type checkers accept."""

    __qualname__ = "types.Matrix"

    def __class_getitem__(cls, item: object) -> MatrixType:
        if not isinstance(item, tuple) or len(item) != 3:
            raise type_error("`types.Matrix` takes numbers of rows and columns and a type", "write `types.Matrix[2, 3, sg.f32]`")
        return MatrixType(*item)


class NdarrayType(NearNames):
    """Annotation of an array argument: ``NDArray[dtype, ndim]``. What is None, or left out, matches anything.

    ``dtype`` may be a vector or matrix type; then ``element_shape`` is its shape. ``element_dim``: axes of an element, of any extent: the
    last ones of NumPy arrays and torch tensors. ``ndim``: axes of the index space, without those of elements; ``field_dim`` is its old
    name. ``needs_grad``: True refuses ndarrays without a gradient; with False, torch tensors are passed as if detached. ``boundary``:
    "unsafe" or "clamp". Raises SpirogradTypeError for contradictions.
    """

    __slots__ = ("_dtype", "boundary", "element_dim", "element_shape", "ndim", "needs_grad")

    def __init__(
        self,
        dtype: object = None,
        ndim: int | None = None,
        element_dim: int | None = None,
        element_shape: Sequence[int] | None = None,
        field_dim: int | None = None,
        needs_grad: bool | None = None,
        boundary: str = "unsafe",
    ) -> None:
        if ndim is not None and field_dim is not None and ndim != field_dim:
            raise type_error(f"`ndim` is {ndim}, but `field_dim`, its old name, is {field_dim}")
        if boundary not in ("unsafe", "clamp"):
            raise type_error(f"unknown boundary {boundary!r}", 'it is "unsafe" or "clamp"')
        self.ndim = field_dim if ndim is None else ndim
        if self.ndim is not None and (not isinstance(self.ndim, int) or self.ndim < 0):
            raise type_error(f"`ndim` counts the axes of an array, got {self.ndim!r}")
        self.needs_grad = needs_grad
        self.boundary = boundary
        self.element_shape: tuple[int, ...] | None = None if element_shape is None else tuple(element_shape)
        self._dtype: object = dtype
        if isinstance(dtype, MatrixType):
            self.element_shape = dtype.shape
        elif isinstance(dtype, UnsizedType):
            element_dim = dtype.ndim
        elif dtype is not None:
            self._dtype = _type_until_use(dtype)
            if element_shape is None and not element_dim:
                self.element_shape = ()
        if element_dim is not None and self.element_shape is not None and len(self.element_shape) != element_dim:
            raise type_error(f"`element_dim` is {element_dim}, but the elements have shape {self.element_shape}")
        self.element_dim = element_dim if self.element_shape is None else len(self.element_shape)

    @property
    def dtype(self) -> DType | None:
        """The type of the entries of elements; None if it is unspecified."""
        if isinstance(self._dtype, DType) or self._dtype is None:
            return self._dtype
        return self._dtype.entry_dtype if isinstance(self._dtype, (MatrixType, UnsizedType)) else arithmetic.as_dtype(self._dtype)

    def __class_getitem__(cls, item: object) -> NdarrayType:
        parts = item if isinstance(item, tuple) else (item,)
        if len(parts) > 2:
            raise type_error(f"NDArray takes a type and a number of axes, got {len(parts)} parameters", "write `NDArray[sg.f32, 2]`")
        return cls(*parts)

    def __or__(self, other: None) -> OptionalType:
        return OptionalType.of(self, other)

    __ror__ = __or__

    def _key(self) -> tuple[object, ...]:
        return (self.dtype, self.ndim, self.element_dim, self.element_shape, self.needs_grad, self.boundary)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NdarrayType) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.ndim, self.element_shape, self.needs_grad, self.boundary))

    def __repr__(self) -> str:
        element = self.dtype if not self.element_shape else f"{self.element_shape} of {self.dtype}"
        return f"ndarray(dtype={element}, ndim={self.ndim})"

    def element_shape_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the elements of a NumPy array or torch tensor of this shape: its last axes."""
        if self.element_shape is not None:
            return self.element_shape
        return tuple(shape[len(shape) - self.element_dim :]) if self.element_dim else ()

    def mismatch(self, dtype: DType, shape: Sequence[int], element_shape: Sequence[int]) -> str | None:
        """Return the reason why an array of ``dtype``, ``shape`` and ``element_shape`` does not fit, or None if it does."""
        if self.dtype is not None and dtype is not self.dtype:
            return f"expected an array of {self.dtype}, got {dtype}"
        if self.element_shape is not None and tuple(element_shape) != self.element_shape:
            return f"expected an array with elements of shape {self.element_shape}, got {tuple(element_shape)}"
        if self.element_dim is not None and len(element_shape) != self.element_dim:
            return f"expected an array whose elements have {counted(self.element_dim, 'axis', 'axes')}, got {len(element_shape)}"
        if self.ndim is not None and len(shape) != self.ndim:
            return f"expected an array with {counted(self.ndim, 'axis', 'axes')}, got {len(shape)}"
        return None


ndarray = NdarrayType
NDArray = NdarrayType


class Template:
    """Annotation of an argument whose value is fixed while compiling: a field, a type, a function, a Python value. A call with another
    value compiles the kernel again. ``Template`` and ``template()`` mean the same.
    """

    __slots__ = ()

    def __or__(self, other: None) -> OptionalType:
        return OptionalType.of(self, other)

    __ror__ = __or__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template)

    def __hash__(self) -> int:
        return hash(Template)

    def __repr__(self) -> str:
        return "template()"


template = Template


class OptionalType:
    """Annotation of an argument that may be None: ``types.NDArray[sg.f32, 1] | None``. ``inner``: the annotation of other values."""

    __slots__ = ("inner",)

    def __init__(self, inner: object) -> None:
        self.inner = inner

    @classmethod
    def of(cls, annotation: object, other: None) -> OptionalType:
        """Return the union of an annotation and None; NotImplemented for other unions."""
        return cls(annotation) if other is None else NotImplemented

    def __repr__(self) -> str:
        return f"{self.inner!r} | None"


def without_none(annotation: object) -> object:
    """Return the annotation X of ``X | None`` and ``Optional[X]``; None for others."""
    if isinstance(annotation, OptionalType):
        return annotation.inner
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return None
    parts = [part for part in typing.get_args(annotation) if part is not type(None)]
    return parts[0] if len(parts) == 1 else None


class TripletsType:
    """Annotation of an argument that is a `linalg.SparseMatrixBuilder`: ``types.sparse_matrix_builder()``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "sparse_matrix_builder()"


sparse_matrix_builder = TripletsType


class Reference:
    """Annotation of an argument of a `real_func` that stands for a variable of the caller, or an element of memory: ``ref(dtype)``."""

    __slots__ = ("_dtype",)

    def __init__(self, dtype: object) -> None:
        self._dtype = _type_until_use(dtype)

    @property
    def dtype(self) -> DType:
        """The type of the variable or element."""
        return arithmetic.as_dtype(self._dtype)

    def __repr__(self) -> str:
        return f"ref({self.dtype})"


def ref(dtype: object) -> Reference:
    """Return the annotation of an argument of a `real_func` that is passed by reference: a variable or an element of memory, of type
    ``dtype``."""
    return Reference(dtype)


class FunctionArgument:
    """Annotation of an argument that is a function, to be inlined: ``types.func``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "types.func"


func = FunctionArgument()


def is_integral(dtype: object) -> bool:
    """Return whether a type (of the entries, for a vector or matrix type) is an integer type, u1 included."""
    return not _scalar_type(dtype).is_float


def is_real(dtype: object) -> bool:
    """Return whether a type is a floating point type."""
    return _scalar_type(dtype).is_float


def is_signed(dtype: object) -> bool:
    """Return whether a type has negative values."""
    return _scalar_type(dtype).is_signed


def is_tensor(dtype: object) -> bool:
    """Return whether a type is a vector or matrix type."""
    return isinstance(dtype, (MatrixType, UnsizedType))


def _scalar_type(dtype: object) -> DType:
    return dtype.dtype if isinstance(dtype, MatrixType) else arithmetic.as_dtype(dtype)
