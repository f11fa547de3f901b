"""Divisions of sums part by part, against the divisions themselves, for all values of the indices of loops."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, i8, i32, i64, u8, u32
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.integer_ranges import range_of
from spirograd.ir.nodes import Kernel, LoopAttr, Op, Region
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.divide_sums import divide_sums

_DIVISIONS = (ops.idiv, ops.irem, ops.floordiv, ops.floormod)
_CODES = (ops.add, ops.add, ops.sub, ops.mul, ops.max_, ops.min_, ops.and_, ops.select)


def random_value(b: Builder, indices: tuple[Op, ...], t: DType, r: random.Random) -> Op:
    """A value made of indices and constants, mostly sums, divided."""

    def constant(*choices: int) -> Op:
        return b.const(r.choice([c for c in choices if t.min <= c <= t.max]), t)

    values = list(indices)
    for _ in range(r.randint(2, 8)):
        a, code = r.choice(values), r.choice((*_CODES, *_DIVISIONS))
        if code in _DIVISIONS:
            values.append(b.emit(code, a, constant(1, 2, 3, 4, 6, 8, 64)))
        elif code is ops.mul:
            values.append(b.emit(code, a, constant(-4, 2, 3, 4, 8, 12, 64, 2**30)))
        elif code is ops.select:
            values.append(b.emit(code, b.emit(ops.lt, a, r.choice(values)), a, r.choice(values)))
        else:
            values.append(b.emit(code, a, r.choice((*values, constant(-5, -1, 0, 1, 4, 7, 100)))))
    return b.emit(r.choice(_DIVISIONS), values[-1], constant(2, 4, 5, 8, 12))


def nest(t: DType, bounds: list[tuple[int, int]], r: random.Random) -> Kernel:
    """Serial loops within each other, the innermost of which yields a value that is made of their indices."""
    b = Builder()
    b.begin()

    def loop(outer: tuple[Op, ...]) -> Op:
        if len(outer) == len(bounds):
            return random_value(b, outer, t, r)
        begin, end = (b.const(bound, t) for bound in bounds[len(outer)])
        index, _ = b.begin(t, t)
        inner = loop((*outer, index))
        body = Region((index, _), b.end([inner]).ops)
        made = Op(ops.for_, (t,), (begin, end, b.const(0, t)), LoopAttr(), (body,))
        b.append(made)
        return b.emit(ops.result, made, type=t, attr=0)

    loop(())
    return Kernel("k", (), b.end())


def innermost(region: Region) -> tuple[list[Op], list[Op]]:
    """The indices of the loops, and all operations from the outermost to the innermost body."""
    indices, found = [], []
    while True:
        found += region.ops[:-1]
        loops = [op for op in region.ops if op.code is ops.for_]
        if not loops:
            return indices, found
        (region,) = loops[0].regions
        indices.append(region.params[0])


def result_for(kernel: Kernel, numbers: tuple[int, ...]) -> tuple[int, dict[Op, int]]:
    """What the innermost body yields for indices, and the values of all operations."""
    indices, found = innermost(kernel.body)
    env: dict[Op, int] = dict(zip(indices, numbers))
    for op in found:
        if op.code is ops.const:
            env[op] = op.attr
        elif op.code not in (ops.for_, ops.result):
            operand = op.args[0].type if op.code.rule == "compare" else op.type
            values = [operand.np.type(env[a]) if a.type is operand else env[a] for a in op.args]
            with np.errstate(over="ignore"):
                env[op] = ops.evaluate(op.code, operand, values)
    region = kernel.body
    for _ in indices:
        (region,) = next(op for op in region.ops if op.code is ops.for_).regions
    return int(env[region.results[0]]), env


@pytest.mark.parametrize("t", (i32, u32, i64, i8, u8), ids=str)
def test_sums_divided_in_parts_have_the_same_value(t: DType) -> None:
    r, changed = random.Random(7), 0
    for _ in range(200):
        low = 0 if r.random() < 0.7 or not t.is_signed else -3
        largest = (int(t.max) - r.choice((4, 9)), int(t.max))
        bounds = [r.choice(((low, 3), (low, 9), largest)), (0, 4), (0, r.choice((2, 5)))][: r.randint(1, 3)]
        kernel = nest(t, bounds, r)
        divided = divide_sums(kernel, PassContext(Capabilities("cpu"), CompileOptions()))
        changed += divided is not kernel
        indices, _ = innermost(kernel.body)
        known = {}
        known.update(zip(indices, (range_of(b_, {})._replace(low=lo, high=hi - 1) for b_, (lo, hi) in zip(indices, bounds))))
        for numbers in itertools.product(*(range(lo, hi) for lo, hi in bounds)):
            expected, env = result_for(kernel, numbers)
            assert result_for(divided, numbers)[0] == expected
            for op, number in env.items():
                if isinstance(op.type, DType) and op.type is t:
                    found = range_of(op, known)
                    assert found.low <= number <= found.high
    assert changed > 20
