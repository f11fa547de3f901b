"""Operators of floats at NaN, infinities, zeros of both signs, subnormals and the ends of the range, on every back end, with and without
fast math, against NumPy: neither a back end nor its driver simplifies x - x, x * 0, x / x or (x + y) - x."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from fuzz.run import load

import spirograd as sg

pytestmark = [pytest.mark.archs("cpu", "vulkan", "wgpu", "interpreter"), pytest.mark.optimized]

# Quotients with larger divisors may be off by more: see docs/spirv.md.
_LARGEST_DIVISOR = 2.0**126
# Bit for bit, but for the payloads of NaN.
ROUNDED = (
    *("x + y", "x - y", "x * y", "-x", "-(x - y)", "-(-x)", "x - (x - y)", "(x + y) - x", "(x + y) - (y + x)", "x + y - y"),
    *("x * y - y * x", "x * y - x * y", "x - x", "(x - 1.0) * 0.0", "x * 0.0", "0.0 * x", "x * -0.0", "x + 0.0", "x - 0.0", "0.0 - x"),
    *("-0.0 - x", "x + -0.0", "x * 1.0", "x * -1.0", "x * 2.0 * 0.5", "x * 3.7 - x * 3.7", "x * y + x * -y", "abs(x)", "abs(-x) - abs(x)"),
    *("sg.floor(x)", "sg.ceil(x)", "x + (y - x)", "(x - y) + y", "x * 0.0 + y", "y - x * 0.0", "(x - x) * y", "(x + y) * 0.0", "-x + x"),
)
CHOICES = (
    *("x == x", "x != x", "x < y", "not (x < y)", "x <= y", "not (x <= y)", "not (x >= y)", "x == y", "x != y", "not (x == y)", "-x < -y"),
    *("x + y > x", "x + y == x", "x - y == 0.0", "x * 0.0 == 0.0", "x - x == 0.0", "(x < y) | (x > y)", "abs(x) < 0.0", "x + y < x + y"),
)
# The quotient of a device may be off by 2.5 units in the last place; overflow and underflow, too, are near the ends of the range.
QUOTIENTS = ("x / y", "x / x", "0.0 / x", "x / 0.0", "x / -0.0", "x / 1.0", "x / y * y", "x * y / y", "1.0 / (1.0 / x)", "sg.sqrt(x)")
QUOTIENTS += ("sg.sqrt(x) * sg.sqrt(x)", "1.0 / sg.sqrt(x)", "x / (x - x)", "(x - x) / x")
POWERS = ("x ** y", "x ** 2.0", "x ** -1.0", "x ** 0.5", "x ** 0.0", "x ** 3.0", "x ** -0.5", "x ** 1.5", "x ** -2.0", "x ** 5.0", "x ** 2")
POWERS += ("x ** -3", "x ** 1.0")


def values(t: Any) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of values."""
    limits = np.finfo(t.np)
    large = {16: 1e4, 32: 1e8, 64: 1e16}[t.bits]
    ends = [limits.max, limits.tiny, limits.smallest_subnormal, np.inf]
    numbers = np.array([0.0, 1.0, 3.7, 0.5, large, *ends], t.np)
    numbers = np.concatenate([numbers, -numbers, np.array([2.0, -3.0, -2.5, np.nan], t.np)])
    x, y = np.meshgrid(numbers, numbers)
    return np.ascontiguousarray(x.reshape(-1)), np.ascontiguousarray(y.reshape(-1))


class _NumPy:
    """What expressions name `sg`."""

    floor, ceil, sqrt = staticmethod(np.floor), staticmethod(np.ceil), staticmethod(np.sqrt)


def wanted(expression: str, t: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if "**" in expression:
        x, y = x.astype(np.float64), y.astype(np.float64)
        expression = re.sub(r"(\S+) \*\* (\S+)", r"power(\1, \2)", expression)
    literal = np.float64 if t is sg.f64 else np.float32  # of f16, too: `default_fp`
    text = re.sub(r"(\d+\.\d+)", r"literal(\1)", expression).replace("not (", "~(")
    names = {"x": x, "y": y, "literal": literal, "sg": _NumPy, "power": lambda a, b: np.power(a, np.full_like(a, b))}
    with np.errstate(all="ignore"):
        return np.asarray(eval(text, names)).astype(bool if expression in CHOICES else t.np)


def computed(expressions: tuple[str, ...], t: Any, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    a, b = (sg.field(t, len(x)) for _ in range(2))
    a.from_numpy(x)
    b.from_numpy(y)
    out = [sg.field(sg.i32 if e in CHOICES else t, len(x)) for e in expressions]
    for k in range(0, len(expressions), 12):
        lines = [f"        out[{j}][i] = sg.cast({e}, out[{j}].dtype)\n" for j, e in list(enumerate(expressions))[k : k + 12]]
        source = "@sg.kernel\ndef k():\n    for i in a:\n        x, y = a[i], b[i]\n" + "".join(lines)
        load(source, {"sg": sg, "a": a, "b": b, "out": out})()
    return {e: field.to_numpy() for e, field in zip(expressions, out)}


def agree(got: np.ndarray, want: np.ndarray, t: Any, exact: bool) -> np.ndarray:
    if want.dtype == bool:
        return got.astype(bool) == want
    same = (np.isnan(got) & np.isnan(want)) | ((got == want) & (np.signbit(got) == np.signbit(want)))
    if exact:
        return same
    limits = np.finfo(t.np)
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= {16: 4e-3, 32: 4e-5, 64: 1e-13}[t.bits] * np.abs(b)
        alike = np.signbit(a) == np.signbit(b)
        flushed = alike & (np.abs(a) <= 4 * limits.tiny) & (np.abs(b) <= 4 * limits.tiny)
        overflowed = alike & (np.abs(a) >= limits.max / 2) & (np.abs(b) >= limits.max / 2)
    return same | near & alike & (b != 0) | flushed | overflowed


def flushes(arch: str, fast_math: bool, t: Any) -> bool:
    """Whether the device takes subnormals for zeros, which it may only where docs/spirv.md says so."""
    small = sg.field(t, 2)
    small[0] = np.finfo(t.np).smallest_subnormal

    @sg.kernel
    def double():
        small[1] = small[0] + small[0]

    double()
    if small[1] != 0.0:
        return False
    exact = sg.lang.context.session().device.caps.exact_subnormals
    assert arch == "wgpu" or (arch == "vulkan" and (fast_math or t.bits not in exact))
    return True


@pytest.mark.parametrize("t", [sg.f32, sg.f64, sg.f16], ids=str)
@pytest.mark.parametrize("fast_math", [True, False])
def test_operators(arch: str, t: Any, fast_math: bool) -> None:
    sg.init(arch=arch, fast_math=fast_math, offline_cache=False, default_fp=sg.f64 if t is sg.f64 else sg.f32)
    x, y = values(t)
    # Drivers take logarithms of subnormals, from which they compute powers, for those of other small numbers.
    unspecified = (np.abs(x) < np.finfo(t.np).tiny) & (x != 0) & (arch in ("vulkan", "wgpu") and fast_math and t is sg.f32)
    flushed = flushes(arch, fast_math, t)
    subnormal = [(v != 0) & (np.abs(v) < np.finfo(t.np).tiny) for v in (x, y)]
    ends = np.array([np.abs(v) <= np.finfo(t.np).tiny for v in (x, y)]) & (np.array([x, y]) != 0)
    ends |= np.abs([x, y]).astype(np.float64) > _LARGEST_DIVISOR
    wrong = []
    for expressions, exact in ((ROUNDED, True), (CHOICES, True), (QUOTIENTS, False), (POWERS, False)):
        for expression, got in computed(expressions, t, x, y).items():
            want = wanted(expression, t, x, y)
            right = agree(got, want, t, exact) | (unspecified if expressions is POWERS else False)
            if flushed:
                right |= subnormal[0] | subnormal[1] | ((got == 0) & (np.abs(want) < np.finfo(t.np).tiny))
                right |= ends.any(axis=0) if expressions is QUOTIENTS else False  # products and reciprocals of them are subnormal
            bad = np.flatnonzero(~right)
            wrong += [f"{expression}: {len(bad)} of {len(x)}, x={x[k]} y={y[k]}: {got[k]}, not {want[k]}" for k in bad[:1]]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("fast_math", [True, False])
def test_statements_and_loops(arch: str, fast_math: bool, capfd: Any) -> None:
    """Updates in place, in memory and not, zeros that a driver finds out when it unrolls a loop, and what is printed."""
    sg.init(arch=arch, fast_math=fast_math, offline_cache=False)
    out = sg.field(sg.f32, 8)
    v = sg.Vector.field(3, sg.f32, 2)

    @sg.kernel
    def k(inf: sg.f32, n: sg.i32):
        out[0] = inf
        out[0] -= out[0]
        a = inf
        a -= a
        out[1] = a
        s = 0.0
        for i in range(2):
            s += inf * sg.cast(i, sg.f32)
        out[2] = s
        for i in range(n):
            out[3] += inf * sg.cast(i, sg.f32)
        t = 0.0
        for i in range(2):
            t += inf / t if i else 0.0
        out[4] = t
        out[5] = sg.select(inf > 0, 0.0, 1.0) * inf
        out[6] = (1.0 / inf) * inf
        v[0] = sg.Vector([inf, 1.0, -inf])
        v[0] -= v[0]
        print("printed", inf - inf, inf * 0.0)

    k(np.inf, 2)
    sg.sync()
    assert np.isnan(out.to_numpy()[[0, 1, 2, 3, 5, 6]]).all() and out[4] == np.inf, out.to_numpy()
    assert np.isnan(v[0][0]) and v[0][1] == 0 and np.isnan(v[0][2])
    assert "printed nan nan" in capfd.readouterr().out.replace("-nan", "nan")


def test_gradient_of_powers(arch: str) -> None:
    sg.init(arch=arch, offline_cache=False)
    pairs = [(np.nan, 2), (-0.0, -1), (0, 2), (-np.inf, 0.5), (np.inf, -1), (-np.inf, 3), (-2, 3), (2, 3), (-0.0, 3), (1, 5), (0, 1)]
    x, y, r = (sg.field(sg.f32, len(pairs), needs_grad=True) for _ in range(3))

    @sg.kernel
    def k():
        for i in x:
            r[i] = x[i] ** y[i]

    base, exponent = np.array(pairs, np.float32).T
    x.from_numpy(np.ascontiguousarray(base))
    y.from_numpy(np.ascontiguousarray(exponent))
    r.grad.fill(1.0)
    k()
    k.grad()
    np.testing.assert_allclose(r.to_numpy(), [np.nan, -np.inf, 0, np.inf, 0, -np.inf, -8, 8, -0.0, 1, 0], rtol=1e-5)
    np.testing.assert_allclose(x.grad.to_numpy(), [np.nan, -np.inf, 0, 0, -0.0, np.inf, 12, 12, 0, 5, 1], rtol=1e-5)
