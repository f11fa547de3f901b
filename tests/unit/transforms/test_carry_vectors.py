"""Vectors that nested loops and branches pass on: one round finds all of them."""

from __future__ import annotations

from spirograd.base.dtypes import Vec, f32, i32
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Kernel, Op, TempRef
from spirograd.llvmgen.ptx import capabilities
from spirograd.transforms.lowering import carry_vectors as module
from spirograd.transforms.pass_context import PassContext

_LENGTH, _DEPTH = 16, 12


def _nest(b: Builder, x: TempRef, values: tuple[Op, ...], depth: int) -> tuple[Op, ...]:
    """Emit ``depth`` nested loops that carry ``values``; the innermost one replaces an element at an index that is not constant."""
    if not depth:
        old = b.emit(ops.vec, *values)
        new = b.emit(ops.insert, old, b.cast(b.load(x), i32), b.load(x))
        return tuple([b.emit(ops.extract, new, b.const(k)) for k in range(len(values))])
    _, *params = b.begin(i32, *[f32] * len(values))
    body = b.end(_nest(b, x, tuple(params), depth - 1))
    return b.for_(b.const(0), b.const(7), values, body)


def test_one_round_finds_the_vectors_of_all_loops() -> None:
    b, x = Builder(), TempRef("x", f32)
    b.begin()
    elements = _nest(b, x, tuple([b.const(0.0, f32)] * _LENGTH), _DEPTH)
    b.store(x, elements[3])
    kernel = Kernel("k", (), b.end())
    runs = module._runs(kernel)
    assert list(runs.values()) == [{0: _LENGTH}] * _DEPTH
    carried = module.carry_vectors(kernel, PassContext(capabilities("sm_90"), CompileOptions()))
    assert [op.type for op in carried.walk() if op.code is ops.for_] == [(Vec(_LENGTH, f32),)] * _DEPTH
