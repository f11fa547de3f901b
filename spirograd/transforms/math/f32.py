"""Elementary functions of f32 as branch-free IR, which compilers vectorise like any other arithmetic. On GPUs some have branches.

Reductions follow Cody and Waite (Software Manual for the Elementary Functions, 1980); the polynomials are our own minimax fits
(tools/fit_polynomials.py). All give the right results for infinities, NaN, signed zeros and subnormal numbers, with or without fused
``fma``.

Largest errors seen, in ulp (tests/unit/math, and every f32 of the main ranges): exp 1.0, log 0.9, sin and cos 1.9, tan 3.1, asin 1.4,
acos 1.2, atan2 1.7, tanh 1.4, pow 1.0. sin, cos and tan hold this for |x| <= 5e7, with fused ``fma`` up to 1e9; the result is finite for
all finite x.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from spirograd.base.dtypes import f32, f64, i32, u32
from spirograd.ir import ops
from spirograd.ir.ops import OpCode
from spirograd.transforms.math import coefficients as fits
from spirograd.transforms.math.values import Value, branch

# Adding 1.5 * 2**23 rounds to an integer, which the low bits then hold.
MAGIC = 1.5 * 2.0**23
MAGIC_BITS = 0x4B400000
ONES = 2.0**23  # from here to twice this number, floats are integers
MAGIC_F64 = 1.5 * 2.0**52
ONES_F64 = 2.0**52
# The same for an exponent with twice the bias of f32. Shifted left, the low bits are the exponent fields of two factors.
MAGIC_BIASED = MAGIC + 2 * 127
EXPONENT_FIELD = 0x7F800000
LOG2_E = math.log2(math.e)
# The first part has 15 bits, so that its product with an exponent is exact.
LN2_HIGH, LN2_LOW = fits.LN2_15
SQRT_HALF_BITS = 0x3F3504F3
TWO_THIRDS_BITS = 0x3F2AAAAB
EXPONENT = 23
SIGN = -0x80000000
# The first part has 28 bits: products with quotients up to 2**25 are exact in f64.
PI_HIGH, PI_LOW = fits.PI_28


def _scale(value: Value, n: Value) -> Value:
    """Return value * 2**n for |n| < 250, in two steps, so that overflow and subnormal results are right."""
    half = n >> 1
    first = ((half + 127) << EXPONENT).as_float(f32)
    second = ((n - half + 127) << EXPONENT).as_float(f32)
    return value.exact() * first * second


def _reduce_exp(x: Value) -> tuple[Value, Value, Value]:
    """Return (n as i32, n, r) with x = n ln(2) + r. |x| < 1e5."""
    shifted = (x.exact() * LOG2_E) + MAGIC
    n = shifted - MAGIC
    r = n.fma(-LN2_LOW, n.fma(-LN2_HIGH, x))
    return shifted.bits() - MAGIC_BITS, n, r


def exp(x: Value) -> Value:
    x = x.clamp(-105.0, 89.0)
    n, _, r = _reduce_exp(x)
    tail = r.horner(fits.EXP_F32)
    return _scale((r * r).fma(tail, r) + 1.0, n)


def exp_fused(x: Value) -> Value:
    """Compute `exp` in fewer operations. 2**n is the product of two powers of two whose biased exponents add up to n + 254."""
    x = x.clamp(-105.0, 89.0)
    shifted = x.fma(LOG2_E, MAGIC_BIASED)
    n = shifted - MAGIC_BIASED
    r = n.fma(-LN2_LOW, n.fma(-LN2_HIGH, x))
    bits = shifted.bits()
    half = (bits << EXPONENT - 1) & EXPONENT_FIELD
    other = (bits << EXPONENT) - half
    power = r.horner((1.0, 1.0, *fits.EXP_F32))
    return power.exact() * half.as_float(f32) * other.as_float(f32)


def tanh(x: Value) -> Value:
    """Compute x + x**3 P(x**2) up to 5/8, then 1 - 2 / (e**(2|x|) + 1)."""
    a = x.abs()
    z = a * a
    small = (z * a).fma(z.horner(fits.TANH_F32), a)
    n, _, r = _reduce_exp((a * 2.0).clamp(0.0, 20.0))
    power = ((n + 127) << EXPONENT).as_float(f32)
    large = 1.0 - 2.0 / ((r * r).fma(r.horner(fits.EXP_F32), r) + 1.0).fma(power, 1.0)
    return (a < 0.625).select(small, large).with_sign_of(x)


def _split_log(x: Value, least_bits: int = SQRT_HALF_BITS) -> tuple[Value, Value]:
    """Return (k as i32, m) with x = 2**k * m, for x > 0, also subnormal; m is less than twice its lower bound. ``least_bits``: the bits of
    this bound, by default of sqrt(1/2)."""
    tiny = x < 2.0**-126
    bits = tiny.select(x * 2.0**25, x).bits() - least_bits
    k = bits >> EXPONENT
    m = ((bits & 0x7FFFFF) + least_bits).as_float(f32)
    return tiny.select(k - 25, k), m


def log(x: Value) -> Value:
    """Compute log(2**k (1 + f)) = k ln(2) + f - (f**2/2 - s (f**2/2 + R)), s = f / (2 + f)."""
    k, m = _split_log(x)
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    half_square = f * 0.5 * f
    n = k.cast(f32)
    correction = s.fma(z.fma(z.horner(fits.LOG_F32), half_square), n * LN2_LOW)
    return _log_of_all(x, n.fma(LN2_HIGH, f - (half_square - correction)))


def log_fused(x: Value) -> Value:
    """Compute `log` without a division, which takes as long as six of these products on a GPU. ``fma`` rounds once."""
    tiny = x < 2.0**-126
    x = tiny.select(x * 2.0**25, x)
    bits = x.bits()
    exponent = (bits - TWO_THIRDS_BITS) & -(1 << EXPONENT)
    f = (bits - exponent).as_float(f32) - 1.0
    n = exponent.cast(f32).fma(2.0**-EXPONENT, tiny.select(-25.0, x.const(0.0)))
    tail = f.horner(fits.LOG1P_F32).fma(f, -0.5)
    value = n.fma(math.log(2), (f * f).fma(tail, f))
    # Finite and not negative: the value. Infinity stays, others become NaN.
    value = (x.bits(u32) < EXPONENT_FIELD).select(value, x.fma(math.inf, math.inf))
    return x.eq(0.0).select(-math.inf, value)


def _log_of_all(x: Value, value: Value) -> Value:
    """Return ``value`` where x is positive and finite, and the special values elsewhere."""
    value = (x < math.inf).select(value, x)
    return (x > 0.0).select(value, _log_of_nonpositive(x))


def _log_of_nonpositive(x: Value) -> Value:
    """Return -inf at zero, else NaN (x > 0 is false for NaN too)."""
    return x.eq(0.0).select(-math.inf, x.const(math.nan))


# Beyond this magnitude, where numbers of f32 are much further apart than pi, quotients by pi are no longer integers in f64.
_LARGEST = 2.0**46


def _remainder(x: Value, wide: Value, n: Value, multiple: float = 1) -> Value:
    """Return x - n pi / ``multiple`` in f32; 0 for huge x, NaN for infinities. ``wide``: x in f64. In scalar code, which waits for the
    results of operations, a select is faster than a clamp, because its condition is known early."""
    r = n.fma(-PI_LOW / multiple, n.fma(-PI_HIGH / multiple, wide)).cast(f32)
    return (x.abs() < _LARGEST).select(r, x.exact() * 0.0)


def sin(x: Value) -> Value:
    wide = x.cast(f64)
    shifted = wide.fma(1 / math.pi, MAGIC_F64)
    n = shifted - MAGIC_F64
    return x.eq(0.0).select(x, _signed_sine(_remainder(x, wide, n), shifted.bits().cast(i32)))


def cos(x: Value) -> Value:
    """Compute cos(x) = (-1)**n sin((n + 1/2) pi - |x|). See `_reduced_near` for n."""
    x = x.abs()
    wide = x.cast(f64)
    shifted = wide.fma(1 / math.pi, ONES_F64 - 0.5)
    shifted = (shifted > ONES_F64).select(shifted, ONES_F64)
    n = shifted - (ONES_F64 - 0.5)
    return _signed_sine(-_remainder(x, wide, n), shifted.bits().cast(i32))


def tan(x: Value) -> Value:
    wide = x.cast(f64)
    shifted = wide.fma(2 / math.pi, MAGIC_F64)
    n = shifted - MAGIC_F64
    turns = (x.abs() < _LARGEST).select(shifted.bits().cast(i32), 0)  # even for huge x, so that the tangent is also finite
    return _tangent_of_reduced(_remainder(x, wide, n, 2), turns)


def _tangent_of_reduced(r: Value, n: Value) -> Value:
    """Return tan(r), |r| <= pi/4, for even n, else -1 / tan(r)."""
    z = r * r
    value = (z * r).fma(z.horner(fits.TAN_F32), r)
    odd = (n & 1).ne(0)
    return odd.select(-1.0, value) / odd.select(value, 1.0)


# The limit up to which quotients are integers below 2**16; ``fma`` subtracts their products with the parts of pi with one rounding each.
_NEAR = 1e5
MOST_NEAR = _NEAR / 2  # values up to this magnitude are near, despite rounding


def is_near(x: Value) -> Value:
    """Return whether `sin_near`, `cos_near` and `tan_near` are valid for ``x``."""
    return x.abs() < _NEAR


def _reduced_near(x: Value, multiple: float, half: bool = False, parts: Sequence[float] = fits.PI_24_24_DOWN) -> tuple[Value, Value]:
    """Return (r, n as i32) with x = n pi / ``multiple`` + r, or with ``half`` |x| = (n + 1/2) pi / ``multiple`` + r; |r| is at most about
    half of that step. x must be near, and ``fma`` round once. ``parts``: pi as a sum; if all are positive, r of -0 is -0."""
    turns = multiple / math.pi
    if half:  # 2**23 - 1/2 is an f32, which would save an addition, but sums below 2**23 would round to halves
        x = x.abs()
        shifted = x.exact().fma(turns, ONES - 0.5).at_least(ONES)
        n = shifted - (ONES - 0.5)
    else:
        shifted = x.exact().fma(turns, MAGIC)
        n = shifted - MAGIC
    r = x
    for part in parts:
        r = n.fma(-part / multiple, r)
    return r, shifted.bits()


def _reduced(x: Value, multiple: float, half: bool = False, parts: Sequence[float] = fits.PI_24_24_DOWN) -> tuple[Value, Value]:
    """Return `_reduced_near` for all x; with ``half``, x itself, not |x|, is reduced if it is not near. Only invocations with such values
    reduce in f64, which is slow on many GPUs."""
    r, n = _reduced_near(x, multiple, half, parts)

    def far() -> tuple[Value, Value]:
        wide = x.cast(f64)
        product = wide * (multiple / math.pi)
        shifted = (product - 0.5 if half else product) + MAGIC_F64
        n = shifted - MAGIC_F64
        n = n + 0.5 if half else n
        r = n.fma(-PI_LOW / multiple, n.fma(-PI_HIGH / multiple, wide)).cast(f32)
        bound = math.pi / 2 / multiple
        return r.clamp(-bound, bound), shifted.bits().cast(i32)

    r, n = branch(is_near(x), lambda: (r, n), far)
    return r, n


def _signed_sine(r: Value, flip: Value) -> Value:
    """Return sin(r), |r| <= pi/2, negated where ``flip`` (i32) has its lowest bit set. The sum of the first two terms, which rounds as the
    result does, is computed independently of the other terms, so that the chain of dependent operations is shorter than in Horner's
    scheme."""
    z = r * r
    cube = z * r
    first, *others = fits.SIN_F32
    value = (cube * z).fma(z.beside_square(others), cube.fma(first, r))
    return (value.bits() ^ (flip << 31)).as_float(f32)


def _signed_sine_fused(r: Value, flip: Value) -> Value:
    """Return the same as `_signed_sine`. The sum with zero makes the product positive at zero, so that -0 stays -0; an addition to the
    highest bit changes this bit only."""
    z = r * r
    value = r.fma(z.fma(z.horner(fits.SIN_F32), 0.0), r)
    return (value.bits() + (flip << 31)).as_float(f32)


_Reduction = Callable[..., tuple[Value, Value]]


def sin_fused(x: Value, reduce: _Reduction = _reduced) -> Value:
    """Compute `sin` without f64, except for large |x|."""
    return _signed_sine_fused(*reduce(x, 1))


def cos_fused(x: Value, reduce: _Reduction = _reduced) -> Value:
    """Compute `cos` without f64, except for large |x|: (-1)**n sin((n + 1/2) pi - x), with |x| in place of x if it is near."""
    r, n = reduce(x, 1, half=True)
    return _signed_sine_fused(-r, n)


def tan_fused(x: Value, reduce: _Reduction = _reduced) -> Value:
    """Compute `tan` without f64, except for large |x|."""
    return x.eq(0.0).select(x, _tangent_of_reduced(*reduce(x, 2, parts=fits.PI_24_24)))


# Forms without branches, valid where `is_near` holds.
sin_near, cos_near, tan_near = (functools.partial(function, reduce=_reduced_near) for function in (sin_fused, cos_fused, tan_fused))


# The limit up to which quotients are integers, or halves, of 13 bits, whose products with the first two parts of PI_11_11 are exact in f32.
_SPLIT = 2.0**13


def _split_or_native(code: OpCode, x: Value, multiple: float, half: bool, value: Callable[[Value, Value], Value]) -> Value:
    """Return ``value(r, n)`` with x = n pi / ``multiple`` + r, or (n + 1/2) pi / ``multiple`` + r with ``half``, and the result of the
    device's function where x is large. The lowest bit of ``n``, an i32, tells whether it is odd; higher bits are undefined."""
    n = (x.exact() * (multiple / math.pi) + (0.0 if half else 0.5)).floor()
    turns = (n + 0.5 if half else n).exact()
    r = x.exact()
    for part in fits.PI_11_11:
        r = r - turns * (part / multiple)
    # A conversion of n would saturate. SwiftShader compiles chains of such selects in exponential time (seen through WGSL).
    near = value(r, (n.exact() + MAGIC).bits())
    return (x.abs() < _SPLIT).select(near, Value(x.b, x.b.emit(code, x.op)))


def sin_split(x: Value) -> Value:
    """Compute `sin` without f64 and without fused ``fma``."""
    return x.eq(0.0).select(x, _split_or_native(ops.sin, x, 1, False, _signed_sine))


def cos_split(x: Value) -> Value:
    return _split_or_native(ops.cos, x, 1, True, lambda r, n: _signed_sine(r, ~n))


def tan_split(x: Value) -> Value:
    return _split_or_native(ops.tan, x, 2, False, _tangent_of_reduced)


def _asin_parts(x: Value) -> tuple[Value, Value, Value]:
    """Return (large, s, asin(s) - s): s = sqrt((1 - |x|) / 2) where large (|x| > 1/2), else |x|."""
    a = x.abs()
    large = a > 0.5
    z = large.select(a.fma(-0.5, 0.5), a * a)
    s = large.select(z.sqrt(), a)
    return large, s, z * s * z.horner(fits.ASIN_F32)


def asin(x: Value) -> Value:
    """Compute asin. |x| > 1/2: pi/2 - 2 asin(s), corrected by the rounding error of pi/2 - 2 s."""
    high, low = fits.HALF_PI_24
    large, s, tail = _asin_parts(x)
    base = s.fma(-2.0, high)
    folded = base + (s.fma(-2.0, high - base) + tail.fma(-2.0, low))
    return large.select(folded, s + tail).with_sign_of(x)


def acos(x: Value) -> Value:
    """Compute acos. |x| <= 1/2: pi/2 - asin(x); x > 1/2: 2 asin(s); x < -1/2: pi - 2 asin(s)."""
    high, low = fits.HALF_PI_24
    large, s, tail = _asin_parts(x)
    value = s + tail
    negative = x < 0.0
    middle = high - (negative.select(-value, value) - low)
    left = fits.PI_24[0] - value.fma(2.0, -fits.PI_24[1])
    return large.select(negative.select(left, value * 2.0), middle)


def atan2(y: Value, x: Value) -> Value:
    ax, ay = x.abs(), y.abs()
    steep = ay > ax
    low, high = steep.select(ax, ay), steep.select(ay, ax)
    # Equal operands would give NaN for two infinities and for two zeros.
    q = low.eq(high).select((low > 0.0).select(1.0, low), low / high)
    z = q * q
    value = (z * q).fma(z.horner(fits.ATAN_F32), q)
    return into_quadrant(value, steep, x.bits() < 0, fits.HALF_PI_24, fits.PI_24).with_sign_of(y)


def into_quadrant(angle: Value, steep: Value, left: Value, half_pi: tuple[float, ...], pi: tuple[float, ...]) -> Value:
    """Convert ``angle``, in [0, pi/4] from the nearest half axis, to the angle from the positive x axis: 0, pi/2 or pi, plus or minus
    ``angle``."""
    high = steep.select(half_pi[0], left.select(pi[0], angle.const(0.0)))
    low = steep.select(half_pi[1], left.select(pi[1], angle.const(0.0)))
    return high + ((steep ^ left).select(-angle, angle) + low)


def pow_(x: Value, y: Value) -> Value:
    """Compute |x|**y = 2**(y log2|x|), logarithm and product in f64, the last polynomial in f32; then the special cases of IEEE 754 pow."""
    a = x.abs()
    k, m = _split_log(a)
    wide = m.cast(f64)
    s = (wide - 1.0) / (wide + 1.0)
    log2 = s.fma((s * s).horner(fits.LOG2_POW_F32), k.cast(f64))
    exponent = (y.clamp(-(2.0**40), 2.0**40).cast(f64) * log2).clamp(-160.0, 160.0)
    shifted = exponent.cast(f32).exact() + MAGIC
    n = shifted - MAGIC
    r = ((exponent - n.cast(f64)) * math.log(2)).cast(f32)
    value = _scale((r * r).fma(r.horner(fits.EXP_F32), r) + 1.0, shifted.bits() - MAGIC_BITS)
    return power_cases(x, y, a, value)


def pow_of_device(x: Value, y: Value) -> Value:
    """Compute pow by the device's function, which must be defined for positive finite |x| only; then the special cases of IEEE 754 pow."""
    a = x.abs()
    return power_cases(x, y, a, a.pow(y.clamp(-(2.0**40), 2.0**40)))


def power_cases(x: Value, y: Value, a: Value, value: Value) -> Value:
    """Return pow(x, y) from value = |x|**y for positive finite |x| = a. For f32 and f64."""
    t = x.type
    falls = y < 0.0
    zero = a.eq(0.0)
    # 0 and infinity: the sign of y decides between the two results.
    edge = (zero ^ falls).select(0.0, x.const(math.inf))
    value = (zero | a.eq(math.inf)).select(edge, value)
    # Negative x: an odd integer exponent keeps the sign, another integer drops it; no real result otherwise.
    half = y * 0.5
    odd_or_fraction = half.floor().ne(half)
    is_integer = y.floor().eq(y)
    sign = x.bits() & (SIGN if t is f32 else -(1 << 63))
    odd = odd_or_fraction & is_integer
    value = odd.select((value.bits() | sign).as_float(t), value)
    finite_negative = (x < 0.0) & (x > -math.inf)
    value = (finite_negative & ~is_integer).select(math.nan, value)
    value = (x.ne(x) | y.ne(y)).select(x + y, value)
    return (x.eq(1.0) | y.eq(0.0)).select(1.0, value)
