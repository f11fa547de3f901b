"""Bounds of the absolute values of floats: right, and found in time that grows with the number of operations."""

import math

import pytest

from spirograd.base.dtypes import f32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.transforms.math.magnitudes import Magnitudes


def test_bounds() -> None:
    b = Builder()
    (unknown,) = b.begin(f32)
    sine, three = b.emit(ops.sin, unknown), b.const(-3.0, f32)
    wanted = [
        (sine, 1.0), (three, 3.0), (b.emit(ops.add, sine, three), 4.0), (b.emit(ops.sub, sine, three), 4.0),
        (b.emit(ops.mul, three, three), 9.0), (b.emit(ops.fma, three, three, sine), 10.0),
        (b.emit(ops.min_, sine, three), 3.0), (b.emit(ops.neg, three), 3.0),
        (unknown, math.inf), (b.emit(ops.mul, unknown, b.const(0.0, f32)), math.inf), (b.emit(ops.max_, sine, unknown), math.inf),
        (b.const(math.nan, f32), math.inf), (b.const(math.inf, f32), math.inf),
    ]  # fmt: skip
    found = Magnitudes()
    assert [found.most(value) for value, _ in wanted] == [bound for _, bound in wanted]


@pytest.mark.parametrize("known", [False, True])
def test_values_that_are_used_twice(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    (y,) = b.begin(f32)
    if known:
        y = b.emit(ops.mul, b.emit(ops.cos, y), b.const(0.5, f32))
    for _ in range(60):
        y = b.emit(ops.add, b.emit(ops.mul, y, y), b.emit(ops.mul, b.const(0.25, f32), y))
    looked, plain = [], Magnitudes._bound
    monkeypatch.setattr(Magnitudes, "_bound", lambda self, value, depth: looked.append(value) or plain(self, value, depth))
    assert Magnitudes().most(y) == math.inf, "too deep"
    assert len(looked) < 32 * 60 * 4
