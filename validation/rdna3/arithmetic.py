"""What the pseudocode calls, as functions of NumPy arrays: conversions, parts of floats, and arithmetic that rounds once.

Reciprocals, roots, exponentials, logarithms, sines and cosines are rounded correctly (nearly always: they are computed in f64); the
hardware's are off by up to 1 unit in the last place in f32, more in f64, and differently so from chip to chip.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

DTYPES = {
    ("f", 16): np.float16, ("f", 32): np.float32, ("f", 64): np.float64,
    ("u", 1): np.bool_, ("u", 8): np.uint8, ("u", 16): np.uint16, ("u", 32): np.uint32, ("u", 64): np.uint64,
    ("i", 8): np.int8, ("i", 16): np.int16, ("i", 32): np.int32, ("i", 64): np.int64,
}  # fmt: skip
UNSIGNED: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_SMALL = 2.0**-125  # below that, numbers of f32 have fewer bits
_LARGEST_SPLIT, _LARGEST_SUM, _SMALLEST_PRODUCT = 1e299, 1e307, 1e-275  # between which f64 has room for what `fma` needs
# Bits of the mantissa, and the bias of the exponent.
_FORMAT = {2: (10, 15), 4: (23, 127), 8: (52, 1023)}


def bits_of(x: Array) -> Array:
    return x.view(UNSIGNED[x.dtype.itemsize * 8])


# --- parts of floats ---


def exponent(x: Array) -> Array:
    """The exponent as it is stored, with its bias."""
    mantissa, bias = _FORMAT[x.dtype.itemsize]
    return (bits_of(x) >> mantissa).astype(np.int32) & (2 * bias + 1)


def frexp_exponent(x: Array) -> Array:
    """The exponent for a mantissa in [0.5, 1); of subnormals, too. 0 for zero, infinities and NaN."""
    return np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(np.int32)


def mantissa(x: Array) -> Array:
    """In [0.5, 1), with the sign."""
    return np.frexp(x)[0]


def sign(x: Array) -> Array:
    return np.signbit(x)


def is_signalling(x: Array) -> Array:
    quiet = 1 << _FORMAT[x.dtype.itemsize][0] - 1
    return np.isnan(x) & (bits_of(x) & bits_of(x).dtype.type(quiet) == 0)


def is_quiet(x: Array) -> Array:
    return np.isnan(x) & ~is_signalling(x)


def is_denormal(x: Array) -> Array:
    return (exponent(x) == 0) & (x != 0)


def quiet(x: Array) -> Array:
    bits = bits_of(x)
    return (bits | bits.dtype.type(1 << _FORMAT[x.dtype.itemsize][0] - 1)).view(x.dtype)


# --- rounding ---


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum, and its error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _add_to_odd(a: Array, b: Array) -> Array:
    """a + b in f64, rounded to odd: a second rounding to fewer bits is then as good as one (Boldo and Melquiond, 2008)."""
    s, error = _two_sum(a, b)
    inexact = (error != 0) & np.isfinite(s) & (s.view(np.int64) & 1 == 0)
    if not inexact.any():
        return s
    away = (error > 0) == (s > 0)  # the exact sum is further from 0 than s
    step = np.where(away, 1, -1)
    return np.where(inexact, (s.view(np.int64) + step).view(np.float64), s)


def scaled_fma(a: float, b: float, c: float, power: float = 0, t: Any = np.float64) -> float:
    """(a * b + c) * 2 ** power, rounded once to ``t``."""
    if not all(map(np.isfinite, (a, b, c))):
        return a * b + c
    exact = (Fraction(a) * Fraction(b) + Fraction(c)) * Fraction(2) ** int(power)
    if not exact:
        return a * b + c  # the sign of zero
    try:
        near = float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")
    if t is not np.float64 and Fraction(near) != exact and np.float64(near).view(np.int64) & 1 == 0:
        near = float(np.nextafter(near, np.inf if exact > Fraction(near) else -np.inf))  # to odd, for the second rounding
    return near


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once."""
    if a.dtype != np.float64:  # the product is exact in f64
        product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
        if a.dtype == np.float32:
            near = product + addend
            middle = near.view(np.int64) & 0x1FFFFFFF == 0x10000000  # between two numbers of f32: the second rounding could go wrong
            if not (middle | (np.abs(near) < _SMALL)).any():
                return near.astype(np.float32)
        return _add_to_odd(product, addend).astype(a.dtype)
    a, b, c = (np.ascontiguousarray(x) for x in np.broadcast_arrays(a, b, c))
    product = a * b
    high, low = _product(a, b, product)
    uh, ul = _two_sum(c, low)
    vh, vl = _two_sum(high, uh)
    result = vh + _add_to_odd(vl, ul)
    # Where the error of the product may be lost to the range of f64, and where the result is no number by then, it is computed otherwise.
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    easy = (a == 0) | (b == 0)
    size = np.abs(product)
    large = (np.abs(a) > _LARGEST_SPLIT) | (np.abs(b) > _LARGEST_SPLIT) | (size > _LARGEST_SUM) | (np.abs(c) > _LARGEST_SUM)
    hard = finite & ~easy & (large | (size < _SMALLEST_PRODUCT))
    result = np.where(finite & ~easy, result, product + c)
    if hard.any():
        result[hard] = [scaled_fma(float(x), float(y), float(z)) for x, y, z in zip(a[hard], b[hard], c[hard])]
    return result


def _product(a: Array, b: Array, product: Array) -> tuple[Array, Array]:
    """The product and its error (Dekker, with Veltkamp's splitting)."""

    def split(x: Array) -> tuple[Array, Array]:
        t = 134217729.0 * x
        high = t - (t - x)
        return high, x - high

    ah, al = split(a)
    bh, bl = split(b)
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def ldexp(x: Array, exponent: Array) -> Array:
    """x * 2 ** exponent, rounded once."""
    return np.ldexp(x, np.clip(exponent.astype(np.int64), -100000, 100000).astype(np.int32))


def fract(x: Array) -> Array:
    return x - np.floor(x)


def is_even(x: Array) -> Array:
    return np.fmod(x, 2) == 0


def _in_f64(function: Any) -> Any:
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


log2, exp2 = _in_f64(np.log2), _in_f64(np.exp2)


def sin_turns(x: Array) -> Array:
    """The sine of 2 pi x."""
    wide = x.astype(np.float64)
    return np.sin(2 * np.pi * (wide - np.rint(wide))).astype(x.dtype)


def cos_turns(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.cos(2 * np.pi * (wide - np.rint(wide))).astype(x.dtype)


# --- conversions ---


def to_integer(x: Array, dtype: Any) -> Array:
    """Towards zero; what does not fit becomes the nearest number that does, NaN becomes 0."""
    about = np.iinfo(dtype)
    wide = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=1e300, neginf=-1e300))
    return np.clip(wide, float(about.min), float(about.max)).astype(dtype)


def saturate(x: Array, dtype: Any) -> Array:
    about = np.iinfo(dtype)
    return np.clip(x, max(about.min, np.iinfo(x.dtype).min), about.max).astype(dtype)


def normalised(x: Array, dtype: Any) -> Array:
    """[0, 1] or [-1, 1] to all of an integer type."""
    about = np.iinfo(dtype)
    wide = np.nan_to_num(x.astype(np.float64), nan=0.0)
    return np.rint(np.clip(wide, -1.0 if about.min else 0.0, 1.0) * about.max).astype(dtype)


def to_half_towards_zero(x: Array) -> Array:
    """f32 to f16; the mode of rounding is the instruction's own."""
    near = x.astype(np.float16)
    far = np.abs(near.astype(np.float32)) > np.abs(x)
    return np.where(far & np.isfinite(x), (near.view(np.uint16) - np.uint16(1)).view(np.float16), near)


def bf16_to_f32(x: Array) -> Array:
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def extend_from(x: Array, width: Array) -> Array:
    """The lowest ``width`` bits, sign-extended."""
    bits = x.dtype.itemsize * 8
    shift = (bits - width.astype(np.int64)).astype(x.dtype)
    return np.where(width == 0, x.dtype.type(0), (x << shift) >> shift)


# --- bits ---


def reverse_bits(x: Array) -> Array:
    order = np.unpackbits(np.ascontiguousarray(x)[..., None].view(np.uint8), axis=-1, bitorder="little")
    return np.packbits(order[..., ::-1], axis=-1, bitorder="little").view(x.dtype)[..., 0]


def count_ones(x: Array) -> Array:
    return np.unpackbits(np.ascontiguousarray(x)[..., None].view(np.uint8), axis=-1).sum(axis=-1, dtype=np.uint32)


def highest_bit(x: Array) -> Array:
    """The number of the highest bit that is set, or -1."""
    if x.dtype.itemsize == 8:
        high = (x >> np.uint64(32)).astype(np.uint32)
        return np.where(high != 0, highest_bit(high) + 32, highest_bit((x & np.uint64(0xFFFFFFFF)).astype(np.uint32)))
    return np.where(x == 0, 0, np.frexp(x.astype(np.float64))[1]).astype(np.int32) - 1


def leading_zeros(x: Array) -> Array:
    """-1 if no bit is set."""
    found = highest_bit(x)
    return np.where(found < 0, -1, x.dtype.itemsize * 8 - 1 - found).astype(np.int32)


def trailing_zeros(x: Array) -> Array:
    """-1 if no bit is set."""
    return highest_bit(x & (~x + x.dtype.type(1)))


def leading_signs(x: Array) -> Array:
    """How many bits follow the sign that equal it, and the sign; -1 if all bits do."""
    bits = bits_of(x)
    return leading_zeros(np.where(x < 0, ~bits, bits))
