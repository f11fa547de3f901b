"""Evaluators of pure operations on NumPy scalars, which rows of the table of operations refer to."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import SupportsFloat, SupportsInt, TypeVar

import numpy as np

from spirograd.base.dtypes import DType, u1

N = TypeVar("N", bound="np.integer | np.floating | np.bool_")


def elementwise(function: Callable[..., object]) -> Callable[..., object]:
    def run(t: DType, *args: object) -> object:
        return t.np.type(function(*args))

    return run


def in_f64(function: Callable[..., object]) -> Callable[..., object]:
    """Evaluate in f64 (operands of f16 and f32), then round. The result is closer to the true value than back ends must be."""

    def run(t: DType, *args: SupportsFloat) -> object:
        return t.np.type(function(*[np.float64(a) for a in args]))

    return run


def of_libm(name: str, other: Callable[..., object]) -> Callable[..., object]:
    """Return the function ``name`` of the C library, which code for the CPU calls for f64. ``other`` gives the result where Python raises
    an error."""
    function: Callable[..., float] = getattr(math, name)

    def run(*args: float) -> object:
        try:
            return function(*args)
        except (ValueError, OverflowError):
            return other(*args)

    return run


def fused_multiply_add(t: DType, a: np.floating, b: np.floating, c: np.floating) -> object:
    """Multiply and add with one rounding, as CPUs and GPUs with the instruction do; f16, for which CPUs have none, with two."""
    rounded = t.np.type(a * b + c)
    if t.bits == 16 or not np.isfinite([a, b, c]).all():
        return rounded
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return rounded  # with its sign
    try:
        nearest = float(exact)
    except OverflowError:
        return rounded
    if t.bits == 32 and Fraction(nearest) != exact:
        # Round to odd in f64, so that the second rounding gives what one would give.
        odd = int(np.float64(nearest).view(np.int64)) & 1
        nearest = nearest if odd else float(np.nextafter(nearest, math.copysign(math.inf, exact - Fraction(nearest))))
    return t.np.type(nearest)


def quotient(t: DType, a: SupportsInt, b: SupportsInt) -> object:
    """Divide and truncate."""
    x, y = int(a), int(b)
    if y == 0:
        return t.np.type(0)
    q = abs(x) // abs(y)
    return wrap(t, q if (x < 0) == (y < 0) else -q)


def remainder(t: DType, a: SupportsInt, b: SupportsInt) -> object:
    """Return the remainder with the sign of the dividend."""
    x, y = int(a), int(b)
    return t.np.type(0) if y == 0 else wrap(t, int(math.fmod(x, y)) if abs(x) < 2**52 and abs(y) < 2**52 else x - y * truncated(x, y))


def truncated(x: int, y: int) -> int:
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


def floor_quotient(t: DType, a: SupportsInt, b: SupportsInt) -> object:
    return t.np.type(0) if int(b) == 0 else wrap(t, int(a) // int(b))


def floor_remainder(t: DType, a: SupportsInt, b: SupportsInt) -> object:
    return t.np.type(0) if int(b) == 0 else wrap(t, int(a) % int(b))


def wrap(t: DType, value: int) -> object:
    """Return ``value`` modulo the range of the integer type ``t``."""
    return t.np.type(t.integer(value))


def cast(t: DType, a: np.generic | float) -> object:
    if t is u1:
        return np.bool_(a != 0)
    if t.is_int:
        return t.np.type(t.integer(a.item() if isinstance(a, np.generic) else a))
    return t.np.type(a)


def bitcast(t: DType, a: object) -> object:
    return np.asarray(a).view(t.np)[()]


def minimum(t: DType, a: N, b: N) -> object:
    return np.fmin(a, b) if t.is_float else min(a, b)


def maximum(t: DType, a: N, b: N) -> object:
    return np.fmax(a, b) if t.is_float else max(a, b)


def shift(left: bool) -> Callable[..., object]:
    def run(t: DType, a: SupportsInt, b: SupportsInt) -> object:
        count = int(b) % t.bits
        return wrap(t, int(a) << count if left else int(a) >> count)

    return run


def bits(t: DType, value: SupportsInt) -> int:
    return int(value) & ((1 << t.bits) - 1)


def power(x: float, y: float) -> float:
    # Arrays, because NumPy takes a square root for the scalar exponent 0.5, which is wrong for -0.0 and -inf.
    return float(np.power(np.array([x], np.float64), np.array([y], np.float64))[0])
