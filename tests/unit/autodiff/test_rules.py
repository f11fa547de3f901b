"""The table of derivatives: every rule, in both directions, against differences in extended precision; and its edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from spirograd.analysis import trial
from spirograd.autodiff import rules
from spirograd.autodiff.rules import RULES, NoGradient, Rule, Structural
from spirograd.base.dtypes import DType, f16, f32, f64, i32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, Kernel, LoopAttr, Op
from spirograd.ir.ops import OpCode
from spirograd.ir.spec import verify

Array = Any


@dataclass
class Flows:
    """What a rule does: the result, the adjoints of the operands (None where there is none), the tangent of the result."""

    result: Array
    pulled: list[Array | None]
    pushed: Array | None


def emitted(code: OpCode, t: DType, operands: Sequence[Array | float]) -> list[Op]:
    """The operations that a pullback adds. Operands that are numbers are constants."""
    b = Builder()
    b.begin()
    args = tuple([b.const(x, t) if isinstance(x, float) else b.emit(ops.arg, attr=k, type=t) for k, x in enumerate(operands)])
    op = b.emit(code, *args)
    seed = b.emit(ops.arg, attr=len(args), type=t)
    before = len(b.ops)
    rules.pullback(b, op, args, op, seed)
    return b.ops[before:]


def flows(code: OpCode, t: DType, operands: Sequence[Array | float], adjoint: Array, tangents: Sequence[Array | None]) -> Flows:
    """Run ``code`` with its pullback and pushforward in a loop over the entries of arrays. Operands that are numbers are constants."""
    n = len(adjoint)
    arrays: list[Array] = []
    refs: list[ArrayRef] = []

    def new(values: Array) -> ArrayRef:
        arrays.append(np.array(values, t.np))
        refs.append(ArrayRef(f"a{len(refs)}", len(refs), t, 1))
        return refs[-1]

    b = Builder()
    b.begin()
    zero, end = b.const(0), b.emit(ops.shape, attr=(0, 0), type=i32)
    (i,) = b.begin(i32)
    seed = b.load(new(adjoint), i)
    args = tuple([b.const(x, t) if isinstance(x, float) else b.load(new(x), i) for x in operands])
    op = b.emit(code, *args)
    outputs = [op, *rules.pullback(b, op, args, op, seed)]
    outputs.append(rules.pushforward(b, op, args, op, tuple([None if d is None else b.load(new(d), i) for d in tangents])))
    places: list[int | None] = []
    for value in outputs:
        places.append(None if value is None else len(refs))
        if value is not None:
            assert value.type is t
            b.store(new(np.full(n, 777.0)), i, value)
    b.for_(zero, end, (), b.end(), LoopAttr(parallel=True))
    kernel = Kernel("k", tuple([ArrayArg(r.name, r.dtype, 1) for r in refs]), b.end())
    verify(kernel, "kernel")
    assert trial.run(kernel, arrays).fault is None
    got = [None if k is None else arrays[k] for k in places]
    return Flows(got[0], got[1:-1], got[-1])


# --- the rules against differences ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """``function`` of arrays; ``sample(rng, n, reach)`` gives operands, within e**-reach .. e**reach where the domain is unbounded;
    ``scale(operands)``: the length on which the function changes, per operand."""

    function: Callable[..., Array]
    sample: Callable[[np.random.Generator, int, float], list[Array]]
    scale: Callable[[list[Array]], list[Array]]


def positive(rng: np.random.Generator, n: int, reach: float) -> Array:
    return np.exp(rng.uniform(-reach, reach, n))


def signed(rng: np.random.Generator, n: int, reach: float) -> Array:
    return positive(rng, n, reach) * rng.choice([-1.0, 1.0], n)


def each(*samplers: Callable[[np.random.Generator, int, float], Array]) -> Callable[[np.random.Generator, int, float], list[Array]]:
    return lambda rng, n, reach: [s(rng, n, reach) for s in samplers]


def within(low: float, high: float) -> Callable[[np.random.Generator, int, float], Array]:
    """``high`` and ``low`` for wide types; within -2..2 where little can be represented."""
    return lambda rng, n, reach: rng.uniform(max(low, -2.0 * reach), min(high, 2.0 * reach), n)


def near(reach: float) -> Callable[[np.random.Generator, int, float], Array]:
    """Signed, of similar size, so that sums do not swallow an operand."""
    return lambda rng, n, wide: signed(rng, n, min(reach, wide))


def apart(rng: np.random.Generator, n: int, reach: float) -> list[Array]:
    """Pairs that differ by at least a fifth of their size."""
    a = signed(rng, n, reach)
    return [a, a * rng.choice([-1.0, 0.5, 0.8, 1.25, 3.0], n)]


def around(rng: np.random.Generator, n: int, reach: float) -> list[Array]:
    """Points (y, x) at any angle but that of the cut."""
    radius, angle = positive(rng, n, reach), rng.uniform(-3.0, 3.0, n)
    return [radius * np.sin(angle), radius * np.cos(angle)]


def sizes(x: list[Array]) -> list[Array]:
    return [abs(v) for v in x]


def at_most_one(x: list[Array]) -> list[Array]:
    return [np.minimum(abs(v), 1.0) + 1e-3 for v in x]


def to_one(x: list[Array]) -> list[Array]:
    return [1.0 - abs(v) for v in x]


def to_pole(x: list[Array]) -> list[Array]:
    return [0.3 * (math.pi / 2 - abs(v)) for v in x]


def hypotenuse(x: list[Array]) -> list[Array]:
    return [0.05 * np.hypot(*x)] * 2


def mixed(x: list[Array]) -> list[Array]:
    return [abs(x[0]), 1.0 / (1.0 + abs(np.log(x[0])))]


CASES = {
    ops.add: Case(np.add, each(near(3), near(3)), sizes),
    ops.sub: Case(np.subtract, each(near(3), near(3)), sizes),
    ops.mul: Case(np.multiply, each(signed, signed), sizes),
    ops.div: Case(np.divide, each(signed, signed), sizes),
    ops.neg: Case(np.negative, each(signed), sizes),
    ops.opaque: Case(np.positive, each(signed), sizes),
    ops.abs_: Case(np.abs, each(signed), sizes),
    ops.min_: Case(np.minimum, apart, sizes),
    ops.max_: Case(np.maximum, apart, sizes),
    ops.fma: Case(lambda a, b, c: a * b + c, each(near(2), near(2), near(2)), sizes),
    ops.sqrt: Case(np.sqrt, each(positive), sizes),
    ops.rsqrt: Case(lambda a: 1 / np.sqrt(a), each(positive), sizes),
    ops.exp: Case(np.exp, each(within(-20.0, 20.0)), at_most_one),
    ops.log: Case(np.log, each(positive), sizes),
    ops.sin: Case(np.sin, each(within(-20.0, 20.0)), at_most_one),
    ops.cos: Case(np.cos, each(within(-20.0, 20.0)), at_most_one),
    ops.tan: Case(np.tan, each(within(-1.4, 1.4)), to_pole),
    ops.asin: Case(np.arcsin, each(within(-0.98, 0.98)), to_one),
    ops.acos: Case(np.arccos, each(within(-0.98, 0.98)), to_one),
    ops.atan2: Case(np.arctan2, around, hypotenuse),
    ops.tanh: Case(np.tanh, each(within(-4.0, 4.0)), at_most_one),
    ops.pow_: Case(np.power, each(positive, within(-4.0, 4.0)), mixed),
}
# How far operands reach (see Case), and the relative error that is allowed.
PRECISIONS = {f64: (20.0, 2e-9), f32: (8.0, 2e-4), f16: (1.0, 2e-2)}


def slope(case: Case, x: list[Array], k: int) -> Array:
    """The derivative by operand ``k``: a five-point difference."""
    h = (1e-3 * case.scale(x)[k]).astype(np.longdouble)

    def at(steps: int) -> Array:
        return case.function(*[v.astype(np.longdouble) + (steps * h if j == k else 0) for j, v in enumerate(x)])

    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h)


def test_every_operation_has_an_entry() -> None:
    assert set(RULES) == set(ops.ALL)


def test_every_rule_is_tested_here() -> None:
    assert {code for code, rule in RULES.items() if isinstance(rule, Rule)} == {*CASES, ops.cast, ops.recall, ops.with_partial}


@pytest.mark.parametrize("code", RULES, ids=str)
def test_entries_are_complete(code: OpCode) -> None:
    rule = RULES[code]
    assert rule.text if isinstance(rule, Rule) else rule.reason
    if isinstance(rule, Rule):
        assert len(rule.partials) == code.arity
        assert code.effect == "pure"
        assert code is ops.cast or "f" in code.domain
    assert rules.differentiable(code) == isinstance(rule, Rule)
    if isinstance(rule, (NoGradient, Structural)) and code.rule == "same" and "f" in code.domain:
        assert code in (ops.floor, ops.ceil, ops.trunc, ops.round_, ops.stop_grad)  # no other operation on floats loses its derivative


@pytest.mark.parametrize("t", PRECISIONS, ids=str)
@pytest.mark.parametrize("code", CASES, ids=str)
def test_rules_agree_with_differences(code: OpCode, t: DType) -> None:
    case = CASES[code]
    reach, tolerance = PRECISIONS[t]
    rng = np.random.default_rng(20 + len(code.name))
    n = 120
    x = [v.astype(t.np) for v in case.sample(rng, n, reach)]
    adjoint = signed(rng, n, 1.0).astype(t.np)
    tangents = [signed(rng, n, 1.0).astype(t.np) for _ in x]
    for k in range(len(x)):
        only = [tangents[k] if j == k else None for j in range(len(x))]
        got = flows(code, t, x, adjoint, only)
        expected = slope(case, x, k)
        np.testing.assert_allclose(got.pulled[k], expected * adjoint, rtol=tolerance, atol=0)
        np.testing.assert_allclose(got.pushed, expected * tangents[k], rtol=tolerance, atol=0)


@pytest.mark.parametrize("code", CASES, ids=str)
def test_the_two_directions_are_adjoint(code: OpCode) -> None:
    rng = np.random.default_rng(7)
    n = 60
    x = CASES[code].sample(rng, n, 6.0)
    adjoint, tangents = signed(rng, n, 1.0), [signed(rng, n, 1.0) for _ in x]
    got = flows(code, f64, x, adjoint, tangents)
    parts = [p * d for p, d in zip(got.pulled, tangents)]
    size = np.sum(np.abs(parts), axis=0) + 1e-300
    assert np.max(np.abs(np.sum(parts, axis=0) - adjoint * got.pushed) / size) < 1e-13


# --- constants, casts ----------------------------------------------------------------------------------------------------


def test_constants_get_no_adjoint() -> None:
    x = np.array([2.0, -3.0])
    got = flows(ops.mul, f64, [x, 5.0], np.ones(2), [np.ones(2), None])
    assert got.pulled[1] is None
    np.testing.assert_array_equal(got.pulled[0], [5.0, 5.0])
    np.testing.assert_array_equal(got.pushed, [5.0, 5.0])


def test_no_tangents_give_none() -> None:
    assert flows(ops.pow_, f64, [np.ones(1), 2.0], np.ones(1), [None, None]).pushed is None


def test_recall_passes_everything_to_its_second_operand() -> None:
    a, b, g = np.array([1.0]), np.array([2.0]), np.array([3.0])
    got = flows(ops.recall, f64, [a, b], g, [np.array([5.0]), np.array([7.0])])
    assert (got.result[0], got.pulled[0][0], got.pulled[1][0], got.pushed[0]) == (1.0, 0.0, 3.0, 7.0)


def test_with_partial_adds_a_multiple_of_the_flow_of_its_second_operand() -> None:
    a, b, c, g = (np.array([x]) for x in (1.0, 2.0, 5.0, 3.0))
    got = flows(ops.with_partial, f64, [a, b, c], g, [np.array([7.0]), np.array([11.0]), np.array([13.0])])
    assert (got.result[0], got.pulled[0][0], got.pulled[1][0], got.pulled[2], got.pushed[0]) == (1.0, 3.0, 15.0, None, 7.0 + 5.0 * 11.0)


@pytest.mark.parametrize(("source", "target"), [(f64, f32), (f32, f64), (f16, f32), (f32, f16)], ids=str)
def test_casts_convert_the_flow(source: DType, target: DType) -> None:
    b = Builder()
    b.begin()
    x, up, down = [b.emit(ops.arg, attr=k, type=t) for k, t in enumerate((source, target, source))]
    op = b.emit(ops.cast, x, type=target)
    (back,) = rules.pullback(b, op, (x,), op, up)
    ahead = rules.pushforward(b, op, (x,), op, (down,))
    assert back is not None and back.type is source and back.args == (up,)
    assert ahead is not None and ahead.type is target and ahead.args == (down,)


def test_casts_of_integers_end_derivatives() -> None:
    b = Builder()
    b.begin()
    n, g, d = b.emit(ops.arg, attr=0, type=i32), b.emit(ops.arg, attr=1, type=f32), b.emit(ops.arg, attr=2, type=f32)
    op = b.emit(ops.cast, n, type=f32)
    assert rules.pullback(b, op, (n,), op, g) == (None,)
    cut = b.emit(ops.cast, d, type=i32)
    assert rules.pushforward(b, cut, (d,), cut, (d,)) is None


# --- powers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 7.0])
@pytest.mark.parametrize("t", [f64, f32], ids=str)
def test_powers_of_negative_bases(exponent: float, t: DType) -> None:
    x = np.array([-2.5, -1.0, -0.3, 0.7, 4.0], t.np)
    ones = np.ones(5)
    expected = exponent * x.astype(np.float64) ** (exponent - 1)
    constant = flows(ops.pow_, t, [x, exponent], ones, [ones, None])
    assert constant.pulled[1] is None
    np.testing.assert_allclose(constant.pulled[0], expected, rtol=1e-6)
    np.testing.assert_allclose(constant.pushed, expected, rtol=1e-6)
    variable = flows(ops.pow_, t, [x, np.full(5, exponent)], ones, [ones, None])
    np.testing.assert_allclose(variable.pulled[0], expected, rtol=1e-6)
    np.testing.assert_allclose(variable.pushed, expected, rtol=1e-6)


@pytest.mark.parametrize("exponent", [0.0, 2.0, 3.0, 0.5])
def test_constant_exponents_cost_no_logarithm(exponent: float) -> None:
    codes = [op.code for op in emitted(ops.pow_, f32, [np.ones(1), exponent])]
    assert ops.log not in codes
    assert (ops.pow_ in codes) == (exponent not in (0.0, 2.0))


@pytest.mark.parametrize(("exponent", "by_base"), [(0.0, 0.0), (1.0, 1.0), (2.0, 0.0), (3.0, 0.0), (0.5, math.inf)])
@pytest.mark.parametrize("constant", [False, True])
def test_powers_of_zero(exponent: float, by_base: float, constant: bool) -> None:
    got = flows(ops.pow_, f64, [np.zeros(1), exponent if constant else np.array([exponent])], np.ones(1), [np.ones(1), None])
    assert got.pulled[0][0] == by_base
    assert got.pushed[0] == by_base
    if not constant:
        assert got.pulled[1][0] == 0.0  # 0 ** b is 0 all around, or jumps


def test_a_power_that_underflows_has_no_slope() -> None:
    got = flows(ops.pow_, f32, [np.array([1e-30]), np.array([9.0])], np.ones(1), [None, np.ones(1)])
    assert got.result[0] == got.pulled[1][0] == got.pushed[0] == 0.0
    got = flows(ops.pow_, f32, [np.array([math.inf]), np.array([-2.0])], np.ones(1), [None, np.ones(1)])
    assert got.result[0] == got.pulled[1][0] == got.pushed[0] == 0.0


# --- edges ---------------------------------------------------------------------------------------------------------------


def test_abs_at_zero() -> None:
    x = np.array([0.0, -0.0, 1e-300, -1e-300])
    got = flows(ops.abs_, f64, [x], np.full(4, 3.0), [np.full(4, 2.0)])
    np.testing.assert_array_equal(got.pulled[0], [0.0, 0.0, 3.0, -3.0])
    np.testing.assert_array_equal(got.pushed, [0.0, 0.0, 2.0, -2.0])


@pytest.mark.parametrize("code", [ops.min_, ops.max_], ids=str)
def test_ties_and_nan_in_min_and_max(code: OpCode) -> None:
    a = np.array([2.0, math.nan, 2.0, math.nan, 0.0, math.inf, -math.inf])
    b = np.array([2.0, 5.0, math.nan, math.nan, -0.0, math.inf, -math.inf])
    g, da, db = np.full(7, 4.0), np.full(7, 3.0), np.full(7, 5.0)
    got = flows(code, f64, [a, b], g, [da, db])
    first = np.array([True, False, True, True, True, True, True])
    np.testing.assert_array_equal(got.result[1:3], [5.0, 2.0])
    np.testing.assert_array_equal(got.pulled[0], np.where(first, 4.0, 0.0))
    np.testing.assert_array_equal(got.pulled[1], np.where(first, 0.0, 4.0))
    np.testing.assert_array_equal(got.pushed, np.where(first, 3.0, 5.0))


# Points where a partial derivative is infinite or undefined.
SINGULAR = [
    (ops.sqrt, [0.0]),
    (ops.sqrt, [-1.0]),
    (ops.rsqrt, [0.0]),
    (ops.log, [0.0]),
    (ops.log, [-1.0]),
    (ops.div, [1.0, 0.0]),
    (ops.div, [0.0, 0.0]),
    (ops.pow_, [0.0, 0.5]),
    (ops.pow_, [0.0, -1.0]),
    (ops.pow_, [0.0, 0.0]),
    (ops.pow_, [-1.5, 0.5]),
    (ops.pow_, [-1.5, 3.0]),
    (ops.asin, [1.0]),
    (ops.asin, [-1.0]),
    (ops.asin, [2.0]),
    (ops.acos, [1.0]),
    (ops.acos, [-1.0]),
    (ops.acos, [-2.0]),
    (ops.atan2, [0.0, 0.0]),
    (ops.atan2, [0.0, -1.0]),
]


@pytest.mark.parametrize("t", [f64, f32, f16], ids=str)
@pytest.mark.parametrize(("code", "point"), SINGULAR, ids=str)
def test_nothing_flows_if_nothing_comes(code: OpCode, point: list[float], t: DType) -> None:
    zeros = np.array([0.0, -0.0])
    x = [np.full(2, v) for v in point]
    got = flows(code, t, x, zeros, [zeros] * len(x))
    for flow in [*got.pulled, got.pushed]:
        np.testing.assert_array_equal(flow, [0.0, 0.0])


@pytest.mark.parametrize(
    ("code", "point", "expected"), [(ops.sqrt, 0.0, math.inf), (ops.log, 0.0, math.inf), (ops.asin, 1.0, math.inf)], ids=str
)
def test_something_flows_without_bounds_at_edges(code: OpCode, point: float, expected: float) -> None:
    got = flows(code, f64, [np.array([point])], np.ones(1), [np.ones(1)])
    assert got.pulled[0][0] == got.pushed[0] == expected


@pytest.mark.parametrize("code", CASES, ids=str)
def test_flows_of_nan_are_not_hidden(code: OpCode) -> None:
    """An adjoint or tangent that is NaN stays NaN, guarded or not: only 0 is let through as nothing."""
    if code in (ops.min_, ops.max_):
        return  # one of the operands gets 0
    x = CASES[code].sample(np.random.default_rng(3), 4, 1.0)
    nan = np.full(4, math.nan)
    got = flows(code, f64, x, nan, [nan] * len(x))
    assert all(np.isnan(flow).all() for flow in [*got.pulled, got.pushed])


@pytest.mark.parametrize("size", [1e30, 1e-30, 3e37])
@pytest.mark.parametrize("direction", [(3.0, 4.0), (-3.0, 4.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1e-20), (0.6, -0.8)])
def test_angles_of_extreme_points(size: float, direction: tuple[float, float]) -> None:
    y, x = [np.array([v * size], np.float32) for v in direction]
    weight = np.float32(size)  # so that the flows themselves are within range
    got = flows(ops.atan2, f32, [y, x], np.array([weight]), [np.array([weight]), None])
    wide_y, wide_x = float(y[0]), float(x[0])
    square = wide_y**2 + wide_x**2
    np.testing.assert_allclose(got.pulled[0], [wide_x / square * float(weight)], rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(got.pulled[1], [-wide_y / square * float(weight)], rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(got.pushed, got.pulled[0], rtol=1e-6)


@pytest.mark.parametrize("code", [ops.asin, ops.acos], ids=str)
def test_inverse_sines_near_their_edge(code: OpCode) -> None:
    """1 - a^2 is (1 - a)(1 + a): of a rounded square, little would be left."""
    x = np.array([0.999, 0.9999, 0.99999, -0.9997], np.float32)
    got = flows(code, f32, [x], np.ones(4), [np.ones(4)])
    np.testing.assert_allclose(np.abs(got.pulled[0]), 1.0 / np.sqrt(1.0 - x.astype(np.float64) ** 2), rtol=1e-6)
