"""Operators and scalar functions: division, powers, shifts, bits, comparison, truth, extrema, rounding, bit patterns."""



import itertools
import math

import numpy as np
import pytest
from backend.twin import exact_division

import spirograd as sg
from spirograd.base import dtypes
from spirograd.base.dtypes import DType

pytestmark = pytest.mark.usefixtures("session")
INTEGERS = dtypes.INTEGERS


def edges(t: DType) -> list[int]:
    values = {0, 1, 2, 3, 7, int(t.max), int(t.max) - 1, int(t.min)}
    return sorted(values | ({-1, -2, -3, -7, int(t.min) + 1} if t.is_signed else set()))


def wrap(value: int, t: DType) -> int:
    value &= (1 << t.bits) - 1
    return value - (1 << t.bits) if t.is_signed and value >> (t.bits - 1) else value


def truncated(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_integer_division_and_powers(arch: str, t: DType) -> None:
    """//, %, raw_div, raw_mod by everything including 0 and -1; ** with run-time exponents; unary operators."""

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), y: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in range(x.shape[0]):
            a, b = x[i], y[i]
            out[0, i] = a // b
            out[1, i] = a % b
            out[2, i] = sg.raw_div(a, b)
            out[3, i] = sg.raw_mod(a, b)
            out[4, i] = a**b
            out[5, i] = -a
            out[6, i] = ~a
            out[7, i] = abs(a)
            out[8, i] = a**3
            out[9, i] = a**0
            out[10, i] = sg.min(a, b)
            out[11, i] = max(a, b)

    a, b = (np.array(v, t.np) for v in zip(*itertools.product(edges(t), edges(t))))
    out = np.zeros((12, len(a)), t.np)
    run(a, b, out)

    def power(p: int, q: int) -> int:
        if q >= 0:
            return pow(p, q, 1 << t.bits)
        return 1 if p == 1 else (-1) ** (q & 1) if p == -1 else 0

    for k, (p, q) in enumerate(zip(a.tolist(), b.tolist())):
        want = [
            p // q if q else 0,
            p % q if q else 0,
            truncated(p, q) if q else 0,
            p - q * truncated(p, q) if q else 0,
            power(p, q),
            -p,
            ~p,
            abs(p),
            p**3,
            1,
            min(p, q),
            max(p, q),
        ]
        assert out[:, k].tolist() == [wrap(w, t) for w in want], (p, q)


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_shifts_and_bits(arch: str, t: DType) -> None:
    counts = [0, 1, 3, t.bits - 1]

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), n: sg.types.ndarray(sg.i32, 1), out: sg.types.ndarray(t, 2), bits: sg.types.ndarray(sg.i32, 2)):
        for i in range(x.shape[0]):
            a, c = x[i], n[i]
            out[0, i] = a << c
            out[1, i] = a >> c
            out[2, i] = sg.bit_shr(a, c)
            out[3, i] = sg.bit_shl(a, 1)
            out[4, i] = sg.bit_sar(a, 1)
            b = a
            b <<= c
            b >>= c
            b |= 1
            b ^= 3
            b &= 0x7F
            out[5, i] = b
            bits[0, i] = sg.popcnt(a)
            bits[1, i] = sg.clz(a)
            bits[2, i] = sg.ffs(a)

    a, n = zip(*itertools.product([*edges(t), 0x55, 64], counts))
    x, c = np.array(a, t.np), np.array(n, np.int32)
    out, bits = np.zeros((6, len(x)), t.np), np.zeros((3, len(x)), np.int32)
    run(x, c, out, bits)
    mask = (1 << t.bits) - 1
    for k, (p, s) in enumerate(zip(x.tolist(), c.tolist())):
        u = p & mask
        b = ((wrap(wrap(p << s, t) >> s, t) | 1) ^ 3) & 0x7F
        assert out[:, k].tolist() == [wrap(v, t) for v in (p << s, p >> s, u >> s, p << 1, p >> 1, b)], (p, s)
        assert bits[:, k].tolist() == [u.bit_count(), t.bits - u.bit_length(), (u & -u).bit_length()], p


@pytest.mark.parametrize("t", dtypes.FLOATS, ids=str)
def test_float_division(arch: str, t: DType) -> None:
    values = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, -7.0, 0.3, 100.25, np.inf, -np.inf, np.nan]
    x, y = (np.array(v, t.np) for v in zip(*itertools.product(values, values)))
    sg.init(arch=arch, fast_math=False)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), y: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in range(x.shape[0]):
            a, b = x[i], y[i]
            out[0, i] = a / b
            out[1, i] = a // b
            out[2, i] = a % b
            out[3, i] = sg.raw_mod(a, b)
            out[4, i] = sg.min(a, b)
            out[5, i] = sg.max(a, b)
            out[6, i] = -a
            out[7, i] = abs(a)
            out[8, i] = sg.raw_div(a, b)

    out = np.zeros((9, len(x)), t.np)
    run(x, y, out)
    with np.errstate(all="ignore"):
        quotient = x / y
        rtol = 3e-7 if t.bits < 64 else 1e-15
        rtol = rtol if exact_division() else 3 * float(np.finfo(t.np).eps)
        wants = [quotient, np.floor(quotient), None, None, np.fmin(x, y), np.fmax(x, y), -x, np.abs(x), quotient]
        for row, want in enumerate(wants):
            if want is not None:
                np.testing.assert_allclose(out[row], want, rtol=rtol, err_msg=str(row))
        ordinary = np.isfinite(x) & np.isfinite(y) & (y != 0)
        p, q = x[ordinary].astype(np.float64), y[ordinary].astype(np.float64)
        tolerance = float(np.finfo(t.np).eps) * 400
        np.testing.assert_allclose(out[2][ordinary], p - np.floor(quotient[ordinary]).astype(np.float64) * q, atol=tolerance)
        np.testing.assert_allclose(out[3][ordinary], p - np.trunc(quotient[ordinary]).astype(np.float64) * q, atol=tolerance)


def test_true_division_of_integers(arch: str) -> None:
    @sg.kernel
    def run(a: sg.i32, b: sg.i32, c: sg.u8, d: sg.i64, out: sg.types.ndarray(sg.f64, 1)):
        out[0] = a / b
        out[1] = c / 2
        out[2] = d / c
        out[3] = 1 / 3
        out[4] = a / 2.0
        x = a
        x /= 2
        out[5] = x
        out[6] = True / sg.u8(2)

    out = np.zeros(7)
    run(7, -2, 5, 10, out)
    np.testing.assert_allclose(out, [-3.5, 2.5, 2, 1 / 3, 3.5, 3, 0.5], rtol=1e-7)


def test_float_powers(arch: str) -> None:
    """Constant and run-time exponents, integer and float bases."""

    @sg.kernel
    def run(x: sg.f64, n: sg.i32, y: sg.f64, out: sg.types.ndarray(sg.f64, 1)):
        out[0] = x**2
        out[1] = x**-3
        out[2] = x**n
        out[3] = x**y
        out[4] = x**0.5
        out[5] = n**y
        out[6] = 2**y
        out[7] = x**0
        out[8] = sg.pow(x, 10)
        out[9] = pow(n, 3)
        out[10] = 2**n
        out[11] = x**64

    out = np.zeros(12)
    x, n, y = 1.7, 5, -1.25
    run(x, n, y, out)
    want = [x**2, x**-3, x**n, x**y, x**0.5, n**y, 2**y, 1, x**10, 125, 32, x**64]
    np.testing.assert_allclose(out, want, rtol=1e-13)


def test_integer_to_a_negative_power(arch: str) -> None:
    @sg.kernel
    def run(a: sg.i32) -> sg.i32:
        return a**-1

    with pytest.raises(sg.SpirogradTypeError, match="negative power"):
        run(2)


def test_comparison_chains_and_truth(arch: str) -> None:
    @sg.kernel
    def run(a: sg.i32, b: sg.i32, x: sg.f32, out: sg.types.ndarray(sg.i32, 1)):
        out[0] = 0 < a < 10
        out[1] = 0 < a < b <= 20
        out[2] = a < b > x
        out[3] = a == b != 3
        out[4] = not a
        out[5] = not x
        out[6] = a and b
        out[7] = a or b
        out[8] = (a > 0 and x > 0) or b == 7
        out[9] = 1 if x else 2
        out[10] = bool(a) + bool(x)
        out[11] = (a > 0) == (b > 0)
        out[12] = (a > 0) & (b > 0) | (x > 0)
        out[13] = ~(a > 0)
        out[14] = (a > 0) ^ True
        out[15] = a > 0 and not x > 0 and b

    for a, b, x in [(5, 7, 1.5), (0, 0, 0.0), (-3, 20, -0.5), (9, 21, np.nan), (10, 3, 30.0)]:
        out = np.zeros(16, np.int32)
        run(a, b, x, out)
        want = [
            0 < a < 10, 0 < a < b <= 20, a < b > x, a == b != 3, not a, not x, a and b, a or b,
            (a > 0 and x > 0) or b == 7, 1 if x else 2, bool(a) + bool(x), (a > 0) == (b > 0), (a > 0) & (b > 0) | (x > 0),
            not a > 0, (a > 0) ^ True, a > 0 and not x > 0 and b,
        ]  # fmt: skip
        assert out.tolist() == [int(w) for w in want], (a, b, x)


def test_short_circuit(arch: str) -> None:
    """The right side runs only where it decides: its effects are seen, its division and its access are not done."""
    hits = sg.field(sg.i32, shape=())
    data = sg.field(sg.i32, shape=3)

    @sg.func
    def hit(value):
        hits[None] += 1
        return value

    @sg.kernel
    def run(a: sg.i32, out: sg.types.ndarray(sg.i32, 1)):
        out[0] = a > 0 and hit(True)
        out[1] = hits[None]
        out[2] = a > 0 or hit(True)
        out[3] = hits[None]
        out[4] = hit(a) if a > 5 else 7
        out[5] = hits[None]
        out[6] = a < 3 and data[a] == 0
        out[7] = (a > 0 and hit(a > 1)) or (a > 2 and hit(False)) or hit(True)
        out[8] = hits[None]

    def reference(a: int) -> list[int]:
        count = 0

        def hit(value: int) -> int:
            nonlocal count
            count += 1
            return value

        out = [int(a > 0 and hit(True)), 0, 0, 0, 0, 0, 0, 0, 0]
        out[1] = count
        out[2] = int(a > 0 or hit(True))
        out[3] = count
        out[4] = hit(a) if a > 5 else 7
        out[5] = count
        out[6] = int(a < 3)
        out[7] = int((a > 0 and hit(a > 1)) or (a > 2 and hit(False)) or hit(True))
        out[8] = count
        return out

    for a in (0, 1, 2, 6):
        hits[None] = 0
        out = np.zeros(9, np.int32)
        run(a, out)
        assert out.tolist() == reference(a)


def test_short_circuit_off(arch: str) -> None:
    sg.init(arch=arch, short_circuit_operators=False)
    hits = sg.field(sg.i32, shape=())

    @sg.func
    def hit():
        hits[None] += 1
        return True

    @sg.kernel
    def run(a: sg.i32) -> sg.i32:
        return a > 0 and hit()

    assert run(0) == 0 and hits[None] == 1


def test_conditional_expressions(arch: str) -> None:
    @sg.kernel
    def run(a: sg.i32, x: sg.f32, out: sg.types.ndarray(sg.f64, 1)):
        out[0] = a if a > 0 else x
        out[1] = 1 if a > 0 else 2 if x > 0 else 3
        out[2] = (a if a > 0 else -a) + (x if x > 0 else -x)
        out[3] = sg.select(a > 0, a, x)
        out[4] = sg.select(x > 0, 1, 2.5)
        out[5] = sg.select(a, 10, 20)
        y = x / a if a != 0 else 0.0
        out[6] = y
        out[7] = 5 if sg.static(True) else undefined_name  # noqa: F821

    for a, x in [(3, -1.5), (-2, 2.25), (0, 0.0)]:
        out = np.zeros(8)
        run(a, x, out)
        want = [a if a > 0 else x, 1 if a > 0 else 2 if x > 0 else 3, abs(a) + abs(x), a if a > 0 else x, 1 if x > 0 else 2.5]
        want += [10 if a else 20, x / a if a else 0, 5]
        np.testing.assert_allclose(out, want)


def test_variadic_extrema(arch: str) -> None:
    @sg.kernel
    def run(a: sg.i32, b: sg.f32, c: sg.i64, out: sg.types.ndarray(sg.f64, 1)):
        out[0] = sg.min(a, b, c)
        out[1] = sg.max(a, b, c, 2.5)
        out[2] = min(a, 3)
        out[3] = max(a, b)
        out[4] = min(a, b, c, 0, -1)
        out[5] = max(1, 2, 3)
        out[6] = sg.max(a > 0, b > 0)

    for a, b, c in [(1, 2.5, -3), (-4, -5.5, 6), (100, 0.5, 7)]:
        out = np.zeros(7)
        run(a, b, c, out)
        np.testing.assert_allclose(
            out, [min(a, b, c), max(a, b, c, 2.5), min(a, 3), max(a, b), min(a, b, c, 0, -1), 3, max(a > 0, b > 0)]
        )


@pytest.mark.parametrize("t", dtypes.FLOATS, ids=str)
def test_rounding_and_classes(arch: str, t: DType) -> None:
    """Ties go away from zero; the sign of zero, infinities and NaN stay; the second argument converts."""
    sg.init(arch=arch, fast_math=False)
    values = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49, 0.51, -0.49, 3.0, -3.7, 1000.5, np.inf, -np.inf, np.nan]
    values += [8388607.5, 8388608.0, -8388607.5] if t.bits > 16 else []
    x = np.array(values, t.np)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2), flags: sg.types.ndarray(sg.i32, 2)):
        for i in range(x.shape[0]):
            out[0, i] = sg.floor(x[i])
            out[1, i] = sg.ceil(x[i])
            out[2, i] = sg.round(x[i])
            out[3, i] = sg.trunc(x[i])
            out[4, i] = round(x[i])
            flags[0, i] = sg.math.isnan(x[i])
            flags[1, i] = sg.math.isinf(x[i])
            flags[2, i] = sg.floor(x[i], sg.i32)
            flags[3, i] = sg.round(x[i], sg.i32)

    out, flags = np.zeros((5, len(x)), t.np), np.zeros((4, len(x)), np.int32)
    run(x, out, flags)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        nearest = np.copysign(np.floor(np.abs(wide) + 0.5), wide).astype(t.np)
    for row, want in enumerate([np.floor(x), np.ceil(x), nearest, np.trunc(x), nearest]):
        np.testing.assert_array_equal(out[row], want)
        np.testing.assert_array_equal(np.signbit(out[row]), np.signbit(want), err_msg=f"sign, row {row}")
    np.testing.assert_array_equal(flags[0], np.isnan(x))
    np.testing.assert_array_equal(flags[1], np.isinf(x))
    finite = np.isfinite(x)
    np.testing.assert_array_equal(flags[2][finite], np.floor(x[finite]).astype(np.int32))
    np.testing.assert_array_equal(flags[3][finite], nearest[finite].astype(np.int32))


def test_bit_cast(arch: str) -> None:
    @sg.kernel
    def run(x: sg.f32, y: sg.f64, n: sg.i32, h: sg.f16, out: sg.types.ndarray(sg.i64, 1), back: sg.types.ndarray(sg.f64, 1)):
        out[0] = sg.bit_cast(x, sg.i32)
        out[1] = sg.bit_cast(x, sg.u32)
        out[2] = sg.bit_cast(y, sg.i64)
        out[3] = sg.bit_cast(n, sg.u32)
        out[4] = sg.bit_cast(h, sg.u16)
        out[5] = sg.bit_cast(sg.cast(n, sg.i8), sg.u8)
        back[0] = sg.bit_cast(n, sg.f32)
        back[1] = sg.bit_cast(sg.bit_cast(y, sg.u64), sg.f64)

    out, back = np.zeros(6, np.int64), np.zeros(2)
    x, y, n, h = -1.5, math.pi, -123456789, 0.333
    run(x, y, n, h, out, back)
    want = [
        np.float32(x).view(np.int32), np.float32(x).view(np.uint32), np.float64(y).view(np.int64), np.int32(n).view(np.uint32),
        np.float16(h).view(np.uint16), n & 0xFF,
    ]  # fmt: skip
    assert out.tolist() == [int(w) for w in want]
    np.testing.assert_array_equal(back, [np.int32(n).view(np.float32), y])


def test_functions_in_operator_form(arch: str) -> None:
    """The names of operators as functions, zero and one, in kernels and in Python."""

    @sg.kernel
    def run(a: sg.i32, b: sg.i32, out: sg.types.ndarray(sg.i32, 1)):
        out[0] = sg.add(a, b)
        out[1] = sg.sub(a, b)
        out[2] = sg.mul(a, b)
        out[3] = sg.floor_div(a, b)
        out[4] = sg.mod(a, b)
        out[5] = sg.bit_and(a, b)
        out[6] = sg.bit_or(a, b)
        out[7] = sg.bit_xor(a, b)
        out[8] = sg.bit_not(a)
        out[9] = sg.logical_and(a, b) + sg.logical_or(a, 0) + sg.logical_not(b)
        out[10] = sg.zero(a) + sg.one(b)
        out[11] = sg.neg(a)

    out = np.zeros(12, np.int32)
    a, b = -7, 3
    run(a, b, out)
    assert out.tolist() == [a + b, a - b, a * b, a // b, a % b, a & b, a | b, a ^ b, ~a, 2, 1, 7]
    assert sg.floor_div(a, b) == a // b and sg.raw_mod(a, b) == -1 and sg.raw_div(a, b) == -2
    assert sg.max(1, 2.5, -3) == 2.5 and sg.select(True, 1, 2) == 1 and sg.popcnt(7) == 3


@pytest.mark.parametrize("t", [sg.i64, sg.u64], ids=str)
def test_extrema_of_64_bits_in_sums_and_quotients(session, t: DType) -> None:
    """NVIDIA's driver 580 loses upper words of the maxima, unless they are comparisons."""
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.integers(t.min, t.max, 50, t.np, True), np.array([0, 1, 2, 7, 100, 2**32, t.max, t.min], t.np)])
    out = np.zeros((4, len(x)), t.np)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in range(x.shape[0]):
            above = sg.max(x[i], sg.cast(1, t)) - sg.cast(1, t)
            below = sg.min(x[i], sg.cast(2**40, t)) + sg.cast(1, t)
            out[0, i], out[1, i] = above, below
            out[2, i], out[3, i] = above // sg.cast(7, t), below // sg.cast(7, t)

    run(x, out)
    one, seven, high = (np.asarray(value, t.np) for value in (1, 7, 2**40))
    above, below = np.maximum(x, one) - one, np.minimum(x, high) + one
    np.testing.assert_array_equal(out, [above, below, above // seven, below // seven])


def test_chains_of_comparisons_of_vectors(session) -> None:
    """Entry by entry, each operand evaluated once."""
    low, high = np.array([-1.0, 0.0, 0.5]), np.array([1.0, 0.5, 2.0])
    points = np.random.default_rng(4).uniform(-1.5, 2.5, (50, 3)).astype(np.float32)
    x, inside, all_inside = sg.Vector.field(3, sg.f32, 50), sg.Vector.field(3, sg.i32, 50), sg.field(sg.i32, 50)
    x.from_numpy(points)

    @sg.kernel
    def compare():
        for i in x:
            inside[i] = sg.Vector([-1.0, 0.0, 0.5]) <= x[i] < sg.Vector([1.0, 0.5, 2.0])
            all_inside[i] = all(-1.0 <= x[i] <= 2.0)

    compare()
    np.testing.assert_array_equal(inside.to_numpy() != 0, (low <= points) & (points < high))
    np.testing.assert_array_equal(all_inside.to_numpy() != 0, ((points >= -1.0) & (points <= 2.0)).all(axis=1))
