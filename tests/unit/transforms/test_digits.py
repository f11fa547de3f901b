"""Digits of a number that are put together again, against Python's arithmetic."""

from __future__ import annotations

import random

from spirograd.base.dtypes import i32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.transforms.lowering.digits import Digit, digit_of, joined, offset_of


def truncated(op: Op, number: int) -> int:
    """The value of ``op`` where the parameter is ``number``."""
    if op.code is ops.param:
        return number
    a, n = truncated(op.args[0], number), int(op.args[1].attr)
    quotient = abs(a) // n * (1 if a >= 0 else -1)
    return quotient if op.code is ops.idiv else a - quotient * n


def value(digit: Digit, number: int) -> int:
    found = abs(truncated(digit.base, number)) // digit.div
    found = found % digit.mod if digit.mod else found
    return found * digit.scale * (1 if truncated(digit.base, number) >= 0 else -1)


def chain(b: Builder, n: Op, r: random.Random) -> Op:
    for _ in range(r.randint(0, 4)):
        n = b.emit(r.choice((ops.idiv, ops.irem)), n, b.const(r.choice((1, 2, 3, 4, 6, 8, 12, 64, 512)), i32))
    return n


def test_digits_have_the_value_of_what_they_were_made_from() -> None:
    r, b = random.Random(1), Builder()
    (n,) = b.begin(i32)
    for _ in range(500):
        op = chain(b, n, r)
        digit = digit_of(op)
        for number in [*range(-40, 40), *[r.randrange(-(2**31), 2**31) for _ in range(20)]]:
            assert value(digit, number) == truncated(op, number), (digit, number)


def test_sums_stay_the_same() -> None:
    """Of digits that follow one another, in any order, beside others."""
    r, b = random.Random(2), Builder()
    (n,) = b.begin(i32)
    fewer = 0
    for _ in range(300):
        digits, div, scale = [], r.choice((1, 3, 8)), r.choice((1, 4))
        for mod in [r.choice((1, 2, 5, 8)) for _ in range(r.randint(1, 4))]:
            digits.append(Digit(n, div, mod, scale))
            div, scale = div * mod, scale * r.choice((mod, mod, mod, 2))
        digits += [Digit(n, div, 0, scale), digit_of(chain(b, n, r))._replace(scale=r.choice((1, 2, 64)))]
        r.shuffle(digits)
        found = joined(digits)
        fewer += len(found) < len(digits)
        for number in [*range(-40, 40), *[r.randrange(-(2**20), 2**20) for _ in range(20)]]:
            assert sum(value(d, number) for d in found) == sum(value(d, number) for d in digits)
    assert fewer > 100


def test_the_cells_of_a_grid_of_blocks() -> None:
    """Memory that is walked in order: the address is the counter."""
    b = Builder()
    (n,) = b.begin(i32)

    def divided(op: Op, by: int) -> Op:
        return b.emit(ops.idiv, op, b.const(by, i32))

    def left(op: Op, of: int) -> Op:
        return b.emit(ops.irem, op, b.const(of, i32))

    inner = left(n, 512)
    cell, added = offset_of(b.emit(ops.add, divided(n, 512), b.const(2, i32)))
    parts = ((cell, 512), (divided(inner, 64), 64), (left(divided(inner, 8), 8), 8), (left(inner, 8), 1))
    assert added == 2
    assert joined([digit_of(op)._replace(scale=scale) for op, scale in parts]) == [Digit(n, 1, 0, 1)]
