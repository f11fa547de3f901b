"""Products of tiles: row by row, or by the matrix instruction of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spirograd.base.dtypes import DType, Vec, f16, f32
from spirograd.base.matrix_shapes import LANES, SHAPES, TOTAL, TRANSPOSED, A, B, held_entries, shape_for
from spirograd.ir import ops as ir
from spirograd.ir.whole_groups import are_whole
from spirograd.lang import groups, scalar
from spirograd.lang.context import language_options
from spirograd.lang.scalar import Value

# A function that reads the values of other threads of a group, see `tiles.column_reader`.
Reader = Callable[[Sequence[Value]], Callable[[int, int], Value]]


def has_instruction(factor: DType, total: DType) -> bool:
    """Return whether this device, and groups of this size, multiply tiles of ``factor`` that add up to ``total`` by instructions.

    Only groups without missing threads can.
    """
    options, scope = language_options(), groups.current("a tile")
    begin, end = scope.count
    complete = scope.size == LANES and are_whole(begin, end, LANES)
    shape = SHAPES.get(shape_for(options.matrix_shapes, total) or "")
    return complete and shape is not None and shape.lanes == options.subgroup_size and shape.factor is factor


def fused(a: Value, b: Value, c: Value) -> Value:
    """Return a * b + c. Arithmetic of tiles rounds it once, where the device can: nothing that users write is contracted, so no sum of
    theirs depends on it."""
    return scalar.emit(ir.fma, a, b, c)


def by_rows(c: list[Value], a: list[Value], b: list[Value], negative: bool, transposed: bool, reader: Reader) -> list[Value]:
    """Return the row of this thread of c plus or minus a @ b, from the rows of all: sums in order of the inner index."""
    read, total, out = reader(b), c[0].dtype, list(c)
    for k, entry in enumerate(a):
        factor = scalar.cast(entry, total)
        if negative:
            factor = scalar.emit(ir.neg, factor)
        for j in range(len(c)):
            other = read(j, k) if transposed else read(k, j)
            out[j] = fused(factor, scalar.cast(other, total), out[j])
    return out


def by_instruction(c: list[Value], a: list[Value], b: list[Value], negative: bool, transposed: bool) -> list[Value]:
    """Return the same as `by_rows`, by instructions; the order of sums is the device's. Threads beyond the rows get zeros.

    Between products in a row, and in loops of them, the tile stays in the instruction's layout: see the pass `keep_tile_entries`.
    """
    left = [scalar.emit(ir.neg, entry) for entry in a] if negative else a
    n, shape = len(c), SHAPES[shape_for(language_options().matrix_shapes, c[0].dtype) or ""]
    matrices = ((left, A), (b, TRANSPOSED if transposed else B), (c, TOTAL))
    entries = [entry for rows, use in matrices for entry in _parts(ir.tile_entries, rows, shape.held_of_tile(n, use), use)]
    return _parts(ir.tile_rows, _parts(ir.tile_product, entries, held_entries(n)), n)


def _parts(code: ir.OpCode, operands: Sequence[Value], count: int, attr: object = None) -> list[Value]:
    """Return the entries of a vector of ``count``, of the type of the last operand."""
    builder, t = scalar.builder(), operands[-1].dtype
    vector = builder.emit(code, *[o.op for o in operands], attr=attr, type=Vec(count, t))
    return [Value(builder.emit(ir.extract, vector, builder.const(k), type=t)) for k in range(count)]


def takes(factor: DType, total: DType) -> bool:
    """Return whether tiles of ``factor`` can be multiplied and added to one of ``total``: f16 has sums of f32."""
    return total is (f32 if factor is f16 else factor)
