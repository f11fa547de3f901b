"""Bounds and overflow checks: what they report, what they let through. The reference is Python's unbounded integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spirograd.analysis import trial
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, i32, i64, u32, u64
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, FieldRef, Kernel, Layout, ScalarArg, TempRef, Term
from spirograd.ir.ops import OpCode
from spirograd.ir.spec import verify
from spirograd.transforms.checks.check_bounds import check_bounds
from spirograd.transforms.checks.check_overflow import check_overflow
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify

CTX = PassContext(Capabilities("cpu"), CompileOptions())


def binary(code: OpCode, t: DType) -> Kernel:
    b = Builder()
    b.begin()
    args = tuple(b.emit(ops.arg, attr=k, type=t) for k in range(code.arity or 0))
    result = TempRef("result", t)
    b.store(result, b.emit(code, *args))
    return Kernel("k", tuple(ScalarArg(f"a{k}", t) for k in range(len(args))), b.end(), (result,))


TRUE_VALUE: dict[OpCode, Any] = {
    ops.add: lambda a, b: a + b,
    ops.sub: lambda a, b: a - b,
    ops.mul: lambda a, b: a * b,
    ops.shl: lambda a, b: a << b if 0 <= b < 1000 else None,
    ops.neg: lambda a: -a,
    ops.abs_: abs,
}


def samples(t: DType) -> list[int]:
    low, high = int(t.min), int(t.max)
    root = 1 << (t.bits // 2)
    found = {0, 1, 2, 3, 5, low, low + 1, high, high - 1, high // 2, high // 2 + 1, root, root - 1, root + 1, t.bits - 1, t.bits}
    if t.is_signed:
        found |= {-1, -2, -root, -root - 1, low // 2, low // 2 - 1}
    return sorted(found)


@pytest.mark.parametrize("t", (i32, i64, u32, u64), ids=str)
@pytest.mark.parametrize("code", tuple(TRUE_VALUE), ids=repr)
def test_overflow(code: OpCode, t: DType) -> None:
    kernel = check_overflow(binary(code, t), CTX)
    verify(kernel, "kernel")
    values = samples(t)
    pairs = [(a, b) for a in values for b in values] if code.arity == 2 else [(a,) for a in values]
    for operands in pairs:
        outcome = trial.run(kernel, operands)
        true = TRUE_VALUE[code](*operands)
        fits = true is not None and int(t.min) <= true <= int(t.max)
        if code is ops.shl and not 0 <= operands[1] < t.bits:
            fits = False
        if code.arity == 1 and not t.is_signed:
            fits = True  # negating an unsigned number is a way to write its complement
        assert (outcome.fault is None) == fits, operands
        if outcome.fault is not None:
            assert outcome.fault[0].code == "overflow" and outcome.fault[1] == operands
        if fits and not (code.arity == 1 and not t.is_signed):
            assert outcome.returns == (true,)


def test_address_arithmetic_is_not_checked() -> None:
    b = Builder()
    b.begin()
    n = b.emit(ops.arg, attr=0, type=i32)
    r = TempRef("r", i32)
    b.store(r, b.emit(ops.add, n, n, attr="nsw"))
    kernel = Kernel("k", (ScalarArg("n", i32),), b.end(), (r,))
    assert check_overflow(kernel, CTX) is kernel


FIELD = FieldRef("f", 0, 1, i32, (4, 3), (2,), Layout((Term(0, 1, 0, 24), Term(1, 1, 0, 8)), (0, 4), (-1, 10)))


def field_kernel() -> Kernel:
    """f[i, j][c] is read, incremented twice (a store and an atomic); the value read and the atomic's are returned."""
    b = Builder()
    b.begin()
    at = [b.emit(ops.arg, attr=k, type=i32) for k in range(3)]
    read, old = TempRef("read", i32), TempRef("old", i32)
    value = b.load(FIELD, *at)
    b.store(FIELD, *at, b.emit(ops.add, value, b.const(1)))
    b.store(read, value)
    b.store(old, b.atomic("add", FIELD, *at, b.const(1)))
    return Kernel("k", tuple(ScalarArg(name, i32) for name in "ijc"), b.end(), (read, old))


@pytest.mark.parametrize("clean", (False, True))
def test_bounds_of_a_field(clean: bool) -> None:
    kernel = check_bounds(field_kernel(), CTX)
    if clean:
        kernel = simplify(kernel, CTX)
    verify(kernel, "kernel")
    for i in (-2, -1, 2, 3):
        for j in (9, 10, 12, 13):
            for c in (-1, 0, 1, 2):
                tree = np.arange(100, 124, dtype=np.int32)
                before = tree.copy()
                outcome = trial.run(kernel, [i, j, c], {0: tree})
                if -1 <= i < 3 and 10 <= j < 13 and 0 <= c < 2:
                    at = (i + 1) * 6 + (j - 10) * 2 + c
                    assert outcome.fault is None and outcome.returns == (100 + at, 101 + at)
                    before[at] += 2
                else:
                    assert outcome.fault is not None and outcome.returns == (0, 0)
                    site, operands = outcome.fault
                    assert (site.code, operands) == ("bounds", (i, j, c))
                    assert site.message == "index ({0}, {1}, {2}) out of range of field `f`: [-1, 3) x [10, 13) x [0, 2)"
                assert np.array_equal(tree, before)


def test_bounds_of_an_array() -> None:
    b = Builder()
    b.begin()
    i, j = (b.emit(ops.arg, attr=k, type=i32) for k in (1, 2))
    x = ArrayRef("x", 0, i32, 2)
    r = TempRef("r", i32)
    b.store(r, b.load(x, i, j))
    kernel = check_bounds(Kernel("k", (ArrayArg("x", i32, 2), ScalarArg("i", i32), ScalarArg("j", i32)), b.end(), (r,)), CTX)
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert trial.run(kernel, [array, 1, 2]) == trial.Outcome((5,), None, ())
    outcome = trial.run(kernel, [array, 1, 3])
    assert outcome.returns == (0,) and outcome.fault is not None
    assert outcome.fault[0].message.format(*outcome.fault[1]) == "index (1, 3) out of range of array `x`: [0, 2) x [0, 3)"


def test_constant_indices_in_range_cost_nothing() -> None:
    b = Builder()
    b.begin()
    b.store(FIELD, b.const(-1), b.const(12), b.const(1), b.const(5))
    kernel = Kernel("k", (), b.end())
    assert not any(op.code is ops.check for op in check_bounds(kernel, CTX).walk())
