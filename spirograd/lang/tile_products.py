"""Products of tiles: row by row, or by the instruction that a device has for small matrices.

For the instruction the rows of a tile go through shared memory, from which each thread takes the entries that the instruction wants of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spirograd.base.dtypes import VOID, DType, Vec, f16, f32, i32
from spirograd.base.matrix_shapes import LANES, SHAPES, MatrixShape, Place
from spirograd.ir import ops as ir
from spirograd.ir.whole_groups import are_whole
from spirograd.lang import arithmetic, groups, scalar
from spirograd.lang.context import language_options
from spirograd.lang.groups import SharedArray
from spirograd.lang.scalar import Value

# The other threads of a group: values by the row of the thread that has them, see `tiles.values_of_rows`.
Exchange = Callable[[Sequence[Value], Sequence[int]], list[list[Value]]]


def instruction_for(factor: DType, total: DType) -> str | None:
    """The product of `matrix_shapes` that this device, and groups of this size, can use: only groups that lack no thread."""
    options, scope = language_options(), groups.current("a tile")
    begin, end = scope.count
    if scope.size != LANES or options.subgroup_size != LANES or not are_whole(begin, end, LANES):
        return None
    return next((name for name in options.matrix_shapes if (SHAPES[name].factor, SHAPES[name].total) == (factor, total)), None)


def by_rows(c: list[Value], a: list[Value], b: list[Value], sign: Any, transposed: bool, exchange: Exchange) -> list[Value]:
    """The row of this thread of c plus or minus a @ b, from the rows of all: sums in order of the inner index."""
    rows, total = exchange(b, range(len(b))), c[0].dtype  # rows[j][k]: entry j of row k
    factors = [scalar.cast(entry, total) for entry in a]
    out = []
    for j, entry in enumerate(c):
        for k, factor in enumerate(factors):
            other = rows[k][j] if transposed else rows[j][k]
            entry = sign(entry, scalar.mul(factor, scalar.cast(other, total)))
        out.append(entry)
    return out


class _Staged:
    """A tile in shared memory: a row for each of its threads, and one that the threads beyond share."""

    def __init__(self, rows: list[Value], me: Value, arrays: dict[Any, Any], use: str) -> None:
        self.n, t = len(rows), rows[0].dtype
        self._stride = self.n + 1  # neighbouring threads use different banks
        if (use, t) not in arrays:
            arrays[use, t] = SharedArray((self.n + 1) * self._stride, t)
        self._ref = arrays[use, t].ref
        self._mine = arithmetic.min(me, scalar.constant(self.n, i32)) * self._stride
        for k, entry in enumerate(rows):
            scalar.builder().store(self._ref, (self._mine + k).op, entry.op)

    def row(self) -> list[Value]:
        """The row of this thread; undefined beyond the last."""
        return [Value(scalar.builder().load(self._ref, (self._mine + k).op)) for k in range(self.n)]

    def at(self, place: Place, lane: Value, row: int, column: int, transposed: bool = False) -> Value:
        """The index of what a lane has at a place of the block that begins at a row and a column."""
        quad, within = scalar.emit(ir.shr, lane, scalar.constant(2, i32)), scalar.emit(ir.and_, lane, scalar.constant(3, i32))
        at = [quad * part[0] + within * part[1] + (part[2] + first) for part, first in ((place.row, row), (place.column, column))]
        if transposed:
            at.reverse()
        return scalar.as_value(at[0] * self._stride + at[1])

    def load(self, index: Value) -> Value:
        return Value(scalar.builder().load(self._ref, index.op))

    def store(self, index: Value, value: Value) -> None:
        scalar.builder().store(self._ref, index.op, value.op)


def by_instruction(name: str, c: list[Value], a: list[Value], b: list[Value], negative: bool, transposed: bool) -> list[Value]:
    """As `by_rows`, by the product ``name``; the order of sums is the device's."""
    shape, scope = SHAPES[name], groups.current("a tile")
    me, n, builder = groups.thread_number(scope), len(c), scalar.builder()
    left = _Staged([scalar.emit(ir.neg, entry) for entry in a] if negative else a, me, scope.exchanges, f"left{n}")
    right = _Staged(b, me, scope.exchanges, f"right{n}")
    total = _Staged(c, me, scope.exchanges, f"total{n}")
    builder.emit(ir.workgroup_barrier, type=VOID)
    for row in range(0, n, shape.rows):
        for column in range(0, n, shape.columns):
            places = [total.at(place, me, row, column) for place in shape.c]
            entries = [total.load(place) for place in places]
            for k in range(0, n, shape.depth):
                factors = [left.load(left.at(place, me, row, k)) for place in shape.a]
                factors += [right.load(right.at(place, me, k, column, transposed)) for place in shape.b]
                entries = _product(name, shape, [*factors, *entries])
            for place, entry in zip(places, entries):
                total.store(place, entry)
    builder.emit(ir.workgroup_barrier, type=VOID)
    found = total.row()
    builder.emit(ir.workgroup_barrier, type=VOID)
    return [arithmetic.select(me < n, new, old) for new, old in zip(found, c)]


def _product(name: str, shape: MatrixShape, operands: list[Value]) -> list[Value]:
    builder, count = scalar.builder(), len(shape.c)
    vector = builder.emit(ir.subgroup_matrix_fma, *[o.op for o in operands], attr=name, type=Vec(count, shape.total))
    return [Value(builder.emit(ir.extract, vector, builder.const(k), type=shape.total)) for k in range(count)]


def takes(factor: DType, total: DType) -> bool:
    """Whether tiles of ``factor`` can be multiplied and added to one of ``total``: f16 has sums of f32."""
    return total is (f32 if factor is f16 else factor)
