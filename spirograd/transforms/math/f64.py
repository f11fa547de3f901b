"""Elementary functions of f64 as branch-free IR, for devices that have f64 arithmetic but no f64 functions (all of Vulkan).

The structure of exp, log, sin, cos, asin, acos and pow (reductions, and which rounding errors to carry along) is the published one of
fdlibm (Sun Microsystems, 1993); reductions after Cody and Waite (1980); the polynomials are our own fits (tools/fit_polynomials.py).
Nothing relies on a fused ``fma``: products that must be exact are of operands with few bits. Sums and products are "exact" operations
(`values.py`).

Largest errors seen, in ulp (tests/unit/math): exp 0.9, log 0.9, sin and cos 0.8, tan 1.3, asin 1.0, acos 0.9, atan2 1.8, tanh 2.0, pow 1.0.
Arguments of sin, cos and tan up to 1.6e6 are reduced exactly. Beyond that the error grows to one ulp of the argument and more, and beyond
2**50 the result is only guaranteed to be finite.
"""

from __future__ import annotations

import math

from spirograd.base.dtypes import f32, f64
from spirograd.transforms.math import coefficients as fits
from spirograd.transforms.math.f32 import into_quadrant, power_cases
from spirograd.transforms.math.values import Value

# Adding 1.5 * 2**52 rounds to an integer, which the low bits then hold.
MAGIC = 1.5 * 2.0**52
MAGIC_BITS = 0x4338000000000000
EXPONENT = 52
MANTISSA = (1 << 52) - 1
SIGN = -(1 << 63)
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
LOG2_E = math.log2(math.e)
LN2_HIGH, LN2_LOW = fits.LN2_33


def _power_of_two(n: Value) -> Value:
    """Return 2**n of an i64 in the range of normal exponents."""
    return ((n + 1023) << EXPONENT).as_float(f64)


def _scale(value: Value, n: Value) -> Value:
    """Return value * 2**n for |n| < 2000, in two steps, so that overflow and subnormal results are right."""
    half = n >> 1
    return value * _power_of_two(half) * _power_of_two(n - half)


def _chop(x: Value) -> Value:
    """Return the upper 21 bits of the significand: products of two such numbers are exact."""
    return (x.bits() & -(1 << 32)).as_float(f64)


def _round(x: Value) -> tuple[Value, Value]:
    """Return the nearest integer, as i64 and as f64; |x| < 2**51."""
    shifted = x + MAGIC
    return shifted.bits() - MAGIC_BITS, shifted - MAGIC


def _expm1_parts(x: Value) -> tuple[Value, Value]:
    """Return (n as i64, e**r - 1) with x = n ln(2) + r."""
    k, n = _round(x * LOG2_E)
    high = x - n * LN2_HIGH
    low = n * LN2_LOW
    r = high - low
    return k, r + (r * r * r.horner(fits.EXP_F64) + ((high - r) - low))


def exp(x: Value) -> Value:
    k, expm1 = _expm1_parts(x.clamp(-750.0, 710.0))
    return _scale(expm1 + 1.0, k)


def tanh(x: Value) -> Value:
    """Compute expm1(2|x|) / (expm1(2|x|) + 2), with expm1 = (2**n - 1) + 2**n (e**r - 1)."""
    k, reduced = _expm1_parts((x.abs() * 2.0).clamp(0.0, 44.0))
    power = _power_of_two(k)
    expm1 = (power - 1.0) + power * reduced
    divisor = expm1 + 2.0
    quotient = expm1 / divisor
    # The rounding error of the divisor matters if it is near 2.
    lost = (expm1 < 2.0).select(expm1 - (divisor - 2.0), 0.0)
    return (quotient - quotient * lost * 0.5).with_sign_of(x)


def _split_log(x: Value) -> tuple[Value, Value]:
    """Return (k as f64, m) with x = 2**k * m, sqrt(1/2) <= m < sqrt(2), for x > 0, also subnormal."""
    tiny = x < 2.0**-1022
    bits = tiny.select(x * 2.0**54, x).bits() - SQRT_HALF_BITS
    k = (bits >> EXPONENT).cast(f64)
    m = ((bits & MANTISSA) + SQRT_HALF_BITS).as_float(f64)
    return tiny.select(k - 54.0, k), m


def log(x: Value) -> Value:
    """Compute log(2**k (1 + f)) = k ln(2) + f - (f**2/2 - s (f**2/2 + R)), s = f / (2 + f)."""
    k, m = _split_log(x)
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    half_square = f * 0.5 * f
    correction = s * (half_square + z * z.horner(fits.LOG_F64)) + k * LN2_LOW
    value = k * LN2_HIGH - ((half_square - correction) - f)
    value = (x < math.inf).select(value, x)
    # x > 0 is false for NaN too.
    return (x > 0.0).select(value, x.eq(0.0).select(-math.inf, x.const(math.nan)))


def _difference(a: Value, b: Value) -> tuple[Value, Value]:
    """Return a - b and its rounding error (Knuth's TwoSum)."""
    d = a - b
    t = d - a
    return d, (a - (d - t)) - (b + t)


def _reduce_angle(x: Value) -> tuple[Value, Value, Value]:
    """Return (k as i64, r, tail) with x = k pi/2 + (r + tail), |r| <= pi/4: 0 for arguments too large to reduce, NaN for infinities."""
    k, n = _round(x * (2 / math.pi))
    first, second, third, fourth = fits.HALF_PI_33
    a, error_a = _difference(x - n * first, n * second)
    c, error_c = _difference(a, n * third)
    low = (error_a + error_c) - n * fourth
    r = c + low
    tail = low - (r - c)
    reduced = r.abs() < 0.8
    beyond = (x.abs() < math.inf).select(x.const(0.0), math.nan)  # not x - x, which drivers simplify to 0
    return k, reduced.select(r, beyond), reduced.select(tail, 0.0)


def _sine_kernel(r: Value, tail: Value) -> tuple[Value, Value]:
    """Return sin(r + tail) as an unevaluated sum."""
    z = r * r
    cube = z * r
    rest = z * (tail * 0.5 + cube * z.horner(fits.SIN_F64[1:]))
    return r, cube * fits.SIN_F64[0] + (rest + tail - z * tail)


def _cosine_kernel(r: Value, tail: Value) -> tuple[Value, Value]:
    """Return cos(r + tail) as an unevaluated sum."""
    z = r * r
    half = z * 0.5
    w = 1.0 - half
    return w, ((1.0 - w) - half) + (z * z * z.horner(fits.COS_F64) - r * tail)


def _sum(parts: tuple[Value, Value]) -> tuple[Value, Value]:
    """Return the rounded sum, with the larger part first, and the rounding error."""
    total = parts[0] + parts[1]
    return total, parts[1] - (total - parts[0])


def _by_quadrant(k: Value, sine: Value, cosine: Value) -> Value:
    """Return sin(k pi/2 + r) from sin(r) and cos(r)."""
    value = (k & 1).ne(0).select(cosine, sine)
    return (value.bits() ^ ((k << 62) & SIGN)).as_float(f64)


def sin(x: Value) -> Value:
    k, r, tail = _reduce_angle(x)
    return x.eq(0.0).select(x, _by_quadrant(k, _sum(_sine_kernel(r, tail))[0], _sum(_cosine_kernel(r, tail))[0]))


def cos(x: Value) -> Value:
    k, r, tail = _reduce_angle(x)
    return _by_quadrant(k + 1, _sum(_sine_kernel(r, tail))[0], _sum(_cosine_kernel(r, tail))[0])


def tan(x: Value) -> Value:
    """Compute the quotient of sine and cosine, corrected by the rounding errors of both, for which a reciprocal in f32 suffices."""
    k, r, tail = _reduce_angle(x)
    sine, sine_low = _sum(_sine_kernel(r, tail))
    cosine, cosine_low = _sum(_cosine_kernel(r, tail))
    # The remainder at an odd multiple of pi/2 is 0 only if the argument was too large.
    odd = (k & 1).ne(0) & r.ne(0.0)
    divisor = odd.select(-sine, cosine)
    quotient = odd.select(cosine, sine) / divisor
    lost = odd.select(cosine_low, sine_low) - quotient * odd.select(-sine_low, cosine_low)
    value = quotient + lost * (1.0 / divisor.cast(f32)).cast(f64)
    return x.eq(0.0).select(x, value)


def _asin_parts(x: Value) -> tuple[Value, Value, Value, Value]:
    """Return (large, s, s R, error): asin(s) = s + s R, s = sqrt((1 - |x|) / 2) where large (|x| > 1/2), else |x|; the root is chop(s) +
    error."""
    a = x.abs()
    large = a > 0.5
    z = large.select((1.0 - a) * 0.5, a * a)
    s = large.select(z.sqrt(), a)
    head = _chop(s)
    # The tiny summand only matters for s = 0, where it avoids 0 / 0.
    error = (z - head * head) / ((s + head) + 2.0**-1000)
    return large, s, s * (z * z.horner(fits.ASIN_F64)), error


def asin(x: Value) -> Value:
    high, low = fits.HALF_PI
    large, s, tail, error = _asin_parts(x)
    head = _chop(s)
    quarter = high * 0.5
    folded = quarter - ((tail * 2.0 - (low - error * 2.0)) - (quarter - head * 2.0))
    return large.select(folded, s + tail).with_sign_of(x)


def acos(x: Value) -> Value:
    """Compute acos. |x| <= 1/2: pi/2 - asin(x); x > 1/2: 2 asin(s); x < -1/2: pi - 2 asin(s)."""
    high, low = fits.HALF_PI
    large, s, tail, error = _asin_parts(x)
    negative = x < 0.0
    middle = high - (x - (low - negative.select(-tail, tail)))
    right = (_chop(s) + (tail + error)) * 2.0
    left = fits.PI[0] - (s + (tail - low)) * 2.0
    return large.select(negative.select(left, right), middle)


def atan2(y: Value, x: Value) -> Value:
    """Compute the angle from the quotient of the smaller by the larger coordinate, beyond tan(pi/8) by atan(q) = pi/4 + atan((q - 1) / (q +
    1))."""
    high, low = fits.HALF_PI
    ax, ay = x.abs(), y.abs()
    steep = ay > ax
    a, c = steep.select(ax, ay), steep.select(ay, ax)
    # No sum may overflow.
    shrink = (c > 2.0**1000).select(2.0**-64, c.const(1.0))
    a, c = a * shrink, c * shrink
    folded = (a > c * math.tan(math.pi / 8)) | a.eq(math.inf)
    numerator = folded.select(a - c, a)
    denominator = folded.select(a + c, c)
    # Equal operands would give NaN for two infinities and for two zeros.
    equal = a.eq(c)
    q = equal.select(0.0, numerator / denominator)
    diagonal = folded.select(1.0, q.const(0.0))
    z = q * q
    tail = q * (z * z.horner(fits.ATAN_F64))
    angle = diagonal * (high * 0.5) + (q + (tail + diagonal * (low * 0.5)))
    return into_quadrant(angle, steep, x.bits() < 0, fits.HALF_PI, fits.PI).with_sign_of(y)


def _log2_parts(a: Value) -> tuple[Value, Value]:
    """Return log2(a) as a sum with a relative error of about 2**-64; the first part has 21 bits."""
    k, m = _split_log(a)
    f = m - 1.0
    g = m + 1.0
    s = f / g
    head, g_head = _chop(s), _chop(g)
    s_low = ((f - head * g_head) - head * (m - (g_head - 1.0))) / g
    # 3/2 log(m) = s (3 + s**2 + r)
    z = s * s
    r = z * z * z.horner(fits.LOG_POW_F64) + s_low * (head + s)
    square = head * head
    factor = _chop(square + 3.0 + r)
    factor_low = r - ((factor - 3.0) - square)
    u = head * factor
    v = s_low * factor + factor_low * s
    p = _chop(u + v)
    p_low = v - (p - u)
    # ... times 2 / (3 ln 2)
    cp_high, cp_low = fits.CP_21
    t = p * cp_high
    t_low = p * cp_low + p_low * (cp_high + cp_low)
    high = _chop(t + t_low + k)
    return high, t_low - ((high - k) - t)


def pow_(x: Value, y: Value) -> Value:
    """Compute |x|**y = 2**(y log2|x|), with the logarithm and the product in two parts; then the special cases of IEEE 754 pow."""
    a = x.abs()
    log_high, log_low = _log2_parts(a)
    bounded = y.clamp(-(2.0**66), 2.0**66)
    y_head = _chop(bounded)
    low = (bounded - y_head) * log_high + bounded * log_low
    high = y_head * log_high
    inside = (high + low).abs() < 1100.0
    high, low = high.clamp(-1100.0, 1100.0), inside.select(low, 0.0)
    k, n = _round(high + low)
    t = high - n
    # 2**(t + low) = e**((t + low) ln 2)
    ln2_high, ln2_low = fits.LN2_21
    head = _chop(t + low)
    u = head * ln2_high
    v = (low - (head - t)) * math.log(2) + head * ln2_low
    r = u + v
    error = v - (r - u)
    value = _scale((r + (error + r * r * r.horner(fits.EXP_F64))) + 1.0, k)
    return power_cases(x, y, a, value)
