"""Vectors and matrices: small aggregates of scalars, in Python and in kernels alike.

A matrix holds its entries flat and row-major: numbers outside of kernels, run-time values (`scalar.Value`) inside. Operations are unrolled
over the entries, so the IR has no matrices. In kernels matrices are values: see `with_entry`. Elements of fields write through to them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from spirograd.base.dtypes import DType, Vec
from spirograd.base.errors import SpirogradIndexError, SpirogradValueError
from spirograd.base.near_names import NearNamesOfClass, NoAttribute
from spirograd.ir import ops as ir
from spirograd.lang import arithmetic, dense_algebra, indexing, scalar
from spirograd.lang.broadcasting import joint_shape, spread
from spirograd.lang.context import current_trace, language_options
from spirograd.lang.data import field as fields
from spirograd.lang.data import ndarray as ndarrays
from spirograd.lang.data import tensor as tensors
from spirograd.lang.host_arrays import host_array, without_axes
from spirograd.lang.indexing import SWIZZLES, Shape, axis_positions, index_value, location, shape_name, swizzle_of
from spirograd.lang.leaves import common_dtype, typed, unify_entries
from spirograd.lang.scalar import Scalar, Value, is_number, is_scalar, type_error

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from typing_extensions import Unpack

    from spirograd.lang.data.numpy_transfer import Array
    from spirograd.lang.typed import MatrixOperators
else:
    MatrixOperators = object

Writer = Callable[[int, object], None]  # Writes an entry of an element, by its flat index.


def make(entries: Sequence[Scalar], shape: Shape) -> Matrix:
    """Return the vector (``shape`` (n,)) or matrix (n, m) with these row-major entries."""
    m: Matrix = object.__new__(Vector if len(shape) == 1 else Matrix)
    put = object.__setattr__
    put(m, "_entries", unify_entries(entries))
    put(m, "shape", shape)
    put(m, "_write", None)
    return m


def make_host_element(entries: Sequence[Scalar], shape: Shape, write: Writer | None) -> Matrix:
    """Return an element of a field or ndarray read in Python scope: assigning an entry calls ``write(flat index, value)``."""
    m = make(entries, shape)
    object.__setattr__(m, "_write", write)
    return m


def _entries_and_shape(data: object) -> tuple[list[Scalar], Shape]:
    """Return the entries in row-major order and the shape of nested sequences, arrays, vectors."""
    if isinstance(data, Matrix):
        return list(data._entries), data.shape
    array = host_array(data)
    if array is not None:
        if array.ndim not in (1, 2) or array.size == 0:
            raise type_error(f"a vector or matrix cannot be made of an array of shape {array.shape}")
        return array.reshape(-1).tolist(), array.shape
    if not isinstance(data, (list, tuple, range)):
        raise type_error(f"a vector or matrix is made of a list of numbers or of rows, not of {scalar.describe(data)}")
    items = [without_axes(e) for e in data]
    if not items:
        raise type_error("a vector needs at least one entry")
    numbers = [e for e in items if is_scalar(e)]
    if len(numbers) == len(items):
        return numbers, (len(items),)
    rows = [_entries_and_shape(r) for r in items]
    if any(len(shape) != 1 for _, shape in rows):
        raise type_error("the rows of a matrix are lists of numbers or vectors")
    widths = {shape[0] for _, shape in rows}
    if len(widths) > 1:
        raise type_error(f"the rows of a matrix must be of one length, got lengths {sorted(widths)}")
    return [e for entries, _ in rows for e in entries], (len(rows), widths.pop())


def _operand(x: object) -> Scalar | Matrix | None:
    """Return a scalar as it is; lists and arrays as matrices; None for other objects."""
    if isinstance(x, Matrix) or is_scalar(x):
        return x
    if isinstance(x, (list, tuple)):
        return Matrix(x)
    array = host_array(x)
    return None if array is None else array.item() if array.ndim == 0 else Matrix(array)


def _entrywise(function: Callable[..., Scalar], args: Sequence[object]) -> Matrix:
    """Return ``function`` over the entries of the matrices among ``args``, scalars broadcast."""
    operands: list[Scalar | Matrix] = []
    for given in args:
        a = _operand(given)
        if a is None:
            raise type_error(f"a vector or matrix cannot be combined with {scalar.describe(given)}")
        operands.append(a)
    shape = joint_shape([a.shape for a in operands if isinstance(a, Matrix)])
    size = math.prod(shape)
    columns = [spread(a._entries, a.shape, shape) if isinstance(a, Matrix) else [a] * size for a in operands]
    return make([function(*items) for items in zip(*columns)], shape)


_OPERATORS: dict[str, scalar.Operator] = {
    "add": scalar.add, "sub": scalar.sub, "mul": scalar.mul, "truediv": scalar.truediv, "floordiv": scalar.floordiv, "mod": scalar.mod,
    "pow": scalar.power, "and": scalar.bit_and, "or": scalar.bit_or, "xor": scalar.bit_xor,
    "lshift": scalar.shift_left, "rshift": scalar.shift_right, "eq": scalar.equal, "ne": scalar.not_equal,
    "lt": scalar.less, "le": scalar.less_equal, "gt": scalar.greater, "ge": scalar.greater_equal,
}  # fmt: skip


def _install_operator(name: str, function: scalar.Operator) -> None:
    """Give matrices one of Python's arithmetic operators, both ways round."""

    def forward(self: Matrix, other: object) -> object:
        return NotImplemented if _operand(other) is None else _entrywise(function, (self, other))

    def backward(self: Matrix, other: object) -> object:
        return NotImplemented if _operand(other) is None else _entrywise(function, (other, self))

    setattr(Matrix, f"__{name}__", forward)
    if name not in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Matrix, f"__r{name}__", backward)


class Matrix(MatrixOperators, metaclass=NearNamesOfClass):
    """A vector or matrix of scalars, of ``shape`` (n,) or (n, m): ``Matrix([[1, 2], [3, 4]], dt=f32)``, ``Matrix([row0, row1])``.
    ``dt``: of the entries. Raises SpirogradTypeError for ragged rows and entries that are no scalars.
    """

    __slots__ = ("__weakref__", "_entries", "_write", "shape")
    __array_ufunc__ = None  # NumPy arrays on the left leave the operation to this class.
    __sg_traceable__ = True
    _entries: list[Scalar]
    _write: Writer | None
    shape: Shape

    @overload
    def __new__(cls, data: object, dt: object = None) -> Matrix: ...
    @overload
    def __new__(cls, *entries: Any) -> Matrix: ...  # `vec3` and its like, which type checkers regard as this class.

    def __new__(cls, data: object, dt: object = None) -> Matrix:
        entries, shape = _entries_and_shape(data)
        if dt is not None:
            t = arithmetic.as_dtype(dt)
            entries = [typed(e, t) for e in entries]
        return make(entries, shape)

    def __reduce__(self) -> tuple[object, ...]:
        return (make, (self._entries, self.shape))

    # --- what it is ---

    @property
    def entries(self) -> tuple[Any, ...]:
        """The entries, row by row."""
        return tuple(self._entries)

    @property
    def n(self) -> int:
        """The number of rows."""
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
    def dtype(self) -> DType:
        """The type of the entries (literals in kernels: the default types)."""
        return common_dtype(self._entries)

    def get_shape(self) -> Shape:
        """Return ``shape``."""
        return self.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self.n))

    def __repr__(self) -> str:
        if not all(is_number(e) for e in self._entries):
            return f"<{self.__sg_describe__()}>"
        return str(self.to_numpy()) if language_options().prints_fixed else repr(self.to_list())

    def __sg_describe__(self) -> str:
        return f"a {shape_name(self.shape)}"

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        if len(self._entries) == 1:
            return bool(self._entries[0])
        raise type_error("the truth of a vector or matrix is ambiguous", "reduce it with `.any()` or `.all()`")

    def __sg_elementwise__(self, function: Callable[..., Scalar], args: Sequence[object]) -> Matrix:
        return _entrywise(function, args)

    def __sg_cast__(self, t: DType) -> Matrix:
        return self.cast(t)

    def __array__(self, dtype: DTypeLike | None = None, copy: object = None) -> Array:
        if copy is False:
            raise SpirogradValueError("`copy=False`: a vector or matrix holds no array, so NumPy gets a copy: omit `copy`")
        return self.to_numpy() if dtype is None else self.to_numpy().astype(dtype)

    # --- entries ---

    def _positions(self, index: object) -> tuple[list[indexing.Position], Shape | None]:
        """Return flat positions (ints, or values where the index is only known at run time) and the shape of the selection (None: a
        scalar)."""
        parts: tuple[object, ...] = index if isinstance(index, tuple) else index.entries if isinstance(index, Matrix) else (index,)
        if len(parts) > self.ndim:
            raise SpirogradIndexError(f"{len(parts)} indices for a {shape_name(self.shape)}", location(), f"it takes {self.ndim}")
        parts = (*parts, *[slice(None)] * (self.ndim - len(parts)))
        axes = [axis_positions(i, extent, self.shape) for i, extent in zip(parts, self.shape)]
        shape = tuple(len(a) for a, i in zip(axes, parts) if isinstance(i, slice))
        if self.ndim == 1:
            return axes[0], shape or None
        return [indexing.flat_position(i, self.m, j) for i in axes[0] for j in axes[1]], shape or None

    def __getitem__(self, index: object) -> Any:
        positions, shape = self._positions(index)
        if indexing.are_constant(positions):
            entries = [self._entries[p] for p in positions]
        else:
            vector = self._as_ir_vector()
            entries = [scalar.emit(ir.extract, vector, index_value(p)) for p in positions]
        return entries[0] if shape is None else make(entries, shape)

    def _as_ir_vector(self) -> Value:
        t = common_dtype(self._entries)
        return scalar.emit(ir.vec, *[scalar.cast(e, t) for e in self._entries], t=Vec(len(self._entries), t))

    def with_entry(self, index: object, value: object) -> Matrix:
        """Return a copy with ``value`` (a scalar, or a matrix of the shape read there) at ``index``, cast to this matrix's type."""
        positions, shape = self._positions(index)
        values = _values_for(value, shape, len(positions))
        if not indexing.are_constant(positions):
            return self._with_run_time_entries(positions, values)
        entries = list(self._entries)
        for p, v in zip(positions, values):
            entries[p] = _like(v, entries[p])
        return make(entries, self.shape)

    def _with_run_time_entries(self, positions: Sequence[indexing.Position], values: Sequence[Scalar]) -> Matrix:
        vector = self._as_ir_vector()
        assert isinstance(vector.op.type, Vec)
        t = vector.op.type.elem
        for p, v in zip(positions, values):
            vector = scalar.emit(ir.insert, vector, index_value(p), scalar.cast(v, t))
        size = len(self._entries)
        return make([scalar.emit(ir.extract, vector, scalar.constant(i)) for i in range(size)], self.shape)

    def with_swizzle(self, name: str, value: object) -> Matrix:
        """Return a copy in which the entries that the swizzle ``name`` names, as in "xz", are ``value``."""
        positions = self._swizzle_positions(name)
        entries = list(self._entries)
        for p, v in zip(positions, _values_for(value, (len(positions),) if len(positions) > 1 else None, len(positions))):
            entries[p] = _like(v, entries[p])
        return make(entries, self.shape)

    def __setitem__(self, index: object, value: object) -> None:
        self._replace(self.with_entry(index, value), self._positions(index)[0])

    def _replace(self, new: Matrix, changed: Sequence[indexing.Position]) -> None:
        object.__setattr__(self, "_entries", new._entries)
        if self._write is not None:
            assert indexing.are_constant(changed)  # outside of kernels
            for p in changed:
                self._write(p, self._entries[p])

    def _swizzle_positions(self, name: str) -> tuple[int, ...]:
        positions = swizzle_of(name) if self.ndim == 1 else None
        if positions is None:
            raise NoAttribute(f"a {shape_name(self.shape)}", name, lambda: dir(self))
        if max(positions) >= self.n:
            raise AttributeError(f"a vector of {self.n} has no component `{name}`; it has `{SWIZZLES[0][: self.n]}`")
        return positions

    def __getattr__(self, name: str) -> Any:
        positions = self._swizzle_positions(name)
        entries = [self._entries[p] for p in positions]
        return entries[0] if len(entries) == 1 else make(entries, (len(entries),))

    def __setattr__(self, name: str, value: object) -> None:
        self._replace(self.with_swizzle(name, value), self._swizzle_positions(name))

    def __copy__(self) -> Matrix:
        return make(self._entries, self.shape)

    def copy(self) -> Matrix:
        """Return a copy that shares no entries."""
        return make(self._entries, self.shape)

    def __deepcopy__(self, memo: object) -> Matrix:
        return self.copy()

    # --- conversions ---

    def to_list(self) -> list[Any]:
        """Return nested lists of Python numbers (in kernels: of values)."""
        flat = [e.item() if isinstance(e, np.generic) else e for e in self._entries]
        return flat if self.ndim == 1 else [flat[i * self.m : (i + 1) * self.m] for i in range(self.n)]

    def to_numpy(self) -> Array:
        """Return a NumPy array of this shape."""
        return np.array(self._entries).reshape(self.shape)

    def cast(self, dtype: object) -> Matrix:
        """Return the matrix with all entries converted to ``dtype``."""
        t = arithmetic.as_dtype(dtype)
        return make([typed(e, t) for e in self._entries], self.shape)

    def fill(self, value: object) -> None:
        """Set all entries to ``value``."""
        self[(slice(None),) * self.ndim] = value

    def filled(self, value: object) -> Matrix:
        """Return a copy with all entries set to ``value``."""
        return self.with_entry((slice(None),) * self.ndim, value)

    # --- unary, products ---

    def __neg__(self) -> Matrix:
        return make([-e for e in self._entries], self.shape)

    def __pos__(self) -> Matrix:
        return self

    def __invert__(self) -> Matrix:
        return make([arithmetic.bit_not(e) for e in self._entries], self.shape)

    def __abs__(self) -> Matrix:
        return make([abs(e) for e in self._entries], self.shape)

    def __matmul__(self, other: object) -> Any:
        b = _operand(other)
        if not isinstance(b, Matrix):
            raise type_error(f"`@` needs matrices or vectors on both sides, got {scalar.describe(other)}", "`*` multiplies by a number")
        if self.ndim == 1 and b.ndim == 1:
            return self.dot(b)
        rows, inner = (1, self.n) if self.ndim == 1 else self.shape
        if inner != b.n:
            raise type_error(f"`@` of a {shape_name(self.shape)} and a {shape_name(b.shape)}: {inner} columns, but {b.n} rows")
        entries = dense_algebra.product(self._entries, b._entries, rows, inner, b.m)
        if self.ndim == 1 or b.ndim == 1:
            return make(entries, (len(entries),))
        return make(entries, (rows, b.m))

    def __rmatmul__(self, other: object) -> Any:
        a = _operand(other)
        if not isinstance(a, Matrix):
            raise type_error(f"`@` needs matrices or vectors on both sides, got {scalar.describe(other)}", "`*` multiplies by a number")
        return a @ self

    def _other_vector(self, method: str, other: object) -> Matrix:
        b = _operand(other)
        if self.ndim != 1 or not isinstance(b, Matrix) or b.ndim != 1:
            raise type_error(f"`{method}` takes two vectors, got {scalar.describe(self)} and {scalar.describe(other)}")
        return b

    def dot(self, other: object) -> Any:
        """Return the inner product with ``other``, a vector of the same length."""
        b = self._other_vector("dot", other)
        if b.n != self.n:
            raise type_error(f"`dot` takes two vectors of one length, got {self.n} and {b.n} entries")
        return dense_algebra.dot(self._entries, b._entries)

    def cross(self, other: object) -> Any:
        """Return the cross product with ``other``: of 3-vectors a vector, of 2-vectors a scalar."""
        b = self._other_vector("cross", other)
        if self.n != b.n or self.n not in (2, 3):
            raise type_error(f"`cross` takes two vectors of 2 or of 3 entries, got {self.n} and {b.n}")
        entries = dense_algebra.cross(self._entries, b._entries)
        return entries[0] if self.n == 2 else make(entries, (3,))

    def outer_product(self, other: object) -> Matrix:
        """Return the matrix of all products of an entry of this vector and one of the other."""
        b = self._other_vector("outer_product", other)
        return make(dense_algebra.outer(self._entries, b._entries), (self.n, b.n))

    outer = outer_product

    def frobenius_inner(self, other: object) -> Any:
        """Return the sum of the products of entries with those of ``other`` at the same place."""
        return (self * other).sum()

    # --- reductions and norms ---

    def sum(self) -> Any:
        """Return the sum of the entries."""
        return functools.reduce(scalar.add, self._entries)

    def min(self) -> Any:
        """Return the smallest entry."""
        return functools.reduce(arithmetic.min, self._entries)

    def max(self) -> Any:
        """Return the largest entry."""
        return functools.reduce(arithmetic.max, self._entries)

    def any(self) -> Any:
        """Return whether an entry is not zero."""
        conditions: list[Scalar] = [scalar.truth(e) for e in self._entries]
        return functools.reduce(scalar.bit_or, conditions)

    def all(self) -> Any:
        """Return whether no entry is zero."""
        conditions: list[Scalar] = [scalar.truth(e) for e in self._entries]
        return functools.reduce(scalar.bit_and, conditions)

    def norm_sqr(self) -> Any:
        """Return the sum of the squares of the entries."""
        return dense_algebra.dot(self._entries, self._entries)

    def _safe_norm_sqr(self, eps: Scalar) -> Scalar:
        square: Scalar = self.norm_sqr()
        return square if is_number(eps) and eps == 0 else scalar.add(square, eps)

    def norm(self, eps: Scalar = 0) -> Any:
        """Return ``sqrt(norm_sqr + eps)``; a positive eps keeps the gradient at zero finite."""
        return arithmetic.sqrt(self._safe_norm_sqr(eps))

    def norm_inv(self, eps: Scalar = 0) -> Any:
        """Return ``1 / sqrt(norm_sqr + eps)``."""
        return arithmetic.rsqrt(self._safe_norm_sqr(eps))

    def normalized(self, eps: Scalar = 0) -> Matrix:
        """Return the vector divided by ``norm() + eps``."""
        length = self.norm()
        return _entrywise(scalar.truediv, (self, length if is_number(eps) and eps == 0 else scalar.add(length, eps)))

    # --- square matrices ---

    def transpose(self) -> Matrix:
        """Return the matrix with rows and columns exchanged."""
        if self.ndim == 1:
            raise type_error("a vector has no transpose", "`a.outer_product(b)` is a times the transpose of b, `a.dot(b)` the reverse")
        return make([self._entries[i * self.m + j] for j in range(self.m) for i in range(self.n)], (self.m, self.n))

    def _side_length(self, method: str) -> int:
        if self.ndim != 2 or self.n != self.m:
            raise type_error(f"`{method}` takes a square matrix, got {scalar.describe(self)}")
        return self.n

    def trace(self) -> Any:
        """Return the sum of the diagonal."""
        n = self._side_length("trace")
        return functools.reduce(scalar.add, self._entries[:: n + 1])

    def determinant(self) -> Any:
        """Return the determinant of a square matrix up to 8x8."""
        return dense_algebra.determinant(self._entries, self._side_length("determinant"))

    def inverse(self) -> Matrix:
        """Return the inverse of a square matrix up to 8x8; infinite or NaN if it is singular."""
        return make(dense_algebra.inverse(self._entries, self._side_length("inverse")), self.shape)

    # --- constructors ---

    @classmethod
    def zero(cls, dt: object, n: int, m: int | None = None) -> Matrix:
        """Return zeros of type ``dt``: a vector of n, or n x m."""
        return constant_matrix(0, dt, n, m)

    @classmethod
    def one(cls, dt: object, n: int, m: int | None = None) -> Matrix:
        """Return ones of type ``dt``: a vector of n, or n x m."""
        return constant_matrix(1, dt, n, m)

    @staticmethod
    def unit(n: int, i: int, dt: object = None) -> Matrix:
        """Return the vector of n entries of type ``dt`` with 1 at i and 0 elsewhere. Raises SpirogradIndexError if there is no entry i."""
        if not 0 <= i < n:
            raise SpirogradIndexError(f"there is no unit vector {i} of {n} entries", location(), f"i counts from 0 to {n - 1}")
        return Matrix([int(k == i) for k in range(n)], dt=int if dt is None else dt)

    @staticmethod
    def identity(dt: object, n: int) -> Matrix:
        """Return the n x n identity of type ``dt``."""
        return Matrix([[int(i == j) for j in range(n)] for i in range(n)], dt=dt)

    @staticmethod
    def diag(dim: int, val: Scalar) -> Matrix:
        """Return the dim x dim matrix with ``val`` on the diagonal, zeros elsewhere."""
        zero = arithmetic.zero(val)
        return make([val if i == j else zero for i in range(dim) for j in range(dim)], (dim, dim))

    @staticmethod
    def rows(rows: Sequence[object]) -> Matrix:
        """Return the matrix with the vectors ``rows`` as rows."""
        entries, shape = _entries_and_shape(list(rows))
        if len(shape) != 2:
            raise type_error("`rows` takes a list of vectors")
        return make(entries, shape)

    @staticmethod
    def cols(cols: Sequence[object]) -> Matrix:
        """Return the matrix with the vectors ``cols`` as columns."""
        return Matrix.rows(cols).transpose()

    # --- data of matrices ---

    @classmethod
    def field(
        cls, n: int, m: int, dtype: object, shape: object = None, *args: Any, **options: Unpack[fields.FieldOptions]
    ) -> fields.MatrixField:
        """Return a field of n x m matrices; options as of `field`, and ``layout``: Layout.AOS or Layout.SOA."""
        return fields.matrix_field((n, m), dtype, make_host_element, shape, *args, **options)

    @classmethod
    def ndarray(
        cls, n: int, m: int, dtype: object, shape: object, needs_grad: bool = False, needs_dual: bool = False, *, fill: object = None
    ) -> ndarrays.MatrixNdarray:
        """Return an array of n x m matrices; ``shape``, ``needs_grad``, ``needs_dual``, ``fill``: as of `ndarray`."""
        return ndarrays.element_ndarray((n, m), dtype, make_host_element, shape, needs_grad, needs_dual, fill=fill)

    @classmethod
    def tensor(cls, n: int, m: int, dtype: object, shape: object, **options: Unpack[tensors.TensorOptions]) -> tensors.MatrixTensor:
        """Return a tensor of n x m matrices; options as of `tensor`."""
        return tensors.element_tensor((n, m), dtype, make_host_element, shape, **options)


for _name, _function in _OPERATORS.items():
    _install_operator(_name, _function)


class Vector(Matrix):
    """A vector: ``Vector([1, 2, 3], dt=f32)``. ``data``: its entries; a list of rows makes a matrix."""

    __slots__ = ()

    @classmethod
    def field(  # type: ignore[override]
        cls, n: int, dtype: object, shape: object = None, *args: Any, **options: Unpack[fields.FieldOptions]
    ) -> fields.MatrixField:
        """Return a field of vectors of n; options as of `field`, and ``layout``: Layout.AOS or Layout.SOA."""
        return fields.matrix_field((n,), dtype, make_host_element, shape, *args, **options)

    @classmethod
    def ndarray(  # type: ignore[override]
        cls, n: int, dtype: object, shape: object, needs_grad: bool = False, needs_dual: bool = False, *, fill: object = None
    ) -> ndarrays.MatrixNdarray:
        """Return an array of vectors of n; ``shape``, ``needs_grad``, ``needs_dual``, ``fill``: as of `ndarray`."""
        return ndarrays.element_ndarray((n,), dtype, make_host_element, shape, needs_grad, needs_dual, fill=fill)

    @classmethod
    def tensor(cls, n: int, dtype: object, shape: object, **options: Unpack[tensors.TensorOptions]) -> tensors.MatrixTensor:  # type: ignore[override]
        """Return a tensor of vectors of n; options as of `tensor`."""
        return tensors.element_tensor((n,), dtype, make_host_element, shape, **options)


def constant_matrix(value: int, dt: object, n: int, m: int | None) -> Matrix:
    """Return a vector of n or matrix of n x m entries, all ``value`` as type ``dt``."""
    t = arithmetic.as_dtype(dt)
    size = n if m is None else n * m
    return make([typed(value, t) for _ in range(size)], (n,) if m is None else (n, m))


def _values_for(value: object, shape: Shape | None, count: int) -> list[Scalar]:
    """Return the scalars that assigning ``value`` to a scalar (shape None) or sub-matrix stores."""
    operand = _operand(value)
    if operand is None:
        raise type_error(f"an entry of a vector or matrix cannot be {scalar.describe(value)}")
    if not isinstance(operand, Matrix):
        return [operand] * count
    if shape is None or operand.shape != shape:
        what = "a scalar" if shape is None else f"a {shape_name(shape)}"
        raise type_error(f"{what} cannot be assigned a {shape_name(operand.shape)}")
    return list(operand._entries)


def _like(new: Scalar, old: Scalar) -> Scalar:
    """Return ``new`` in the type of the entry that it replaces (plain Python numbers have none)."""
    if isinstance(old, Value):
        return scalar.cast(new, old.dtype)
    if isinstance(old, np.generic):
        return typed(new, scalar.literal_type(old))
    if current_trace() is not None:
        return scalar.cast(new, scalar.literal_type(old))
    return new
