"""Residues modulo powers of two, against the values that random expressions have."""

from __future__ import annotations

import random

from spirograd.base.dtypes import i16, i32, i64, u32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.congruences import UNKNOWN, Residue, Residues
from spirograd.ir.nodes import Op

_MASK = (1 << 32) - 1
_BINARY = {
    ops.add: lambda x, y: x + y,
    ops.sub: lambda x, y: x - y,
    ops.mul: lambda x, y: x * y,
    ops.and_: lambda x, y: x & y,
    ops.or_: lambda x, y: x | y,
}


def value(op: Op, params: dict[Op, int]) -> int:
    """The value of an expression modulo 2 ** 32."""
    if op in params:
        return params[op]
    if op.code is ops.const:
        return int(op.attr) & _MASK
    args = [value(a, params) for a in op.args]
    if op.code is ops.shl:
        return args[0] << args[1] & _MASK
    return args[0] if op.code in (ops.bitcast, ops.cast) else _BINARY[op.code](*args) & _MASK


def test_random_expressions() -> None:
    r, b = random.Random(7), Builder()
    params = b.begin(i32, i32)
    known = 0
    for _ in range(400):
        values: list[Op] = [*params, *[b.const(r.choice((0, 1, 2, 3, 4, 6, 8, -1, -4, 12, 64, 96, 8191, 1 << 20)), i32) for _ in range(4)]]
        for _ in range(r.randint(1, 8)):
            if r.random() < 0.25:
                values.append(b.emit(ops.shl, r.choice(values), b.const(r.randrange(5), i32)))
            else:
                values.append(b.emit(r.choice(list(_BINARY)), r.choice(values), r.choice(values)))
        found = Residues().of(values[-1])
        known += found.bits > 0
        for _ in range(20):
            numbers = {p: r.choice((r.getrandbits(32), r.randrange(16), 0, 1, _MASK)) for p in params}
            assert (value(values[-1], numbers) - found.residue) % (1 << found.bits) == 0, (values[-1], found)
            assert value(values[-1], numbers) % (1 << found.zeros) == 0
    assert known > 200


def test_rows_of_a_matrix() -> None:
    """What LLVM does not find out: the first column of a block, in rows of 512, from the second row on."""
    b = Builder()
    row, block = b.begin(i32, i32)
    left = b.emit(ops.sub, b.emit(ops.shl, block, b.const(2)), b.const(1), attr="nsw")
    place = b.emit(ops.add, b.emit(ops.mul, b.emit(ops.add, row, b.const(1)), b.const(512)), b.emit(ops.add, left, b.const(1)))
    assert Residues().of(place) == Residue(0, 2)
    assert Residues().of(b.emit(ops.add, place, b.const(-1))) == Residue(3, 2) and Residues().of(left).zeros == 0


def test_types() -> None:
    """Conversions between wide integers keep low bits. Of narrow ones nothing is known."""
    b = Builder()
    n, narrow, other = b.begin(i32, i16, i64)
    twelve = b.emit(ops.mul, n, b.const(12))
    wide = b.cast(b.emit(ops.bitcast, twelve, type=u32), i64)
    assert Residues().of(twelve) == Residue(0, 2) == Residues().of(wide)
    assert Residues().of(b.emit(ops.mul, wide, b.const(8, i64))) == Residue(0, 5)
    assert Residues().of(b.cast(b.emit(ops.mul, narrow, b.const(4, i16)), i32)) == UNKNOWN == Residues().of(other)
    assert Residues().of(b.emit(ops.shl, n, n)) == UNKNOWN
