"""Large regions cut into functions: random code, whole and cut into parts of a few operations."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from cases import seeds
from unit.llvm.llvm_programs import Program
from unit.llvm.test_local_arrays import random_program

from spirograd.analysis import loop_costs
from spirograd.base.dtypes import f64, i32
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.runtime.devices import cpu

pytestmark = pytest.mark.optimized

N = 32
DATA = np.arange(N, dtype=np.int32) * 12345 % 1009


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Cut everything into parts of so many operations."""

    def cut(size: int) -> None:
        for name in ("LARGE", "LARGEST_PARTITION", "LARGE_OPERATION", "LARGE_VECTORISED"):
            monkeypatch.setattr(loop_costs, name, size)
        monkeypatch.setattr(loop_costs, "SMALLEST_PARTITION", max(size // 2, 1))

    return cut


def _results(p: Program, *arrays: Any) -> list[Any]:
    """What the program makes of each of ``arrays``."""
    p.compile(CompileOptions(opt_level=1))
    out = [np.zeros_like(array) for array in arrays]
    for array, result in zip(arrays, out):
        p.run(cpu.open(max_threads=1), array, result)
    return out


@functools.cache
def _result_of_whole(seed: int) -> Any:
    """What a random program gives that is not cut."""
    return _results(random_program(seed, N), DATA)


@pytest.mark.parametrize("seed", seeds(6, 30))
@pytest.mark.parametrize("size", [3, 10, 40])
def test_branches_loops_and_arrays(seed: int, size: int, small_parts: Any) -> None:
    want = _result_of_whole(seed)
    small_parts(size)
    p = random_program(seed, N)
    np.testing.assert_array_equal(_results(p, DATA), want)
    assert ".part" in p.text or size > 3


def _serial(statements: int) -> Program:
    """Values of several types that live for long, branches around whole stretches, and memory between."""
    p = Program("serial")
    x, out = p.buffer(f64), p.buffer(f64)

    def body(b: Builder) -> None:
        value, count = b.load(x, b.const(1)), b.const(0)
        sign = b.emit(ops.lt, value, b.const(0.0, f64))
        for k in range(statements):
            value = b.emit(ops.add, b.emit(ops.mul, value, b.const(0.5, f64)), b.const(float(k % 5), f64))
            count = b.emit(ops.add, count, b.cast(value, i32))
            if k % 7 == 0:
                b.store(out, b.const(k % N), b.emit(ops.select, sign, value, b.cast(count, f64)))
            if k % 11 == 0:
                b.begin()
                then = b.end([_deeper(b, value, 12), count])
                b.begin()
                value, count = b.if_(sign, then, b.end([value, b.emit(ops.add, count, b.const(k))]))
        b.store(out, b.const(0), value)
        b.store(out, b.const(1), b.cast(count, f64))

    p.serial(body)
    return p


def _deeper(b: Builder, value: Op, depth: int) -> Op:
    """A nest of branches, whose results are used at each level."""
    if depth == 0:
        return value
    b.begin()
    then = b.end([_deeper(b, b.emit(ops.mul, value, b.const(1.25, f64)), depth - 1)])
    b.begin()
    orelse = b.end([b.emit(ops.sub, value, b.const(1.0, f64))])
    (merged,) = b.if_(b.emit(ops.lt, value, b.const(float(depth), f64)), then, orelse)
    return b.emit(ops.add, merged, value)


@functools.cache
def _serial_whole() -> tuple[list[np.ndarray], Any]:
    """Data for both sides of its branches, and what the serial program that is not cut makes of it."""
    data = [np.linspace(start, 2.0, N) for start in (-1.0, 0.75)]
    for values in data:
        values[1] = values[0]
    return data, _results(_serial(60), *data)


@pytest.mark.parametrize("size", [1, 4, 25, 100])
def test_serial_code(size: int, small_parts: Any) -> None:
    data, want = _serial_whole()
    small_parts(size)
    p = _serial(60)
    np.testing.assert_array_equal(_results(p, *data), want)
    assert p.text.count("define internal double") + p.text.count("define internal {") > 2


def test_functions_of_large_serial_code_are_small() -> None:
    """With the limits as they are."""
    p = _serial(2000)
    p.compile(CompileOptions(opt_level=1))
    assert max(function.count("\n") for function in p.text.split("\ndefine ")) < 1000
    assert p.text.count("define internal") > 8
