"""Tasks, control flow, reductions and atomics of the LLVM back end, against NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from unit.llvm.llvm_programs import Program

from spirograd.base import dtypes as dt
from spirograd.base.artifact import Slot
from spirograd.base.dtypes import DType, f32, f64, i32, i64, u32, u64
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Op, Reduction
from spirograd.llvmgen.toolchain import host_caps
from spirograd.runtime.devices import cpu

pytestmark = pytest.mark.optimized

_UFUNCS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
_UFUNCS |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@pytest.fixture(scope="module")
def device() -> cpu.CpuDevice:
    return cpu.open(max_threads=4)


def test_nested_control_flow(device: cpu.CpuDevice) -> None:
    """if inside for inside while, values carried through all of them; loops that never run."""
    p = Program("nest")
    x, out = p.buffer(i32), p.buffer(i32)

    def body(b: Builder, i: Op) -> None:
        n = b.load(x, i)
        k, total = b.begin(i32, i32)
        condition = b.end([b.emit(ops.lt, k, n)])
        k, total = b.begin(i32, i32)
        j, inner, biggest = b.begin(i32, i32, i32)
        b.begin()
        then = b.end([b.emit(ops.add, inner, j), b.emit(ops.max_, biggest, j)])
        b.begin()
        orelse = b.end([b.emit(ops.sub, inner, b.const(1)), biggest])
        even = b.emit(ops.eq, b.emit(ops.irem, j, b.const(2)), b.const(0))
        loop = b.end(b.if_(even, then, orelse))
        total, big = b.for_(b.const(0), k, [total, b.const(-1)], loop)
        step = b.end([b.emit(ops.add, k, b.const(1)), b.emit(ops.add, total, big)])
        _, total = b.while_([b.const(0), b.const(0)], condition, step)
        b.store(out, i, total)

    p.range_for(0, 20, body)
    data = np.arange(-2, 18, dtype=np.int32)
    got = np.zeros(20, np.int32)
    p.run(device, data, got)
    for n, value in zip(data, got):
        total = 0
        for k in range(n):
            biggest = -1
            for j in range(k):
                total, biggest = (total + j, max(biggest, j)) if j % 2 == 0 else (total - 1, biggest)
            total += biggest
        assert value == total


@pytest.mark.parametrize("index", [i32, i64, u32, u64], ids=str)
def test_ranges(index: DType, device: cpu.CpuDevice) -> None:
    """Bounds that are neither zero nor constant, empty and reversed ranges, and chunks that do not divide evenly."""
    p = Program("range")
    out, begin, end = p.buffer(f64), p.scalar(index), p.scalar(index)

    def body(b: Builder, i: Op) -> None:
        place = b.cast(i, i64)
        b.store(out, place, b.emit(ops.add, b.load(out, place), b.const(1.0, f64)))

    p.range_for(lambda b: p.slot(begin), lambda b: p.slot(end), body, index=index)
    for lo, hi in ((0, 0), (5, 3), (3, 4), (7, 100_003), (1000, 99_999)):
        got = np.zeros(100_003)
        p.run(device, got, lo, hi)
        want = np.zeros(100_003)
        want[lo:hi] = 1
        np.testing.assert_array_equal(got, want)


def test_tasks_run_in_order_and_bounds_may_be_in_memory(device: cpu.CpuDevice) -> None:
    p = Program("order")
    count, out = p.buffer(i32), p.buffer(f32)
    p.serial(lambda b: b.store(count, b.const(0), b.const(50_000)))
    p.range_for(0, lambda b: b.load(count, b.const(0)), lambda b, i: b.store(out, i, b.cast(i, f32)))
    p.range_for(0, lambda b: b.load(count, b.const(0)), lambda b, i: b.store(out, i, b.emit(ops.mul, b.load(out, i), b.const(2.0, f32))))
    n, got = np.zeros(1, np.int32), np.zeros(60_000, np.float32)
    p.run(device, n, got)
    np.testing.assert_array_equal(got[:50_000], 2 * np.arange(50_000, dtype=np.float32))
    assert not got[50_000:].any()


def _reduction(kind: str, t: DType, n: int) -> tuple[Program, Any]:
    p = Program(f"reduce_{kind}")
    x, out = p.buffer(t), p.buffer(t)
    code = ops.COMBINE[kind]
    attr = "reassoc" if kind in ("add", "mul", "min", "max") else None

    def finish(b: Builder, value: Op) -> None:
        if kind == "mul":  # there is no atomic multiplication: one chunk only in this test
            b.store(out, b.const(0), b.emit(ops.mul, b.load(out, b.const(0)), value))
        else:
            b.atomic(kind, out, b.const(0), value)

    p.range_for(0, n, lambda b, i, s: [b.emit(code, s, b.load(x, i), attr=attr)], [Reduction(kind, t)], finish)
    return p, ops.identity(kind, t)


@pytest.mark.parametrize("t", [dt.i8, dt.u16, i32, u32, i64, u64, dt.f16, f32, f64], ids=str)
@pytest.mark.parametrize("kind", ["add", "min", "max", "and", "or", "xor", "mul"])
def test_reductions(kind: str, t: DType, device: cpu.CpuDevice) -> None:
    if t.is_float and kind in ("and", "or", "xor"):
        pytest.skip("integers only")
    n = 500 if kind == "mul" or t is dt.f16 else 40_000
    p, identity = _reduction(kind, t, n)
    p.compile(CompileOptions())
    rng = np.random.default_rng(1)
    data = rng.uniform(0.9, 1.1, n).astype(t.np) if t.is_float else rng.integers(0, 256, n * t.size, np.uint8).view(t.np)
    got = np.full(1, identity, t.np)
    p.run(device, data, got)
    with np.errstate(over="ignore"):
        want = _UFUNCS[kind].reduce(data.astype(np.float64) if t.is_float else data, dtype=np.float64 if t.is_float else t.np)
    if t.is_float and kind in ("add", "mul"):
        np.testing.assert_allclose(got[0].astype(np.float64), want, rtol={16: 5e-2, 32: 1e-4, 64: 1e-12}[t.bits])
    else:
        assert got[0] == t.np.type(want)


def test_minimum_with_nan_gives_the_number(device: cpu.CpuDevice) -> None:
    p, _ = _reduction("min", f32, 40_000)
    data = np.random.default_rng(2).normal(size=40_000).astype(np.float32)
    data[::7] = np.nan
    got = np.full(1, np.inf, np.float32)
    p.run(device, data, got)
    assert got[0] == np.nanmin(data)


@pytest.mark.parametrize("t", [dt.i8, dt.u16, i32, u32, i64, u64, f32, f64], ids=str)
@pytest.mark.parametrize("kind", ["add", "min", "max", "and", "or", "xor"])
def test_atomics_from_many_threads(kind: str, t: DType, device: cpu.CpuDevice) -> None:
    """Updates of a few cells from all threads: none may be lost."""
    if t.is_float and kind in ("and", "or", "xor"):
        pytest.skip("integers only")
    n, cells = 20_000, 3
    p = Program(f"atomic_{kind}")
    x, out = p.buffer(t), p.buffer(t)
    p.range_for(0, n, lambda b, i: b.atomic(kind, out, b.emit(ops.irem, i, b.const(cells)), b.load(x, i)))
    p.compile(CompileOptions())
    rng = np.random.default_rng(3)
    data = rng.integers(-50, 50, n).astype(t.np) if t.is_float else rng.integers(0, 256, n * t.size, np.uint8).view(t.np)
    start = rng.integers(0, 100, cells).astype(t.np)
    got = start.copy()
    p.run(device, data, got)
    for c in range(cells):
        assert got[c] == _UFUNCS[kind].reduce(data[c::cells], initial=start[c], dtype=t.np)


def test_threads_have_slots_of_their_own(device: cpu.CpuDevice) -> None:
    """Updates that are not atomic, of one cell per thread slot in the memory of tapes: none may be lost, as no two threads have the same
    one, and the iterations of one thread take turns there."""
    n, slots, steps = 20_000, 4, 50
    p = Program("slots")
    seen, sines = p.buffer(i32), p.buffer(f64)
    p.slots.append(Slot("adstacks", offset=p.offset))
    p.offset += 8
    counts = BufferRef("counts", p.slots[-1], i32)

    def body(b: Builder, i: Op) -> None:
        slot = b.emit(ops.thread_slot, type=i32)
        b.store(seen, i, slot)
        first, end = b.const(0), b.const(steps)
        start = b.cast(b.load(counts, slot), f64)
        _, x = b.begin(i32, f64)
        b.store(counts, slot, b.emit(ops.add, b.load(counts, slot), b.const(1)))
        (x,) = b.for_(first, end, (start,), b.end((b.emit(ops.sin, x),)))  # long enough for all threads to come
        b.store(sines, i, x)

    p.range_for(0, n, body)
    p.compile(CompileOptions(opt_level=1))  # not in lockstep, where the iterations of a thread run together
    for _ in range(5):
        got, where = np.zeros(slots, np.int32), np.full(n, -1, np.int32)
        p.run(device, where, np.zeros(n), got)
        assert where.min() >= 0 and where.max() < slots
        np.testing.assert_array_equal(got, steps * np.bincount(where, minlength=slots))


def test_exchange_and_cas(device: cpu.CpuDevice) -> None:
    """Old values handed out by add are all different; a cas loop multiplies without losing updates; exchange gives the old value."""
    p = Program("tickets")
    counter, seen, product, last = p.buffer(u32), p.buffer(u32), p.buffer(u64), p.buffer(f32)

    def body(b: Builder, i: Op) -> None:
        zero = b.const(0)
        b.store(seen, i, b.atomic("add", counter, zero, b.const(1, u32)))
        old, done = b.begin(u64, dt.u1)
        condition = b.end([b.emit(ops.not_, done)])
        old, done = b.begin(u64, dt.u1)
        got = b.emit(ops.cas, zero, old, b.emit(ops.mul, old, b.const(3, u64)), attr=product, type=u64)
        step = b.end([got, b.emit(ops.eq, got, old)])
        b.while_([b.load(product, zero), b.const(False, dt.u1)], condition, step)
        b.atomic("exchange", last, zero, b.const(5.0, f32))

    n = 20_000
    p.range_for(0, n, body)
    c, s, m, e = np.zeros(1, np.uint32), np.zeros(n, np.uint32), np.ones(1, np.uint64), np.zeros(1, np.float32)
    p.run(device, c, s, m, e)
    assert sorted(s) == list(range(n)) and c[0] == n
    assert int(m[0]) == pow(3, n, 1 << 64) and e[0] == 5


def test_scalars_of_every_type(device: cpu.CpuDevice) -> None:
    values = {dt.u1: True, dt.i8: -5, dt.u8: 250, dt.i16: -300, dt.u16: 65000, i32: -7, u32: 4_000_000_000, i64: -(2**40), u64: 2**63 + 5}
    values |= {dt.f16: 0.5, f32: 1.25, f64: -1e100}
    p = Program("scalars")
    outs = [p.buffer(t) for t in values]
    slots = [p.scalar(t) for t in values]

    def body(b: Builder) -> None:
        for ref, slot in zip(outs, slots):
            value = p.slot(slot)
            b.store(ref, b.const(0), b.cast(value, dt.u8) if value.type is dt.u1 else value)

    p.serial(body)
    results = [np.zeros(1, dt.storage(t).np) for t in values]
    p.run(device, *results, *values.values())
    assert [r[0] for r in results] == list(values.values())


def _optimized(p: Program, **options: Any) -> str:
    p.compile(CompileOptions(keep_stages=True, **options))
    assert p.native is not None
    return p.native.optimized_ir


_wide = pytest.mark.skipif("+avx2" not in host_caps().cpu_features, reason="looks for eight lanes")
_LANES = "(8|16)"  # processors with vectors of 512 bits may take sixteen


@_wide
def test_saxpy_vectorises_without_alias_checks() -> None:
    p = Program("saxpy")
    x, y, a = p.buffer(f32), p.buffer(f32), p.scalar(f32)
    p.range_for(0, 100_000, lambda b, i: b.store(y, i, b.emit(ops.fma, p.slot(a), b.load(x, i), b.load(y, i))))
    text = _optimized(p)
    assert re.search(f"<{_LANES} x float>", text) and "memcheck" not in text
    assert "vfmadd" in p.native.assembly if "+fma" in host_caps().cpu_features else True
    assert "contract" not in text  # `fused_products` decides


@_wide
def test_indirect_loads_vectorise(device: cpu.CpuDevice) -> None:
    p = Program("gather")
    x, index, y = p.buffer(f32), p.buffer(i32), p.buffer(f32)

    def body(b: Builder, i: Op) -> None:
        v = b.load(x, b.load(index, i))
        b.begin()
        then = b.end([b.emit(ops.sqrt, v)])
        b.begin()
        orelse = b.end([b.emit(ops.mul, v, v)])
        b.store(y, i, *b.if_(b.emit(ops.gt, v, b.const(0.5, f32)), then, orelse))

    p.range_for(0, 10_000, body)
    text = _optimized(p)
    assert re.search(f"@llvm.sqrt.v{_LANES}f32", text)  # whether one instruction loads them, or eight do, is the processor's cost model
    rng = np.random.default_rng(4)
    data, where, got = rng.random(5000, np.float32), rng.integers(0, 5000, 10_000).astype(np.int32), np.zeros(10_000, np.float32)
    p.run(device, data, where, got)
    v = data[where]
    np.testing.assert_allclose(got, np.where(v > 0.5, np.sqrt(v), v * v), rtol=1e-6)


@_wide
@pytest.mark.parametrize("kind", ["add", "min", "max"])
def test_reductions_vectorise(kind: str) -> None:
    p, _ = _reduction(kind, f32, 40_000)
    text = _optimized(p)
    assert re.search(f"<{_LANES} x float>", text), text


def _scale(width: int, code: ops.OpCode) -> Program:
    """y[i, c] = code(x[i, c]) * x[i, 0] for each component c of an element of ``width``."""
    p = Program("scale")
    x, y = p.buffer(f32), p.buffer(f32)

    def body(b: Builder, i: Op) -> None:
        base = b.emit(ops.mul, i, b.const(width), attr="nsw")
        at = [b.emit(ops.add, base, b.const(c), attr="nsw") for c in range(width)]
        first = b.load(x, at[0])
        for a in at:
            b.store(y, a, b.emit(ops.mul, b.emit(code, b.load(x, a)), first))

    p.range_for(0, 10_000, body)
    return p


@_wide
@pytest.mark.parametrize(("width", "across"), [(1, True), (3, True), (8, True), (9, False), (16, False)])
def test_wide_elements_are_not_gathered(width: int, across: bool) -> None:
    """Up to 8 components LLVM interleaves; beyond, iterations stay apart."""
    p = _scale(width, ops.sqrt)
    text = _optimized(p)
    assert ("llvm.loop.isvectorized" in text) == across
    assert ("vectorize.enable" in p.text) != across


@_wide
def test_double_math_uses_the_vector_library(device: cpu.CpuDevice) -> None:
    if not host_caps().vector_library:
        pytest.skip("no libmvec")
    p = Program("mvec")
    x, y = p.buffer(f64), p.buffer(f64)

    def body(b: Builder, i: Op) -> None:
        v = b.load(x, i)
        b.store(y, i, b.emit(ops.pow_, b.emit(ops.exp, b.emit(ops.sin, v)), v))

    p.range_for(0, 10_000, body)
    text = _optimized(p)
    assert all(name in text for name in ("_ZGVdN4v_sin(<4 x double>", "_ZGVdN4v_exp(<4 x double>", "_ZGVdN4vv_pow(<4 x double>"))
    data, got = np.random.default_rng(5).uniform(0, 3, 10_001), np.zeros(10_001)
    p.run(device, data[:10_000], got)
    np.testing.assert_allclose(got[:10_000], np.exp(np.sin(data[:10_000])) ** data[:10_000], rtol=1e-13)
    assert got[10_000] == 0


def test_names_and_lines_are_in_the_text() -> None:
    from spirograd.base.loc import Loc

    p = Program("my kernel")
    x = p.buffer(f32)
    p.b.loc = Loc("here.py", 12)
    p.range_for(0, 4, lambda b, i: b.store(x, i, b.const(1.0, f32)), name="first")
    p.range_for(0, 4, lambda b, i: b.store(x, i, b.const(2.0, f32)), name="first")
    p.compile()
    assert "; here.py:12" in p.text and "@my_kernel.first(" in p.text and "@my_kernel.first.1(" in p.text


def test_unoptimised_code_runs(device: cpu.CpuDevice) -> None:
    p, identity = _reduction("add", i32, 1000)
    p.compile(CompileOptions(optimize=False))
    got = np.full(1, identity, np.int32)
    p.run(device, np.arange(1000, dtype=np.int32), got)
    assert got[0] == 499_500
