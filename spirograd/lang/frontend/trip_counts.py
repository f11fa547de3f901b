"""Trip counts of loops over ranges with a step, and over products of extents. Exact over the whole range of the types of the bounds.

A flat loop counts in the type of its bounds. Where the number of iterations may not fit that, the loop counts in a wider or an unsigned
type, or a check refuses it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from spirograd.base.dtypes import DType, i32, i64, promote, u32, u64, unsigned
from spirograd.ir import ops as ir
from spirograd.ir.ops import OpCode
from spirograd.lang import scalar
from spirograd.lang.scalar import Scalar, Value, type_error

_FROM_0 = "loop from 0, and add an offset of type u64 to the index"
# The bounds of a flat loop, and what its index stands for.
Strided = tuple[Value, Value, Callable[[Value], Value]]


def range_type(begin: Scalar, end: Scalar, step: Scalar) -> DType:
    """Return the signed type that a range counts in. Literal bounds may be too large for the default type."""
    if any(t.bits == 64 or t is u32 for t in map(scalar.dtype_of, (begin, end, step))):
        return i64
    return i32 if all(i32.min <= n <= i32.max for n in map(scalar.known, (begin, end)) if isinstance(n, int)) else i64


def range_number(x: Scalar, t: DType) -> Value:
    """Return a bound or step of a range in ``t``, the signed type that the range counts in. Refused if it is 2**63 or more."""
    n = scalar.known(x)
    if isinstance(n, int) and not i64.min <= n <= i64.max:
        raise type_error(f"this range has the bound or step {n}, and ranges count in i64", _FROM_0)
    if not isinstance(n, int) and scalar.dtype_of(x) is u64:
        high = scalar.emit(ir.shr, scalar.as_value(x), scalar.constant(63, u64))
        message = f"a bound or step of this range is 2**63 or more, and ranges count in i64; {_FROM_0}"
        _check(scalar.emit(ir.eq, high, scalar.constant(0, u64)), [high], message, 0)
    return scalar.cast(x, t)


def strided(first: Value, last: Value, step: Scalar) -> Strided:
    """Return ``range(first, last, step)``, with bounds of one signed type, as a loop that counts by 1."""
    t = first.dtype
    if not isinstance(step, int):
        return _any_step(first, last, range_number(step, t))
    if step == 1:
        return first, last, lambda index: index
    if step == -1:  # ~x is -x - 1, which never overflows
        return ~first, ~last, lambda index: ~index
    count = _count(first, last, step) if step > 0 else _count(last, first, -step)
    zero = scalar.constant(0, count.dtype)
    if not t.min <= step <= t.max:  # then there is one iteration at most
        return zero, count, lambda index: first
    stride = scalar.constant(step, t)
    return zero, count, lambda index: _exact(ir.add, first, _exact(ir.mul, scalar.cast(index, t), stride))


def _count(low: Value, high: Value, size: int) -> Value:
    """Return how many numbers there are from ``low`` to below ``high``, every ``size``-th of them, for a size of 2 or more. In the type of
    the bounds, if that surely holds it, else in the unsigned one."""
    t, a, b = low.dtype, scalar.known(low), scalar.known(high)
    u = unsigned(t)
    if isinstance(a, int) and isinstance(b, int):
        n = len(range(a, b, size))
        return scalar.constant(n, t if n <= t.max else u)
    if size > u.max:
        size = int(u.max)
    top, divisor = scalar.emit(ir.max_, high, low), scalar.constant(size, u)
    if size <= t.max and ((isinstance(a, int) and a >= 0) or (isinstance(b, int) and b < 0)):  # then the distance fits
        distance = scalar.cast(_exact(ir.sub, top, low), u)
        return scalar.cast(scalar.emit(ir.floordiv, distance + scalar.constant(size - 1, u), divisor), t)
    distance = _exact(ir.sub, scalar.cast(top, u), scalar.cast(low, u))
    quotient = scalar.emit(ir.floordiv, distance, divisor)
    rest = scalar.emit(ir.min_, scalar.emit(ir.floormod, distance, divisor), scalar.constant(1, u))
    kept = u if size == 2 else t
    return scalar.emit(ir.add, scalar.cast(quotient, kept), scalar.cast(rest, kept))


def _any_step(first: Value, last: Value, step: Value) -> Strided:
    """Return a step that only the kernel knows; of 0 nothing is run. It may be 1 or -1, so the loop counts in the unsigned type."""
    t = first.dtype
    u = unsigned(t)
    zero, one = scalar.constant(0, t), scalar.constant(1, u)
    up = scalar.emit(ir.gt, step, zero)
    low = scalar.emit_select(up, first, last)
    size = scalar.cast(scalar.emit_select(up, step, _exact(ir.sub, zero, step)), u)
    distance = _exact(ir.sub, scalar.cast(scalar.emit(ir.max_, first, last), u), scalar.cast(low, u))
    some = scalar.emit(ir.min_, scalar.emit(ir.min_, distance, size), one)
    end = scalar.emit(ir.floordiv, scalar.emit(ir.max_, distance, one) - one, size) + some
    return scalar.constant(0, u), end, lambda index: _exact(ir.add, first, _exact(ir.mul, scalar.cast(index, t), step))


def _exact(code: OpCode, a: Value, b: Value) -> Value:
    """Emit arithmetic that may wrap on the way to a result that does not, which overflow checks leave alone."""
    known = scalar.known(a), scalar.known(b)
    return scalar.emit(code, a, b, attr=None if all(isinstance(x, int) for x in known) else "wrap")


def extent(begin: Value, end: Value) -> tuple[Value, Value]:
    """Return the extent of an axis, and whether its type holds it."""
    a, b, t = scalar.known(begin), scalar.known(end), begin.dtype
    yes = scalar.constant(True)
    if isinstance(a, int) and isinstance(b, int):
        return scalar.constant(max(b - a, 0), t if b - a <= t.max else i64), yes
    distance = _exact(ir.sub, scalar.emit(ir.max_, end, begin), begin)
    fits = not t.is_signed or (isinstance(a, int) and a >= 0)
    return distance, yes if fits else scalar.emit(ir.ge, distance, scalar.constant(0, t))


def product(extents: Sequence[tuple[Value, Value]], fits: bool = False) -> Value:
    """Return how many elements an index space has, which `extent` gave the extents of: as a constant of a type that holds it, if it is
    known; else in their type, and a launch with more fails, unless it is known (``fits``) that there are none."""
    numbers = [scalar.known(n) for n, _ in extents]
    t = functools.reduce(promote, [n.dtype for n, _ in extents])
    constant = math.prod([n for n in numbers if isinstance(n, int)])
    open_ = [(scalar.cast(n, t), fitting) for n, fitting in extents if not isinstance(scalar.known(n), int)]
    if not open_:
        if constant > i64.max:
            raise type_error(f"this index space has {constant} elements, more than 2**63 - 1")
        return scalar.constant(constant, t if constant <= t.max else i64)
    if constant == 0:
        return scalar.constant(0, t)
    if constant > t.max:
        t = i64
        open_ = [(scalar.cast(n, t), fitting) for n, fitting in open_]
    good = scalar.constant(True)
    parts = open_ if constant == 1 else [(scalar.constant(constant, t), good), *open_]
    total, good = parts[0]
    for n, fitting in parts[1:]:
        divisor = scalar.emit(ir.max_, total, scalar.constant(1, t))  # debug mode has an error for divisions by zero
        good = _both(good, scalar.emit(ir.le, n, scalar.emit(ir.floordiv, scalar.constant(int(t.max), t), divisor)))
        good = _both(good, fitting)
        total = _exact(ir.mul, total, n)
    if not fits and scalar.known(good) is not True:
        least = functools.reduce(lambda a, b: scalar.emit(ir.min_, a, b), [n for n, _ in open_])
        good = scalar.emit(ir.or_, good, scalar.emit(ir.eq, least, scalar.constant(0, t)))
        _refuse(good, [n for n, _ in extents], t)
    return total


def _both(a: Value, b: Value) -> Value:
    return b if scalar.known(a) is True else a if scalar.known(b) is True else scalar.emit(ir.and_, a, b)


def _refuse(good: Value, extents: Sequence[Value], t: DType) -> None:
    shape = " x ".join([f"{{{k}}}" for k in range(len(extents))])
    message = f"this loop has an index space of {shape}, more elements than {t} counts; loop over one axis inside of the other"
    # An extent that did not fit has wrapped to what it is as an unsigned number.
    _check(good, [scalar.cast(n, unsigned(n.dtype)) for n in extents], message, int(t.max))


def _check(good: Value, sizes: Sequence[Value], message: str, most: int) -> None:
    """Emit a check that the product of ``sizes`` is at most ``most``; ``good`` tells whether it is."""
    scalar.emit_check("space", good, message, sizes, most)
