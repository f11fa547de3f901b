"""Ranges of quotients and remainders, against all pairs of numbers in small ranges."""

from __future__ import annotations

from itertools import product

import pytest

from spirograd.base.dtypes import i32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.integer_ranges import Range, range_of
from spirograd.ir.ops import OpCode

RANGES = [Range(low, high) for low, high in product(range(-6, 7), repeat=2) if low <= high]


def result(code: OpCode, a: int, b: int) -> int:
    """Return what kernels compute; a division by 0 gives 0."""
    if not b:
        return 0
    if code in (ops.idiv, ops.irem):
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if code is ops.idiv else a - quotient * b
    return a // b if code is ops.floordiv else a % b


@pytest.mark.parametrize("code", [ops.idiv, ops.floordiv, ops.irem, ops.floormod], ids=lambda code: code.name)
def test_quotients_and_remainders(code: OpCode) -> None:
    for of_a, of_b in product(RANGES, [Range(low, high) for low, high in RANGES if low >= 0]):
        b = Builder()
        b.begin()
        x, y = b.const(0, i32), b.const(0, i32)
        value = b.emit(code, x, y, type=i32)
        found = range_of(value, {x: of_a, y: of_b})
        for m, n in product(range(of_a.low, of_a.high + 1), range(of_b.low, of_b.high + 1)):
            assert found.low <= result(code, m, n) <= found.high, (of_a, of_b, m, n, found)


def test_extents_are_not_negative() -> None:
    b = Builder()
    b.begin()
    assert range_of(b.emit(ops.shape, attr=(0, 0), type=i32), {}) == Range(0, int(i32.max))
