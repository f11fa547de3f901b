"""Every operation on every type it takes, compiled and run, against its evaluator in the op table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from unit.llvm.llvm_programs import Program

from spirograd.base import dtypes as dt
from spirograd.base.dtypes import DType, i32, storage, u1
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.llvmgen.emit_memory import ATOMIC_MAP
from spirograd.llvmgen.instructions import Unsupported
from spirograd.llvmgen.op_map import OP_MAP
from spirograd.llvmgen.toolchain import host_caps
from spirograd.runtime.devices import cpu

pytestmark = pytest.mark.optimized

_MATH = (*ops.ELEMENTARY, ops.rsqrt)
_KINDS = {"b": (u1,), "i": dt.INTEGERS, "f": dt.FLOATS}
N = 64


@pytest.fixture(scope="module")
def device() -> cpu.CpuDevice:
    return cpu.open(max_threads=2)


def test_table_is_total() -> None:
    assert set(OP_MAP) == set(ops.ALL)
    assert set(ATOMIC_MAP) == set(ops.ATOMIC_KINDS)
    for code, row in OP_MAP.items():
        if code.level == "kernel":
            assert isinstance(row, Unsupported) and row.reason


def samples(t: DType, seed: int) -> Any:
    """N values of ``t``, the awkward ones first."""
    rng = np.random.default_rng(seed)
    if t is u1:
        return rng.integers(0, 2, N).astype(np.uint8)
    if t.is_int:
        wild = rng.integers(0, 256, N * t.size, dtype=np.uint8).view(t.np)
        mild = rng.integers(0 if not t.is_signed else -9, 10, N).astype(t.np)
        out = np.where(rng.random(N) < 0.5, wild, mild)
        out[:6] = [t.min, t.max, 0, 1, t.max - 1, 7]
        return rng.permutation(out)
    out = rng.normal(0, 3, N).astype(t.np)
    out[:9] = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 2.5, -1.5, 1.0]
    return rng.permutation(out)


def _operands(code: ops.OpCode, t: DType) -> list[Any]:
    args = [samples(t, 3 * k + t.bits) for k in range(code.arity or 0)]
    if code in (ops.idiv, ops.irem):
        args[1][(args[1] == 0) | ((args[0] == t.min) & (args[1] == t.np.type(-1) if t.is_signed else False))] = 3
    if code in (ops.shl, ops.shr):
        args[1] = (np.abs(args[1].astype(np.float64)) % t.bits).astype(t.np)
    return args


def _value(b: Builder, ref: Any, i: Op, t: DType) -> Op:
    """Element i of a buffer as a ``t`` (u1 is stored as bytes)."""
    raw = b.load(ref, i)
    return b.emit(ops.ne, raw, b.const(0, dt.u8)) if t is u1 else raw


def _store(b: Builder, ref: Any, i: Op, value: Op) -> None:
    if value.type is u1:
        value = b.emit(ops.select, value, b.const(1, dt.u8), b.const(0, dt.u8))
    b.store(ref, i, value)


def _check(name: str, t: DType, got: Any, want: Any, tolerance: float) -> None:
    if not t.is_float:
        np.testing.assert_array_equal(got, want, err_msg=name)
        return
    if tolerance == 0.0:
        np.testing.assert_array_equal(got, want, err_msg=name)
    else:
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, err_msg=name)


class Cases:
    """Many operations in one module, a task each."""

    def __init__(self, name: str) -> None:
        self.program = Program(name)
        self.values: list[Any] = []
        self.expected: list[tuple[str, DType, Any, Any, float]] = []

    def add(
        self, name: str, inputs: list[tuple[DType, Any]], out: DType, emit: Callable[..., Op], want: list[Any], tolerance: float = 0.0
    ) -> None:
        p = self.program
        refs = [p.buffer(t) for t, _ in inputs]
        target = p.buffer(out)
        result = np.zeros(N, storage(out).np)
        self.values += [*(v for _, v in inputs), result]
        self.expected.append((name, out, result, np.array(want, storage(out).np), tolerance))

        def body(b: Builder, i: Op) -> None:
            _store(b, target, i, emit(b, *(_value(b, r, i, t) for r, (t, _) in zip(refs, inputs))))

        p.range_for(0, N, body, name=name)

    def run(self, device: cpu.CpuDevice, options: CompileOptions | None = None, caps: Any = None) -> None:
        self.program.compile(options or CompileOptions(opt_level=1), caps)
        self.program.run(device, *self.values)
        for case in self.expected:
            _check(*case)


def _pure_cases(t: DType) -> Cases:
    cases = Cases(f"ops_{t.name}")
    for code in ops.ALL:
        takes = any(t in _KINDS[letter] for letter in code.domain)
        if code.rule not in ("same", "compare") or not takes or isinstance(OP_MAP[code], Unsupported):
            continue
        args = _operands(code, t)
        out = u1 if code.rule == "compare" else t
        typed = [a.astype(bool) if t is u1 else a for a in args]
        want = [ops.evaluate(code, out, tuple(row)) for row in zip(*typed)]
        tolerance = {16: 2e-3, 32: 1e-6, 64: 4e-15}[t.bits] if code in _MATH or code is ops.fma else 0.0
        cases.add(code.name, [(t, a) for a in args], out, lambda b, *v, code=code: b.emit(code, *v), want, tolerance)
    choice, a, b_ = samples(u1, 5), samples(t, 1), samples(t, 2)
    want = [x if c else y for c, x, y in zip(choice, a, b_)]
    cases.add("select", [(u1, choice), (t, a), (t, b_)], t, lambda b, *v: b.emit(ops.select, *v), want)
    return cases


@pytest.mark.parametrize("t", dt.ALL, ids=str)
def test_pure_operations(t: DType, device: cpu.CpuDevice) -> None:
    _pure_cases(t).run(device)


def test_every_emitted_operation_is_covered() -> None:
    """The operations that the tests above and below do not reach through their type rule."""
    special = {c for c, s in OP_MAP.items() if c.rule == "special" and c.level != "loops" and not isinstance(s, Unsupported)}
    names = "const result if for while select cast bitcast vec extract insert call call_memory stack_room"
    assert {c.name for c in special} == {*names.split(), "thread_slot", "slot", "load", "store", "atomic", "cas", "barrier", "clock"}


def _cast_cases(source: DType) -> Cases:
    cases = Cases(f"cast_{source.name}")
    data = samples(source, 11)
    if source.is_float:
        data[0:8] = np.array([1e30, -1e30, 255.9, -128.7, 65519.0, 65520.0, 3.1e9, 6.1e-5], np.float64).astype(source.np)
    typed = data.astype(bool) if source is u1 else data
    for target in dt.ALL:
        want = [ops.evaluate(ops.cast, target, (v,)) for v in typed]
        cases.add(f"to_{target.name}", [(source, data)], target, lambda b, v, target=target: b.emit(ops.cast, v, type=target), want)
        if target.bits == source.bits and source is not u1:
            want = [ops.evaluate(ops.bitcast, target, (v,)) for v in typed]
            name = f"bits_{target.name}"
            cases.add(name, [(source, data)], target, lambda b, v, target=target: b.emit(ops.bitcast, v, type=target), want)
    return cases


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("source", dt.ALL, ids=str)
def test_casts(source: DType, device: cpu.CpuDevice) -> None:
    _cast_cases(source).run(device)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("make", [_pure_cases, _cast_cases])
@pytest.mark.parametrize("t", [dt.f16, dt.f64], ids=str)
def test_without_half_instructions(make: Any, t: DType, device: cpu.CpuDevice) -> None:
    """A baseline x86-64: no F16C, no FMA, no SSE4.1. The object must link, and round alike."""
    caps = host_caps()
    if "+sse2" not in caps.cpu_features:
        pytest.skip("x86 only")
    make(t).run(device, caps=replace(caps, cpu_name="x86-64", cpu_features="+sse2", vector_library=""))


def test_half_rounds_to_nearest_even_exhaustively(device: cpu.CpuDevice) -> None:
    """f64 -> f16 at every boundary between two halves, just below and just above it; f16 -> f64 of every half."""
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float64)
    halves[-1] = 65536.0
    middles = (halves[:-1] + halves[1:]) / 2
    data = np.concatenate([halves, middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf)])
    data = np.concatenate([data, -data, [np.nan, 1e-300, np.inf, 1e300]])
    p = Program("half")
    source, target, back = p.buffer(dt.f64), p.buffer(dt.f16), p.buffer(dt.f64)

    def body(b: Builder, i: Op) -> None:
        h = b.cast(b.load(source, i), dt.f16)
        b.store(target, i, h)
        b.store(back, i, b.cast(h, dt.f64))

    p.range_for(0, len(data), body)
    got, again = np.zeros(len(data), np.float16), np.zeros(len(data))
    p.run(device, data, got, again)
    with np.errstate(over="ignore"):
        want = data.astype(np.float16)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(again, want.astype(np.float64))


@pytest.mark.parametrize("t", [dt.i32, dt.f32, dt.f64, dt.u8], ids=str)
@pytest.mark.parametrize("n", [3, 4, 40])
def test_vectors(t: DType, n: int, device: cpu.CpuDevice) -> None:
    """vec, extract and insert with run-time indices; out of range must not touch other memory or crash."""
    p = Program("vectors")
    where, out = p.buffer(i32), p.buffer(t)

    def body(b: Builder, i: Op) -> None:
        k = b.load(where, i)
        v = b.emit(ops.vec, *(b.const(c % 100, t) for c in range(n)))
        w = b.emit(ops.insert, v, k, b.const(77, t))
        chosen = b.emit(ops.select, b.emit(ops.lt, i, b.const(4)), w, v)
        value = b.emit(ops.add, b.emit(ops.extract, chosen, b.emit(ops.irem, i, b.const(n))), b.emit(ops.extract, w, k))
        b.store(out, i, value)

    p.range_for(0, 12, body)
    index = np.array([0, 1, 2, 0, 1, 2, 2, 1, 0, 1, -5, 10**9], np.int32)
    got = np.zeros(12, t.np)
    p.run(device, index, got)
    for i in range(10):
        plain = [c % 100 for c in range(n)]
        changed = [77 if c == index[i] else v for c, v in enumerate(plain)]
        assert got[i] == t.np.type((changed if i < 4 else plain)[i % n] + 77)
