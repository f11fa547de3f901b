"""Counter-based random numbers, as plain integer arithmetic of the kernel.

The bits are those of pcg3d (M. Jarzynski, M. Olano: Hash Functions for GPU Rendering, JCGT 9(3), 2020) of (iteration, draw, stream),
so a draw depends on nothing but these three: any back end gives the same numbers, and a reverse pass can draw them again.
"""

from __future__ import annotations

import math

from spirograd.base import dtypes
from spirograd.base.dtypes import DType, f64, i32, u1, u32, u64
from spirograd.ir import ops as ir
from spirograd.lang import arithmetic, scalar
from spirograd.lang.scalar import Value


def _pcg3d(x: Value, y: Value, z: Value) -> tuple[Value, Value, Value]:
    multiplier, increment = scalar.constant(1664525, u32), scalar.constant(1013904223, u32)
    x, y, z = (_plus_product(increment, v, multiplier) for v in (x, y, z))
    x = _plus_product(x, y, z)
    y = _plus_product(y, z, x)
    z = _plus_product(z, x, y)
    x, y, z = (v ^ (v >> 16) for v in (x, y, z))
    x = _plus_product(x, y, z)
    y = _plus_product(y, z, x)
    z = _plus_product(z, x, y)
    return x, y, z


def _plus_product(a: Value, b: Value, c: Value) -> Value:
    """Return ``a + b * c``, wrapping."""
    return scalar.emit(ir.add, a, scalar.emit(ir.mul, b, c, attr="wrap"), attr="wrap")


def stream_key(seed: Value, task: int) -> Value:
    """Return the key that distinguishes the loops of a kernel and its launches."""
    return seed ^ scalar.constant((task * 0x9E3779B9) & 0xFFFFFFFF, u32)


def seed_of_environment(seed: Value, environment: Value) -> Value:
    """Return the seed of an environment of a batch: that of the launch, and the number of the environment, whose bits are mixed as at the
    end of MurmurHash3 (A. Appleby). Each number gives other bits."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        environment = scalar.emit(ir.mul, environment ^ (environment >> shift), scalar.constant(factor, u32), attr="wrap")
    return seed ^ environment ^ (environment >> 16)


def uniform(t: DType, counter: Value, key: Value, index: Value) -> Value:
    """Return floats in [0, 1), multiples of 2**-11 (f16), 2**-24 (f32) or 2**-53 (f64); integers over their whole range; u1 a coin."""
    a, b, _ = _pcg3d(index, counter, key)
    if t is f64:
        high, low = scalar.cast(a >> 5, f64), scalar.cast(b >> 6, f64)
        return (high * scalar.constant(67108864.0, f64) + low) * scalar.constant(2.0**-53, f64)
    if t.is_float:
        bits = 24 if t.bits == 32 else 11
        return scalar.cast(scalar.cast(a >> (32 - bits), dtypes.f32) * scalar.constant(2.0**-bits, dtypes.f32), t)
    if t is u1:
        return (a >> 31) != scalar.constant(0, u32)
    if t.bits == 64:
        return scalar.cast((scalar.cast(a, u64) << 32) | scalar.cast(b, u64), t)
    return scalar.bit_cast(a, t) if t in (i32, u32) else scalar.cast(a >> (32 - t.bits), t)


def normal(t: DType, counter: Value, key: Value, index: Value) -> Value:
    """Return a normal number by Box and Muller's transform (G. Box, M. Muller, Ann. Math. Stat. 29, 1958) of two words of one draw."""
    a, b, _ = _pcg3d(index, counter, key)
    work = f64 if t is f64 else dtypes.f32
    radius_bits = scalar.cast(a >> 8, work) + scalar.constant(1.0, work)  # Never 0, so the logarithm is finite.
    u = radius_bits * scalar.constant(2.0**-24, work)
    angle = scalar.cast(b, work) * scalar.constant(2.0 * math.pi * 2.0**-32, work)
    return scalar.cast(arithmetic.sqrt(arithmetic.log(u) * scalar.constant(-2.0, work)) * arithmetic.cos(angle), t)
