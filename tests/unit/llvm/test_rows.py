"""Loops over several axes run row by row: right wherever chunks begin and end, and vectorised."""

from __future__ import annotations

import re

import numpy as np
import pytest
from unit.llvm.llvm_programs import Program

from spirograd.base.dtypes import DType, f32, i32, i64, u32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op, Reduction
from spirograd.runtime.devices import cpu

pytestmark = pytest.mark.optimized


@pytest.fixture(scope="module")
def device() -> cpu.CpuDevice:
    return cpu.open(max_threads=4)


def _digits(index: DType, begin: int) -> Program:
    """out[i] = 1000 * (i / m) + i % m for i in begin .. n, with m and n from the launch."""
    p = Program("digits")
    out, extent, end = p.buffer(index), p.scalar(index), p.scalar(index)

    def body(b: Builder, i: Op) -> None:
        m = p.slot(extent)
        row, column = b.emit(ops.idiv, i, m), b.emit(ops.irem, i, m)
        b.store(out, b.cast(i, i64), b.emit(ops.add, b.emit(ops.mul, row, b.const(1000, index)), column))

    p.range_for(begin, lambda b: p.slot(end), body, index=index)
    return p


@pytest.mark.parametrize("index", [i32, i64, u32], ids=str)
@pytest.mark.parametrize("begin", [0, 5])
def test_any_extent_and_any_chunk(index: DType, begin: int, device: cpu.CpuDevice) -> None:
    p = _digits(index, begin)
    n = 100_003  # in several chunks, whose limits are no multiples of the extents
    i = np.arange(n)
    smallest = [] if index is u32 else [-7, int(index.min)]
    for m in (1, 3, 64, 1000, n - 1, n, 10 * n, *smallest):
        got = np.zeros(n, index.np)
        p.run(device, got, m, n)
        quotient = np.sign(m) * (i // abs(m)) if abs(m) < 2**62 else 0 * i
        want = (quotient * 1000 + (i - quotient * m)).astype(index.np)
        want[:begin] = 0
        np.testing.assert_array_equal(got, want, err_msg=f"extent {m}")


def test_extents_near_the_limit_of_the_type(device: cpu.CpuDevice) -> None:
    """No step past the last index wraps around."""
    p = Program("limit")
    out, extent, end = p.buffer(i32), p.scalar(i32), p.scalar(i32)
    first = 2**31 - 101

    def body(b: Builder, i: Op) -> None:
        row = b.emit(ops.idiv, i, p.slot(extent))
        b.store(out, b.emit(ops.sub, i, b.const(first)), row)

    p.range_for(first, lambda b: p.slot(end), body)
    for m in (1, 40, 2**30, 2**31 - 1):
        got = np.zeros(100, np.int32)
        p.run(device, got, m, 2**31 - 1)
        np.testing.assert_array_equal(got, np.arange(first, 2**31 - 1) // m)


def test_three_axes_and_a_sum(device: cpu.CpuDevice) -> None:
    shape = (13, 7, 29)
    p = Program("axes")
    x, total = p.buffer(f32), p.buffer(f32)

    def body(b: Builder, i: Op, acc: Op) -> list[Op]:
        n1, n2 = b.const(shape[1]), b.const(shape[2])
        q, k = b.emit(ops.idiv, i, n2), b.emit(ops.irem, i, n2)
        j = b.emit(ops.irem, q, n1)
        weight = b.cast(b.emit(ops.sub, k, j), f32)
        return [b.emit(ops.add, acc, b.emit(ops.mul, b.load(x, i), weight), attr="reassoc")]

    def finish(b: Builder, acc: Op) -> None:
        b.atomic("add", total, b.const(0), acc)

    count = int(np.prod(shape))
    p.range_for(0, count, body, [Reduction("add", f32)], finish)
    data = np.random.default_rng(1).integers(-8, 8, count).astype(np.float32)
    got = np.zeros(1, np.float32)
    p.run(device, data, got)
    _, j, k = np.indices(shape)
    assert got[0] == np.sum(data.reshape(shape) * (k - j))


def test_a_stencil_is_vectorised(device: cpu.CpuDevice) -> None:
    n = 512
    p = Program("stencil")
    x, y = p.buffer(f32), p.buffer(f32)

    def body(b: Builder, i: Op) -> None:
        width, one = b.const(n), b.const(1)
        row, column = b.emit(ops.idiv, i, width), b.emit(ops.irem, i, width)
        inside = b.emit(ops.lt, row, b.const(n - 1))
        b.begin()
        below = b.emit(ops.add, b.emit(ops.mul, b.emit(ops.add, row, one), width, attr="nsw"), column, attr="nsw")
        b.store(y, i, b.emit(ops.add, b.load(x, i), b.load(x, below)))
        then = b.end()
        b.begin()
        b.if_(inside, then, b.end())

    p.range_for(0, n * n, body)
    data = np.random.default_rng(2).random((n, n), np.float32)
    got = np.zeros((n, n), np.float32)
    p.run(device, data, got)
    np.testing.assert_array_equal(got[:-1], data[:-1] + data[1:])
    assert p.native is not None and re.search(r"fadd .*<\d+ x float>", p.native.optimized_ir)


@pytest.mark.parametrize("size, vectorised", [(2, True), (16, False)])
def test_wide_elements_are_left_to_scalar_iterations(size: int, vectorised: bool) -> None:
    """As in loops over one axis: neighbours far apart would be gathered one by one."""
    p = Program("wide")
    x = p.buffer(f32)

    def body(b: Builder, i: Op) -> None:
        width, scale = b.const(512), b.const(size)
        row, column = b.emit(ops.idiv, i, width), b.emit(ops.irem, i, width)
        cell = b.emit(ops.add, b.emit(ops.mul, row, width, attr="nsw"), column, attr="nsw")
        at = b.emit(ops.mul, cell, scale, attr="nsw")
        b.store(x, at, b.emit(ops.add, b.load(x, at), b.const(1.0, f32)))

    p.range_for(0, 512 * 512, body)
    p.compile()
    assert ("llvm.loop.vectorize.enable" not in p.text) == vectorised
