"""The table of what emits each operation is total, and every row computes what `ir.ops` says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spirograd.base import dtypes
from spirograd.base.dtypes import DType, i32, u1, u8
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Kernel, Op
from spirograd.spirvgen.instructions import Glsl, Instr, Unsupported
from spirograd.spirvgen.op_map import OP_MAP

from . import kit

LETTERS = {"b": (u1,), "i": dtypes.INTEGERS, "f": dtypes.FLOATS}
# Functions that GLSL.std.450 has for f16 and f32 only.
NARROW_MATH = {code for code, row in OP_MAP.items() if isinstance(row, Glsl) and not row.f64} | {ops.atan2, ops.pow_}


def test_totality() -> None:
    assert set(OP_MAP) == set(ops.ALL)
    for code, row in OP_MAP.items():
        if isinstance(row, Unsupported):
            assert row.reason
        elif code.level == "kernel":
            pytest.fail(f"{code} is kernel IR only")
        kinds = {t.kind for letter in code.domain for t in LETTERS[letter]}
        if isinstance(row, Instr):
            assert kinds == set(row.by_kind), code
        if isinstance(row, Glsl):
            assert kinds == {"float"}, code


def test_an_operation_that_never_arrives() -> None:
    """Its row raises, and says why."""
    for row in (row for row in OP_MAP.values() if isinstance(row, Unsupported)):
        with pytest.raises(TypeError, match=f"{row.reason[:12]}"):
            row(None, Op(ops.print_, None))  # type: ignore[arg-type]


def elementwise(code: ops.OpCode, t: DType, out: DType, attr: Any = None) -> tuple[Kernel, kit.Args]:
    """out[i] = code(a[i], b[i] ...); u1 is stored as u8."""
    stored = dtypes.storage(t)
    arity = code.arity or 1
    args = kit.Args([stored] * arity + [dtypes.storage(out)])

    def body(b: Builder, i: Op) -> tuple[Op, ...]:
        loaded = [b.load(ref, i) for ref in args.refs[:-1]]
        if t is u1:
            loaded = [b.emit(ops.ne, v, b.const(0, u8)) for v in loaded]
        value = b.emit(code, *loaded, attr=attr, type=out)
        if out is u1:
            value = b.emit(ops.select, value, b.const(1, u8), b.const(0, u8))
        b.store(args.refs[-1], i, value)
        return ()

    n = len(kit.samples(t)) ** min(arity, 2)
    return kit.range_for(lambda b: (b.const(0), b.const(n)), body), args


def operands(code: ops.OpCode, t: DType) -> list[np.ndarray]:
    """Every pair of samples; only what device IR may contain."""
    base = kit.samples(t)
    if code.arity == 1:
        columns = [base]
    else:
        columns = [np.repeat(base, len(base)), np.tile(base, len(base))]
        if code.arity == 3:
            columns.append(np.roll(columns[1], 5))
    if code in (ops.idiv, ops.irem):
        divisor = np.where(columns[1] == 0, 3, columns[1]).astype(t.np)
        columns[1] = np.where((divisor == -1) & (columns[0] == t.min), 3, divisor).astype(t.np) if t.is_signed else divisor
    if code is ops.pow_:  # `expand_math` has the other bases
        columns[0] = np.where(columns[0] == 0, 3, np.abs(columns[0])).astype(t.np)
    if code in (ops.shl, ops.shr):
        columns[1] = (columns[1] & (t.bits - 1)).astype(t.np)
    return columns


def cases() -> list[tuple[ops.OpCode, DType]]:
    out = []
    for code in ops.ALL:
        if isinstance(OP_MAP[code], Unsupported) or not code.domain:
            continue
        for t in (t for letter in code.domain for t in LETTERS[letter]):
            if (code in NARROW_MATH and t.bits == 64) or (code in (ops.popcnt, ops.clz, ops.ctz) and t.bits != 32):
                continue
            if code in (ops.trunc, ops.round_) and t.bits == 64:  # `legalize` leaves none: drivers get them wrong
                continue
            out.append((code, t))
    return out


def expected(code: ops.OpCode, t: DType, out: DType, columns: list[np.ndarray]) -> np.ndarray:
    return np.array([ops.evaluate(code, out, row) for row in zip(*columns)], dtype=out.np)


def tolerance(code: ops.OpCode, t: DType) -> float:
    exact = code not in NARROW_MATH and code not in (ops.sqrt, ops.rsqrt, ops.div, ops.fma)
    # The inverse functions are what the driver makes of them: Vulkan allows 4096 units in the last place.
    loose = 40 if code in (ops.asin, ops.acos, ops.atan2) and t.bits == 32 else 1
    return 0.0 if exact else {16: 4e-3, 32: 1e-5, 64: 1e-14}[t.bits] * loose


@pytest.mark.parametrize("code, t", cases(), ids=lambda x: x.name)
def test_against_evaluator(device: Any, code: ops.OpCode, t: DType) -> None:
    out = u1 if code.rule == "compare" else t
    kernel, args = elementwise(code, t, out)
    columns = operands(code, t)
    if t.is_float:
        special = np.array([np.nan, np.inf, -np.inf], t.np)
        if code in (ops.isnan, ops.isinf, ops.min_, ops.max_, ops.eq, ops.ne, ops.lt, ops.le, ops.gt, ops.ge, ops.abs_):
            for k, column in enumerate(columns):
                column[k : k + 9 : 3 - k] = np.resize(special, len(column[k : k + 9 : 3 - k]))
    want = expected(code, t, out, columns)
    arrays = [*[c.view(np.uint8) if t is u1 else c for c in columns], np.zeros(len(want), dtypes.storage(out).np)]
    options = CompileOptions(fast_math=False)
    got = kit.run(device, kernel, args, arrays, count=len(want), options=options, group_size=64)[-1]
    if out is u1:
        got = got.astype(bool)
    assert_close(got, want, tolerance(code, t), columns)


def assert_close(got: np.ndarray, want: np.ndarray, limit: float, columns: list[np.ndarray]) -> None:
    with np.errstate(all="ignore"):
        if want.dtype.kind == "f":
            near = np.abs(got.astype(np.float64) - want.astype(np.float64)) <= limit * np.maximum(1.0, np.abs(want.astype(np.float64)))
            good = near | (got == want) | (np.isnan(got) & np.isnan(want))
        else:
            good = got == want
    bad = np.flatnonzero(~good)
    assert not len(bad), [([c[k] for c in columns], got[k], want[k]) for k in bad[:8]]


@pytest.mark.parametrize("source", dtypes.ALL, ids=repr)
def test_casts(device: Any, source: DType) -> None:
    base = kit.samples(source)
    for target in dtypes.ALL:
        kernel, args = elementwise(ops.cast, source, target)
        values = base
        if source.is_float and target.is_int:
            values = np.abs(values) if not target.is_signed else values
        want = np.array([ops.evaluate(ops.cast, target, (v,)) for v in values], dtype=target.np)
        arrays = [values.view(np.uint8) if source is u1 else values, np.zeros(len(want), dtypes.storage(target).np)]
        got = kit.run(device, kernel, args, arrays, count=len(want))[-1]
        if target is u1:
            got = got.astype(bool)
        assert_close(got, want, 0.0, [values])


@pytest.mark.parametrize("target", [t for t in dtypes.ALL if t is not u1], ids=repr)
def test_bitcasts(device: Any, target: DType) -> None:
    for source in [t for t in dtypes.ALL if t is not u1 and t.bits == target.bits]:
        kernel, args = elementwise(ops.bitcast, source, target)
        values = kit.samples(source)
        got = kit.run(device, kernel, args, [values, np.zeros(len(values), target.np)], count=len(values))[-1]
        assert got.tobytes() == values.tobytes()


def test_select_and_constants(device: Any) -> None:
    """Constants of every type, infinities and NaN among them."""
    for t in [t for t in dtypes.ALL if t is not u1]:
        values = [float(v) for v in kit.samples(t)] + [float("inf"), float("-inf"), float("nan"), -0.0] if t.is_float else kit.samples(t)
        args = kit.Args([t])

        def build(b: Builder, values: Any = values, t: DType = t, args: kit.Args = args) -> None:
            for k, v in enumerate(values):
                b.store(args.refs[0], b.const(k, i32), b.const(v, t))

        got = kit.run(device, kit.serial(build), args, [np.zeros(len(values), t.np)])[0]
        np.testing.assert_array_equal(got, np.array(values).astype(t.np))
