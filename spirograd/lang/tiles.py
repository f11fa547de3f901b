"""Tiles: square matrices of which each of 16 or 32 threads of a group holds one row.

A tile is a struct with one member, ``r``: the row of the thread, a vector. Threads read each other's rows through the subgroup, or through
shared memory where subgroups are smaller than a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from spirograd.base.dtypes import VOID, DType, f16, f32, f64, i32
from spirograd.ir import ops as ir
from spirograd.lang import arithmetic, groups, scalar, tile_products
from spirograd.lang.annotations import template
from spirograd.lang.context import GroupScope, language_options
from spirograd.lang.frontend.func import func
from spirograd.lang.matrix import Matrix, make
from spirograd.lang.scalar import Scalar, Value, describe, type_error
from spirograd.lang.struct import Struct, make_struct
from spirograd.lang.tile_products import fused

_LARGEST_GROUP = 32


def row_of_thread(size: int) -> Value:
    """Return the number of the row of this thread in a tile; for threads beyond its size, a larger number."""
    name = f"Tile{size}x{size}"
    scope = groups.current(name)
    if not size <= scope.size <= _LARGEST_GROUP:
        hint = f"write `loop_config(block_dim={name}.SIZE)` before the loop"
        raise type_error(f"a {name} needs groups of {size} to {_LARGEST_GROUP} threads, and those of this loop have {scope.size}", hint)
    threads = groups.threads(scope)
    begin, end = scope.count
    if begin.code is ir.const and end.code is ir.const and threads.op.code is not ir.const:
        count = end.attr - begin.attr
        problem = f"{count} iterations leave a group with fewer threads than the {scope.size} of the others, and a {name} needs them all"
        raise type_error(problem, f"loop over a multiple of {scope.size}")
    return groups.thread_number(scope)


def column_reader(values: Sequence[Value]) -> Callable[[int, int], Value]:
    """Return a function that reads value k of the thread with some row, given the row and k.

    Each call reads in place of use, so that no more values are live than one. Through shared memory, all threads wait here for each other,
    before and after it has the values.
    """
    scope = groups.current("a tile")
    if _reads_subgroups(scope):
        return lambda row, k: _read(values[k], row)
    b, shared, me = scalar.builder(), _exchange(scope, values[0].dtype), groups.thread_number(scope).op
    for k, value in enumerate(values):
        b.store(shared.ref, b.emit(ir.add, b.const(k * scope.size, i32), me), value.op)
    b.emit(ir.workgroup_barrier, type=VOID)
    loaded = [[Value(b.load(shared.ref, b.const(k * scope.size + row, i32))) for row in range(scope.size)] for k in range(len(values))]
    b.emit(ir.workgroup_barrier, type=VOID)
    return lambda row, k: loaded[k][row]


def _reads_subgroups(scope: GroupScope) -> bool:
    options = language_options()
    return options.reads_subgroups and options.subgroup_size >= scope.size


def _read(value: Value, row: int) -> Value:
    return value if value.op.code is ir.const else scalar.emit(ir.subgroup_read, value, scalar.constant(row, i32), t=value.dtype)


def _exchange(scope: GroupScope, dtype: DType) -> groups.SharedArray:
    """Return shared memory for a row of each thread, the same for all uses in a loop."""
    if dtype not in scope.exchanges:
        scope.exchanges[dtype] = groups.SharedArray(_LARGEST_GROUP * scope.size, dtype)
    return scope.exchanges[dtype]


# --- methods -----------------------------------------------------------------------------------------------------------------


def _check_precise(t: DType, what: str) -> None:
    if t is f16:
        raise type_error(f"`{what}` takes tiles of f32 and f64; those of f16 are factors of products", "declare the tile with `sg.f32`")


@arithmetic.traceable
def _identity_row(row: Matrix) -> Matrix:
    n = len(row.entries)
    at, t = row_of_thread(n), row.entries[0].dtype
    return make([scalar.select(scalar.equal(at, k), scalar.cast(1, t), scalar.cast(0, t)) for k in range(n)], (n,))


@arithmetic.traceable
def _factorised_row(row: Matrix, eps: Scalar) -> Matrix:
    """Factorise column by column: an entry loses the products of all columns before its own, in their order. Entries above the diagonal
    stay.

    So only the threads that have a row of the column select what they keep, once a column. The pivot takes ``eps`` of its own thread.
    """
    r, n = list(row.entries), len(row.entries)
    _check_precise(r[0].dtype, "cholesky_")
    at, eps = row_of_thread(n), scalar.cast(eps, r[0].dtype)
    columns = _Columns(n, r[0].dtype)
    for k in range(n):
        reduced = r[k]
        for j in range(k):
            reduced = fused(scalar.emit(ir.neg, r[j]), columns.entry(j, k), reduced)
        on_diagonal = scalar.equal(at, k)
        column = arithmetic.select(on_diagonal, arithmetic.max(reduced, eps), reduced)
        pivot = columns.append(column)
        scale = arithmetic.rsqrt(pivot)
        below = column * scale
        r[k] = arithmetic.select(at > k, below, arithmetic.select(on_diagonal, arithmetic.sqrt(pivot), r[k]))
        columns.divide_last(r[k], scale)
    columns.end()
    return make(r, (n,))


class _Columns:
    """The columns of a factor while it is computed, which threads read of each other.

    Through shared memory a column goes before it is divided by its pivot's root, so that one barrier a column is enough; readers divide.
    """

    def __init__(self, n: int, dtype: DType) -> None:
        self._scope = groups.current("a tile")
        self._shared = None if _reads_subgroups(self._scope) else _exchange(self._scope, dtype)
        self._columns: list[Value] = []
        self._scales: list[Value] = []

    def append(self, column: Value) -> Value:
        """Add the next column, not divided yet, and return its entry on the diagonal."""
        k = len(self._columns)
        self._columns.append(column)
        if self._shared is None:
            return _read(column, k)
        b = scalar.builder()
        b.store(self._shared.ref, b.emit(ir.add, b.const(k * self._scope.size, i32), groups.thread_number(self._scope).op), column.op)
        b.emit(ir.workgroup_barrier, type=VOID)
        return self._loaded(k, k)

    def divide_last(self, column: Value, scale: Value) -> None:
        """Set the last column to ``column``, which is the appended one times ``scale``."""
        self._columns[-1] = column
        self._scales.append(scale)

    def entry(self, column: int, row: int) -> Value:
        """Return an entry below the diagonal."""
        if self._shared is None:
            return _read(self._columns[column], row)
        return self._loaded(column, row) * self._scales[column]

    def end(self) -> None:
        """Let all threads have read before others use the shared memory."""
        if self._shared is not None:
            scalar.builder().emit(ir.workgroup_barrier, type=VOID)

    def _loaded(self, column: int, row: int) -> Value:
        assert self._shared is not None
        b = scalar.builder()
        return Value(b.load(self._shared.ref, b.const(column * self._scope.size + row, i32)))


@arithmetic.traceable
def _solved_row(lower: Matrix, row: Matrix) -> Matrix:
    """Solve x L^T = row for x, entry by entry."""
    l, x, n = lower.entries, list(row.entries), len(row.entries)
    _check_precise(x[0].dtype, "solve_triangular_")
    row_of_thread(n)
    factor = column_reader(l)
    for k in range(n):
        for j in range(k):
            x[k] = fused(scalar.emit(ir.neg, x[j]), factor(k, j), x[k])
        x[k] = x[k] * (1 / factor(k, k))
    return make(x, (n,))


@arithmetic.traceable
def _row_with_product(tile: Struct, a: object, b: object, negative: bool, transposed: object) -> Matrix:
    row = tile.r.entries
    n, t = len(row), row[0].dtype
    row_of_thread(n)
    left, right = _row_of_factor(a, n), _row_of_factor(b, n)
    types = left[0].dtype, right[0].dtype
    if types[0] is not types[1] or not tile_products.takes(types[0], t):
        raise type_error(f"tiles of {types[0]} and {types[1]} have no product of {t}", "factors have one type; those of f16 add up to f32")
    if not tile_products.has_instruction(types[0], t):
        return make(tile_products.by_rows(list(row), left, right, negative, bool(transposed), column_reader), (n,))
    return make(tile_products.by_instruction(list(row), left, right, negative, bool(transposed)), (n,))


def _row_of_factor(tile: object, n: int) -> list[Value]:
    if not is_tile(tile) or len(tile.r.entries) != n:
        raise type_error(f"a product has two tiles of {n} rows, not {describe(tile)}")
    return list(tile.r.entries)


@func
def add_product_(self, A: template(), B: template(), transposed: template() = False):  # type: ignore[no-untyped-def, valid-type]
    self.r = _row_with_product(self, A, B, False, transposed)


@func
def subtract_product_(self, A: template(), B: template(), transposed: template() = False):  # type: ignore[no-untyped-def, valid-type]
    self.r = _row_with_product(self, A, B, True, transposed)


@func
def eye_(self):  # type: ignore[no-untyped-def]
    self.r = _identity_row(self.r)


@func
def cholesky_(self, eps):  # type: ignore[no-untyped-def]
    self.r = _factorised_row(self.r, eps)


@func
def solve_triangular_(self, B: template(), lower: template() = True):  # type: ignore[no-untyped-def, valid-type]
    _check_solve(self, B, lower)
    B.r = _solved_row(self.r, B.r)


@arithmetic.traceable
def _check_solve(tile: Struct, other: object, lower: object) -> None:
    if not is_tile(other) or len(other.r.entries) != len(tile.r.entries):
        raise type_error(f"`solve_triangular_` takes a tile of the same size, not {describe(other)}")
    if lower is not True:
        raise type_error("`solve_triangular_` solves with lower triangles only", "omit `lower`")


_METHODS: dict[str, Callable[..., object]] = {
    "eye_": eye_,
    "cholesky_": cholesky_,
    "solve_triangular_": solve_triangular_,
    "add_product_": add_product_,
    "subtract_product_": subtract_product_,
}


def is_tile(x: object) -> TypeGuard[Struct]:
    """Return whether ``x`` is a tile of a kernel."""
    return isinstance(x, Struct) and x.methods is _METHODS


class TileType:
    """Square matrices of ``SIZE`` rows, each in one thread of a group of that many: ``zeros`` and ``eye`` make them in kernels.

    ``t[:] = a[r0:r1, c0:c1]`` loads a tile, ``a[r0:r1, c0:c1] = t`` stores it; ``a`` is a field, an array, a view or a shared array. Rows
    and columns that there are not, in the slice or in ``a``, are left alone. ``t -= outer(u, v)`` subtracts a product of columns;
    ``t.eye_()`` makes it the identity; ``t.cholesky_(eps)`` replaces its lower triangle by L with ``L @ L^T == t`` (diagonal entries are at
    least the root of eps), ``L.solve_triangular_(B)`` replaces the tile B by X with ``X @ L^T == B``.
    ``t.add_product_(A, B)`` adds the product of two tiles, ``A @ B^T`` with ``transposed=True``; ``t.subtract_product_`` subtracts it.
    Factors of f16 have a product of f32. ``t.r`` is the row of this thread.

    The loop needs ``loop_config(block_dim=SIZE)``, and all threads of a group have to come to an operation together.
    """

    __sg_traceable__ = True

    def __init__(self, size: int) -> None:
        self.SIZE = size

    def __repr__(self) -> str:
        return f"Tile{self.SIZE}x{self.SIZE}"

    def zeros(self, dtype: object = None) -> Any:
        """Return a tile of zeros of ``dtype``: f32, f64, or f16 for the factors of products; by default ``default_fp``. Raises
        SpirogradTypeError for another type, and where groups have fewer threads than the tile has rows."""
        t = language_options().default_fp if dtype is None else arithmetic.as_dtype(dtype)
        if t not in (f16, f32, f64):
            raise type_error(f"a {self!r} is of f16, f32 or f64, not of {t}")
        row_of_thread(self.SIZE)
        scalar.trace_of().tiles = True
        return make_struct({"r": make([scalar.constant(0, t) for _ in range(self.SIZE)], (self.SIZE,))}, _METHODS)

    def eye(self, dtype: object = None) -> Any:
        """Return the identity, with the arguments of `zeros`."""
        tile = self.zeros(dtype)
        return tile.with_entries({"r": _identity_row(tile.r)})


Tile16x16, Tile32x32 = TileType(16), TileType(32)


class Outer:
    """A product of a column and a row, each with an entry in each thread: see `outer`."""

    __sg_traceable__ = True

    def __init__(self, a: object, b: object) -> None:
        self.a, self.b = a, b

    def __sg_describe__(self) -> str:
        return "an outer product"


@arithmetic.traceable
def outer(a: object, b: object) -> Outer:
    """Return the product of two columns whose entries the threads of a group hold, for ``t -= outer(a, b)`` and ``t += outer(a, b)`` of a
    tile t.

    ``a``, ``b``: a number of each thread, or a slice of memory with one axis, as in ``m[r0:r1, column]``; threads beyond it have 0. Raises
    SpirogradTypeError for other values.
    """
    return Outer(a, b)


def updated(tile: Struct, a: Value, b: Value, negative: bool) -> Struct:
    """Return a tile plus or minus the product of ``a`` and the ``b`` of each row."""
    row = tile.r.entries
    n, dtype = len(row), row[0].dtype
    _check_precise(dtype, "outer")
    row_of_thread(n)
    mine, others = scalar.cast(a, dtype), column_reader([scalar.cast(b, dtype)])
    factor = scalar.emit(ir.neg, mine) if negative else mine
    return tile.with_entries({"r": make([fused(factor, others(k, 0), x) for k, x in enumerate(row)], (n,))})
