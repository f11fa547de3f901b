"""The expansions of elementary functions against long double references (64-bit significand), and against IEEE 754 special cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from unit.math.math_evaluator import expanded, make_kernel, run

from spirograd.base.dtypes import DType, f16, f32, f64
from spirograd.ir import ops
from spirograd.ir.ops import BY_NAME

LONG = np.longdouble
N = 20_000
TARGET = {f16: "cpu", f32: "cpu", f64: "vulkan"}
REFERENCE: dict[str, Any] = {
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan2": np.arctan2,
    "tanh": np.tanh,
    "pow": np.power,
}
# Units in the last place that no argument may exceed.
BOUND_F32 = {"exp": 1.2, "log": 1.2, "sin": 2, "cos": 2, "tan": 3, "asin": 1.5, "acos": 1.5, "atan2": 2, "tanh": 1.7, "pow": 1.2}
BOUND_F64 = {"exp": 1.2, "log": 1.2, "sin": 1, "cos": 1, "tan": 1.5, "asin": 1.2, "acos": 1.2, "atan2": 1.6, "tanh": 2, "pow": 1.2}
CASES = [(t, code.name) for t in (f32, f64) for code in ops.ELEMENTARY]
needs_long_double = pytest.mark.skipif(np.finfo(LONG).nmant < 63, reason="long double is no wider than double here")


class Draw:
    """Random operands of type ``t``."""

    def __init__(self, t: DType) -> None:
        self.t = t
        self.rng = np.random.default_rng(20)
        self.exponents = (-149, 127) if t is f32 else (-1074, 1023)

    def uniform(self, low: float, high: float) -> Any:
        return self.rng.uniform(low, high, N)

    def log(self, low: float, high: float) -> Any:
        """e ** uniform, of either sign."""
        return np.exp(self.rng.uniform(low, high, N)) * self.rng.choice([-1.0, 1.0], N)

    def all(self) -> Any:
        """Every exponent alike, subnormal numbers too, of either sign."""
        return np.ldexp(self.rng.uniform(1, 2, N), self.rng.integers(*self.exponents, N)) * self.rng.choice([-1.0, 1.0], N)


def operands(t: DType, name: str) -> list[tuple[Any, ...]]:
    d = Draw(t)
    wide = t is f64
    angles = [(d.uniform(-10, 10),), (d.uniform(-1e6, 1e6),), (np.round(d.uniform(-6e5, 6e5)) * (math.pi / 2),), (d.log(-80, 0),)]
    arcs = [(d.uniform(-1, 1),), (d.log(-50, 0),), (np.sign(d.log(0, 1)) * (1 - np.abs(d.log(-30, -1))),)]
    near_one = 1 + d.log(-34 if wide else -15, -1)
    table = {
        "exp": [(d.uniform(-746, 710) if wide else d.uniform(-104, 89),), (d.uniform(-1, 1),), (d.all(),)],
        "log": [(np.abs(d.all()),), (d.uniform(0.5, 2),), (near_one,)],
        "tanh": [(d.uniform(-1, 1),), (d.uniform(-25, 25),), (d.all(),)],
        "atan2": [(d.uniform(-1, 1), d.uniform(-1, 1)), (d.all(), d.all()), (d.uniform(-1, 1), d.log(-10, 10))],
        "pow": [(np.abs(d.log(-20, 20)), d.uniform(-4, 4)), (np.abs(d.all()), d.uniform(-9, 9)), (near_one, d.log(0, 25 if wide else 9))],
        **dict.fromkeys(("sin", "cos", "tan"), angles),
        **dict.fromkeys(("asin", "acos"), arcs),
    }
    return [tuple(v.astype(t.np) for v in group) for group in table[name]]


def ulps(value: Any, reference: Any, t: DType) -> Any:
    """Error in units in the last place of the reference; infinite where only one of the two is finite, or NaN where it should not be."""
    with np.errstate(all="ignore"):
        rounded = reference.astype(t.np)
        error = np.abs(value.astype(LONG) - reference) / np.spacing(np.abs(rounded)).astype(LONG)
    same = (value == rounded) | (np.isnan(value) & np.isnan(rounded))
    return np.where(np.isfinite(rounded) & np.isfinite(value), error, np.where(same, 0.0, np.inf)).astype(np.float64)


@needs_long_double
@pytest.mark.parametrize("fuse", [False, True], ids=["unfused", "fused"])
@pytest.mark.parametrize(("t", "name"), CASES, ids=[f"{t.name}-{n}" for t, n in CASES])
def test_error_bound(t: DType, name: str, fuse: bool) -> None:
    kernel = expanded(BY_NAME[name], t, TARGET[t])
    bound = (BOUND_F32 if t is f32 else BOUND_F64)[name]
    for group in operands(t, name):
        with np.errstate(all="ignore"):
            reference = REFERENCE[name](*[v.astype(LONG) for v in group])
        errors = ulps(run(kernel, *group, fuse=fuse), reference, t)
        worst = int(np.argmax(errors))
        assert errors[worst] <= bound, (errors[worst], [v[worst] for v in group])


@needs_long_double
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_error_bound_without_f64(name: str) -> None:
    """The reduction by fused multiply-add, on both sides of where it gives way to that in f64, and around multiples of pi/4."""
    kernel = expanded(BY_NAME[name], f32, "cuda")
    edges = np.linspace(99_990, 100_010, N).astype(np.float32)
    turns = (np.arange(-60_000, 60_000) * (math.pi / 4)).astype(np.float32)
    groups = [*operands(f32, name), (edges,), (-edges,), (turns,), (np.nextafter(turns, np.float32(np.inf)),)]
    for (x,) in groups:
        with np.errstate(all="ignore"):
            reference = REFERENCE[name](x.astype(LONG))
        errors = ulps(run(kernel, x, fuse=True), reference, f32)
        worst = int(np.argmax(errors))
        assert errors[worst] <= BOUND_F32[name], (errors[worst], x[worst])
    x, expected = (np.array(values, np.float32) for values in zip(*UNARY[name]))
    assert same_bits(run(kernel, x, fuse=True), expected).all()


@pytest.mark.parametrize("fuse", [False, True], ids=["unfused", "fused"])
@pytest.mark.parametrize("target", ["vulkan", "wgpu"])
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_sines_of_drivers_with_coarse_ones(name: str, target: str, fuse: bool) -> None:
    """Without f64 and fused multiply-add: below 8,192; the device computes the others, here NumPy. A conversion to an integer saturates by
    selects, of which SwiftShader compiles no long chains."""
    kernel = expanded(BY_NAME[name], f32, target, coarse_sines=True)
    assert kernel.body.ops[-2].code is not BY_NAME[name]
    assert ops.cast not in {op.code for op in kernel.walk()}
    turns = (np.arange(-10_000, 10_000) * (math.pi / 2)).astype(np.float32)
    draw = Draw(f32)
    for x in (draw.uniform(-10, 10), draw.uniform(-8192, 8192), draw.log(-80, 0), turns, draw.uniform(-1e6, 1e6)):
        x = x.astype(np.float32)
        reference = REFERENCE[name](x.astype(np.float64))
        scale = 1 + reference**2 if name == "tan" else 1.0
        assert (np.abs(run(kernel, x, fuse=fuse) - reference) <= 2e-7 * scale).all()
    x, expected = (np.array(values, np.float32) for values in zip(*UNARY[name]))
    assert same_bits(run(kernel, x, fuse=fuse), expected).all()


@needs_long_double
@pytest.mark.parametrize("name", ["exp", "log"])
def test_error_bound_where_fma_rounds_once(name: str) -> None:
    kernel = expanded(BY_NAME[name], f32, "cuda")
    assert ops.div not in {op.code for op in kernel.walk()}
    seams = {
        "exp": (np.arange(-149.5, 129) * math.log(2)).astype(np.float32),
        "log": np.ldexp(np.linspace(0.6666, 0.6667, N), 1 + np.arange(N) % 100).astype(np.float32),
    }[name]
    for (x,) in [*operands(f32, name), (seams,), (np.nextafter(seams, np.float32(0)),)]:
        with np.errstate(all="ignore"):
            reference = REFERENCE[name](x.astype(LONG))
        errors = ulps(run(kernel, x, fuse=True), reference, f32)
        worst = int(np.argmax(errors))
        assert errors[worst] <= BOUND_F32[name], (errors[worst], x[worst])
    x, expected = (np.array(values, np.float32) for values in zip(*UNARY[name]))
    assert same_bits(run(kernel, x, fuse=True), expected).all()


INF, NAN = math.inf, math.nan
UNARY = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (1000.0, INF), (-1000.0, 0.0)],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.0, math.pi / 2), (-1.0, -math.pi / 2), (1.5, NAN), (-1.5, NAN), (INF, NAN), (NAN, NAN)],
    "acos": [(1.0, 0.0), (-1.0, math.pi), (0.0, math.pi / 2), (1.5, NAN), (-1.5, NAN), (-INF, NAN), (NAN, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (50.0, 1.0), (-50.0, -1.0)],
}
POSITIVE = [0.0, 1.0, INF, NAN, 0.5, 2.0, 3.0, 1.5, 1e30, 16777216.0, 16777215.0, 1e-30]
SPECIAL = POSITIVE + [-a for a in POSITIVE]


def same_bits(value: Any, expected: Any) -> Any:
    """Equal, zeros of the same sign, NaN for NaN."""
    return np.where(np.isnan(expected), np.isnan(value), (value == expected) & (np.signbit(value) == np.signbit(expected)))


@pytest.mark.parametrize("t", [f16, f32, f64], ids=str)
@pytest.mark.parametrize("name", list(UNARY))
def test_special_values(t: DType, name: str) -> None:
    x = np.array([a for a, _ in UNARY[name]], t.np)
    expected = np.array([b for _, b in UNARY[name]], t.np)
    value = run(expanded(BY_NAME[name], t, TARGET[t]), x)
    assert same_bits(value, expected).all(), list(zip(x, value, expected))


def c_pow(x: float, y: float) -> float:
    """C's pow for long double: Python's raises, and NumPy's for double takes a square root where y is 1/2."""
    with np.errstate(all="ignore"):
        return float(np.power(LONG(x), LONG(y)))


@pytest.mark.parametrize("t", [f32, f64], ids=str)
@pytest.mark.parametrize(("name", "reference"), [("pow", c_pow), ("atan2", math.atan2)])
def test_special_pairs(t: DType, name: str, reference: Any) -> None:
    with np.errstate(all="ignore"):
        pairs = [(float(t.np.type(a)), float(t.np.type(b))) for a in SPECIAL for b in SPECIAL]
        expected = np.array([reference(a, b) for a, b in pairs]).astype(t.np)
    x, y = np.array(pairs, t.np).T
    value = run(expanded(BY_NAME[name], t, TARGET[t]), np.ascontiguousarray(x), np.ascontiguousarray(y))
    ordinary = np.isfinite(expected) & (expected != 0)
    right = same_bits(value, expected) | (ordinary & (ulps(value, expected.astype(LONG), t) <= 2))
    assert right.all(), [(p, v, e) for p, v, e, ok in zip(pairs, value, expected, right) if not ok]


@pytest.mark.parametrize("t", [f32, f64], ids=str)
def test_powers_of_negative_numbers_keep_the_sign_of_odd_exponents(t: DType) -> None:
    x = np.full(9, -2.0, t.np)
    y = np.arange(-4, 5).astype(t.np)
    assert (run(expanded(ops.pow_, t, TARGET[t]), x, y) == np.array([1 / 16, -1 / 8, 1 / 4, -1 / 2, 1, -2, 4, -8, 16])).all()


@pytest.mark.parametrize("t", [f32, f64], ids=str)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_angles_stay_finite(t: DType, name: str) -> None:
    x = np.ldexp(np.linspace(1, 1.9, 1000), np.linspace(30, 127 if t is f32 else 1023, 1000).astype(int)).astype(t.np)
    value = run(expanded(BY_NAME[name], t, TARGET[t]), x)
    assert np.isfinite(value).all()
    assert name == "tan" or (np.abs(value) <= 1).all()


def test_half_precision_goes_through_single() -> None:
    x = np.linspace(-10, 10, 4001).astype(np.float16)
    for name in ("exp", "sin", "tanh"):
        value = run(expanded(BY_NAME[name], f16, "cpu"), x)
        assert value.dtype == np.float16
        assert (value == REFERENCE[name](x.astype(np.float64)).astype(np.float16)).mean() > 0.999


@pytest.mark.parametrize(
    ("target", "t", "changes"), [("cpu", f64, False), ("vulkan", f32, False), ("vulkan", f64, True), ("cpu", f32, True)]
)
def test_only_what_the_back_end_lacks_is_expanded(target: str, t: DType, changes: bool) -> None:
    inverse = (ops.asin, ops.acos, ops.atan2)  # expanded everywhere: see expand_math
    for code in ops.ELEMENTARY:
        codes = {op.code for op in expanded(code, t, target).walk()}
        assert (code not in codes) == (changes or (target == "vulkan" and code in inverse))
    rsqrt = make_kernel(ops.rsqrt, t)
    assert ops.rsqrt in {op.code for op in rsqrt.walk()}
