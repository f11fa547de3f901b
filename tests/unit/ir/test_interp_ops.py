"""Every pure operation, on every type it takes, against Python integers and NumPy arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from spirograd.analysis import trial
from spirograd.base import dtypes as dt
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.interp_steps import FAST
from spirograd.ir.nodes import ArrayArg, ArrayRef, Kernel, LoopAttr, Op, ScalarArg
from spirograd.ir.ops import OpCode
from spirograd.ir.spec import verify


def samples(t: DType) -> np.ndarray[Any, Any]:
    if t is dt.u1:
        return np.array([False, True])
    if t.is_int:
        values = {0, 1, 2, 3, 7, 31, 32, t.bits - 1, t.bits, t.max, t.max - 1, t.max // 3, t.min, t.min + 1, -1, -2, -7, -t.bits}
        return np.array([v for v in sorted(values) if t.min <= v <= t.max], t.np)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.3, 3.7, -3.7, 100.25, t.max, t.min, math.inf, -math.inf, math.nan]
    return np.array([*special, float(np.finfo(t.np).tiny), float(np.finfo(t.np).smallest_subnormal)], t.np)


def evaluate(code: OpCode, operands: list[np.ndarray[Any, Any]], types: list[DType], result: DType) -> np.ndarray[Any, Any]:
    """``code`` on arrays of operands, by a kernel that loops over them."""
    n = len(operands[0])
    everything = [*types, result]
    refs = [ArrayRef(f"a{k}", k, t, 1) for k, t in enumerate(everything)]
    b = Builder()
    b.begin()
    zero, end = b.const(0), b.emit(ops.shape, attr=(len(types), 0), type=dt.i32)
    (i,) = b.begin(dt.i32)
    value = b.emit(code, *[b.load(ref, i) for ref in refs[:-1]], type=result)
    b.store(refs[-1], i, value)
    b.for_(zero, end, (), b.end(), LoopAttr(parallel=True))
    kernel = Kernel("k", tuple([ArrayArg(r.name, r.dtype, 1) for r in refs]), b.end())
    verify(kernel, "kernel")
    out = np.zeros(n, dt.storage(result).np)
    arrays = [np.ascontiguousarray(x).view(dt.storage(t).np) for x, t in zip(operands, types)]
    assert trial.run(kernel, [*arrays, out]).fault is None
    return out.view(np.bool_) if result is dt.u1 else out


def product(*columns: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    rows = list(itertools.product(*[range(len(c)) for c in columns]))
    return [c[[row[k] for row in rows]] for k, c in enumerate(columns)]


def wrap(t: DType, value: int) -> int:
    value &= (1 << t.bits) - 1
    return value - (1 << t.bits) if t.is_signed and value >= 1 << (t.bits - 1) else value


def truncated(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER: dict[str, Callable[..., int]] = {
    "add": lambda t, a, b: a + b,
    "sub": lambda t, a, b: a - b,
    "mul": lambda t, a, b: a * b,
    "idiv": lambda t, a, b: truncated(a, b),
    "irem": lambda t, a, b: 0 if b == 0 else a - b * truncated(a, b),
    "floordiv": lambda t, a, b: 0 if b == 0 else math.floor(a // b),
    "floormod": lambda t, a, b: 0 if b == 0 else a - b * (a // b),
    "neg": lambda t, a: -a,
    "abs": lambda t, a: abs(a),
    "min": lambda t, a, b: min(a, b),
    "max": lambda t, a, b: max(a, b),
    "and": lambda t, a, b: a & b,
    "or": lambda t, a, b: a | b,
    "xor": lambda t, a, b: a ^ b,
    "not": lambda t, a: ~a,
    "shl": lambda t, a, b: a << (b % t.bits),
    "shr": lambda t, a, b: a >> (b % t.bits),
    "stop_grad": lambda t, a: a,
    "recall": lambda t, a, b: a,
    "popcnt": lambda t, a: bin(a & ((1 << t.bits) - 1)).count("1"),
    "clz": lambda t, a: len(format(a & ((1 << t.bits) - 1), f"0{t.bits}b").split("1")[0]),
    "ctz": lambda t, a: len(format(a & ((1 << t.bits) - 1), f"0{t.bits}b")[::-1].split("1")[0]),
}
FLOAT: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "abs": np.abs, "min": np.fmin,
    "max": np.fmax, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.round,
    "stop_grad": np.positive, "recall": lambda a, b: a, "opaque": np.positive,
}  # fmt: skip
MATH: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda a: 1 / np.sqrt(a), "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan2": np.arctan2, "tanh": np.tanh, "pow": np.power, "fma": lambda a, b, c: a * b + c,
    "with_partial": lambda a, b, c: a,
}  # fmt: skip
COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
BOOL: dict[str, Callable[..., Any]] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not, "stop_grad": np.copy,
    "recall": lambda a, b: a,
}  # fmt: skip


def cases(table: dict[str, Any], types: tuple[DType, ...]) -> list[Any]:
    return [pytest.param(ops.BY_NAME[name], t, id=f"{name}-{t.name}") for name in table for t in types]


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(a, b)
    number = ~np.isnan(a)
    np.testing.assert_array_equal(np.signbit(a[number]), np.signbit(b[number]))


@pytest.mark.parametrize(("code", "t"), cases(INTEGER, dt.INTEGERS))
def test_integers(code: OpCode, t: DType) -> None:
    assert code.arity is not None
    columns = product(*[samples(t)] * code.arity)
    want = [wrap(t, INTEGER[code.name](t, *map(int, row))) for row in zip(*columns)]
    got = evaluate(code, columns, [t] * code.arity, t)
    np.testing.assert_array_equal(got, np.array(want, t.np))


@pytest.mark.parametrize(("code", "t"), cases(FLOAT, dt.FLOATS))
def test_floats(code: OpCode, t: DType) -> None:
    assert code.arity is not None
    columns = product(*[samples(t)] * code.arity)
    with np.errstate(all="ignore"):
        want = FLOAT[code.name](*columns)
    got = evaluate(code, columns, [t] * code.arity, t)
    if code in (ops.min_, ops.max_):
        np.testing.assert_array_equal(got, want)  # which zero wins is not said
    else:
        same_bits(got, want)


def nearest_sum(a: Any, b: Any, c: Any, near: Any) -> Any:
    """a * b + c, rounded once: ``near``, or one of its neighbours."""
    if not np.isfinite([a, b, c, near]).all():
        return near
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    numbers = [near, *[np.nextafter(near, near.dtype.type(end)) for end in (np.inf, -np.inf)]]
    return min(filter(np.isfinite, numbers), key=lambda number: abs(Fraction(float(number)) - exact))


@pytest.mark.parametrize(("code", "t"), cases(MATH, dt.FLOATS))
def test_math(code: OpCode, t: DType) -> None:
    assert code.arity is not None
    columns = product(*[samples(t)[:: 1 if code.arity < 3 else 3]] * code.arity)
    with np.errstate(all="ignore"):
        want = MATH[code.name](*[c.astype(np.float64) for c in columns]).astype(t.np)
        if code in (ops.fma, ops.rsqrt):  # each operation in the type, as code for the CPU does
            want = MATH[code.name](*columns)
        if code is ops.fma and t is dt.f32:
            want = np.array([nearest_sum(*row) for row in zip(*columns, want)])
    got = evaluate(code, columns, [t] * code.arity, t)
    np.testing.assert_allclose(got, want, rtol=0 if t is not dt.f64 else 1e-15)


@pytest.mark.parametrize(("code", "t"), cases(COMPARE, dt.ALL))
def test_comparisons(code: OpCode, t: DType) -> None:
    if t is dt.u1 and "b" not in code.domain:
        pytest.skip("not ordered")
    columns = product(samples(t), samples(t))
    np.testing.assert_array_equal(evaluate(code, columns, [t, t], dt.u1), COMPARE[code.name](*columns))


@pytest.mark.parametrize("name", BOOL)
def test_truth_values(name: str) -> None:
    code = ops.BY_NAME[name]
    assert code.arity is not None
    columns = product(*[samples(dt.u1)] * code.arity)
    np.testing.assert_array_equal(evaluate(code, columns, [dt.u1] * code.arity, dt.u1), BOOL[name](*columns))


@pytest.mark.parametrize("t", dt.FLOATS, ids=str)
def test_classification(t: DType) -> None:
    x = samples(t)
    np.testing.assert_array_equal(evaluate(ops.isnan, [x], [t], dt.u1), np.isnan(x))
    np.testing.assert_array_equal(evaluate(ops.isinf, [x], [t], dt.u1), np.isinf(x))


def converted(value: Any, t: DType) -> Any:
    """A conversion, stated independently."""
    if t is dt.u1:
        return value != 0
    if t.is_float:
        with np.errstate(all="ignore"):
            return t.np.type(value)
    if isinstance(value, np.floating):
        if math.isnan(value):
            return 0
        number = float(value)
        return int(t.max if number >= t.max else t.min if number <= t.min else math.trunc(number))
    return wrap(t, int(value))


@pytest.mark.parametrize(("source", "target"), [(a, b) for a in dt.ALL for b in dt.ALL], ids=lambda t: t.name)
def test_casts(source: DType, target: DType) -> None:
    x = samples(source)
    want = np.array([converted(v, target) for v in x], target.np)
    got = evaluate(ops.cast, [x], [source], target)
    np.testing.assert_array_equal(got, want)


PAIRS = [(a, b) for a in dt.ALL for b in dt.ALL if a.bits == b.bits and dt.u1 not in (a, b)]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda t: t.name)
def test_bitcasts(source: DType, target: DType) -> None:
    x = samples(source)
    got = evaluate(ops.bitcast, [x], [source], target)
    assert got.tobytes() == x.tobytes()


@pytest.mark.parametrize("t", dt.ALL, ids=str)
def test_select(t: DType) -> None:
    c, a, b = product(samples(dt.u1), samples(t), samples(t)[::-1])
    np.testing.assert_array_equal(evaluate(ops.select, [c, a, b], [dt.u1, t, t], t), np.where(c, a, b))


def test_every_pure_operation_is_tested() -> None:
    tested = {*INTEGER, *FLOAT, *MATH, *COMPARE, *BOOL, "isnan", "isinf", "cast", "bitcast", "select"}
    elsewhere = {"const", "result", "vec", "extract", "insert", "call", "stack_room"}
    elsewhere |= {"tile_entries", "tile_rows", "tile_product"}  # of groups: tests/backend/test_tile_products.py
    elsewhere |= {"arg", "shape", "address", "seed", "adstack_word", "thread_slot", "builtin", "slot"}
    elsewhere |= {code.name for code in ops.ON_LANES}  # of lanes: tests/unit/transforms/test_vector_loops.py
    pure = {code.name for code in ops.ALL if code.effect == "pure"}
    assert pure <= tested | elsewhere and tested <= pure


@pytest.mark.parametrize("code", FAST, ids=lambda code: code.name)
def test_fast_functions_do_what_the_table_says(code: OpCode) -> None:
    """The interpreter's shortcuts agree with the evaluators, bit for bit and in type."""
    types = [t for t in dt.ALL if ("b" if t is dt.u1 else "i" if t.is_int else "f") in code.domain]
    assert code.arity is not None
    for t in types:
        result = dt.u1 if code.rule == "compare" else t
        for row in zip(*product(*[samples(t)] * code.arity)):
            want = ops.evaluate(code, result, tuple(row))
            with np.errstate(all="ignore"):
                got = FAST[code](*row)
            assert type(got) is type(want), (t, row)
            assert got.tobytes() == want.tobytes() or (got != got and want != want), (t, row)


def test_vectors() -> None:
    """Elements come and go by index; an index out of range touches nothing else."""
    b = Builder()
    b.begin()
    x = ArrayRef("x", 0, dt.f32, 1)
    index: Op = b.emit(ops.arg, attr=1, type=dt.i32)
    v = b.emit(ops.vec, *[b.const(float(k), dt.f32) for k in range(4)])
    w = b.emit(ops.insert, v, index, b.const(9.0, dt.f32))
    chosen = b.emit(ops.select, b.const(True, dt.u1), w, v)
    for k in range(4):
        b.store(x, b.const(k), b.emit(ops.extract, chosen, b.const(k)))
    b.store(x, b.const(4), b.emit(ops.extract, v, index))
    from_kernel = Kernel("k", (ArrayArg("x", dt.f32, 1), ScalarArg("i", dt.i32)), b.end())
    verify(from_kernel, "kernel")
    for i in range(4):
        out = np.zeros(5, np.float32)
        trial.run(from_kernel, [out, i])
        want = np.arange(4, dtype=np.float32)
        want[i] = 9
        np.testing.assert_array_equal(out, [*want, i])
    for i in (-1, 4, 1 << 30):
        out = np.zeros(5, np.float32)
        assert trial.run(from_kernel, [out, i]).fault is None
        assert set(out) <= {0, 1, 2, 3, 9}
