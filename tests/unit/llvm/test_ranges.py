"""What is known of floats: exactly where it holds whatever the operands are."""

import pytest

from spirograd.base.artifact import Slot
from spirograd.base.dtypes import f32, i32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef
from spirograd.llvmgen.ranges import SMALLEST_NORMAL_F32, is_at_least

pytestmark = pytest.mark.optimized

CASES = {
    "x*x + 1e-3": (lambda b, x, y: b.emit(ops.add, b.emit(ops.mul, x, x), b.const(1e-3, f32)), True),
    "1e-3 + x*x": (lambda b, x, y: b.emit(ops.add, b.const(1e-3, f32), b.emit(ops.mul, x, x)), True),
    "x*x + y*y + 1": (
        lambda b, x, y: b.emit(ops.add, b.emit(ops.add, b.emit(ops.mul, x, x), b.emit(ops.mul, y, y)), b.const(1.0, f32)),
        True,
    ),
    "fma(x, x, 1)": (lambda b, x, y: b.emit(ops.fma, x, x, b.const(1.0, f32)), True),
    "fma(x, x, fma(y, y, 1))": (lambda b, x, y: b.emit(ops.fma, x, x, b.emit(ops.fma, y, y, b.const(1.0, f32))), True),
    "abs(x) + 1": (lambda b, x, y: b.emit(ops.add, b.emit(ops.abs_, x), b.const(1.0, f32)), True),
    "sqrt(x) + 1": (lambda b, x, y: b.emit(ops.add, b.emit(ops.sqrt, x), b.const(1.0, f32)), True),
    "2": (lambda b, x, y: b.const(2.0, f32), True),
    "x": (lambda b, x, y: x, False),
    "x*x": (lambda b, x, y: b.emit(ops.mul, x, x), False),
    "x*y + 1": (lambda b, x, y: b.emit(ops.add, b.emit(ops.mul, x, y), b.const(1.0, f32)), False),
    "x + 1": (lambda b, x, y: b.emit(ops.add, x, b.const(1.0, f32)), False),
    "x*x - 1": (lambda b, x, y: b.emit(ops.sub, b.emit(ops.mul, x, x), b.const(1.0, f32)), False),
    "x*x + -1": (lambda b, x, y: b.emit(ops.add, b.emit(ops.mul, x, x), b.const(-1.0, f32)), False),
    "x*x + 1e-40": (lambda b, x, y: b.emit(ops.add, b.emit(ops.mul, x, x), b.const(1e-40, f32)), False),
    "fma(x, y, 1)": (lambda b, x, y: b.emit(ops.fma, x, y, b.const(1.0, f32)), False),
    "fma(x, x, y)": (lambda b, x, y: b.emit(ops.fma, x, x, y), False),
    "nan": (lambda b, x, y: b.const(float("nan"), f32), False),
}


@pytest.mark.parametrize("text", CASES)
def test_normal_numbers(text: str) -> None:
    make, expected = CASES[text]
    b = Builder()
    b.begin()
    x, y = (b.load(BufferRef(name, Slot("array", k), f32), b.const(0, i32)) for k, name in enumerate("xy"))
    assert is_at_least(make(b, x, y), SMALLEST_NORMAL_F32) is expected
