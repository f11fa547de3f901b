"""Monotonicity: whether a size grows or falls as a variable grows."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from spirograd.base.sizes.limits import Scope
from spirograd.base.sizes.size_nodes import Add, FloorDiv, IfLess, Max, MaxOver, Min, Mul, Size, Sub, Variable, variables


class Trend(Enum):
    """How a size changes as a variable grows."""

    FIXED = "not at all"
    UP = "never down"
    DOWN = "never up"
    AT_ENDS = "neither, but it is largest at one of the ends of any range"


_FLIPPED = {Trend.FIXED: Trend.FIXED, Trend.UP: Trend.DOWN, Trend.DOWN: Trend.UP}


def trend(size: Size, v: int, scope: Scope) -> Trend | None:
    """Return how ``size`` changes with variable ``v``, for variables within ``scope``; None if that is unknown."""
    if v not in variables(size):
        return Trend.FIXED
    rule = _RULES.get(type(size))
    known = None if rule is None else rule(size, v, scope)
    return Trend.AT_ENDS if known is None and _is_affine(size, v) else known


def _of_product(size: Mul, v: int, scope: Scope) -> Trend | None:
    for x, y in ((size.a, size.b), (size.b, size.a)):
        if v not in variables(y):
            low, high = scope.limits(y)
            own = trend(x, v, scope)
            if low >= 0:
                return own
            if own in (Trend.UP, Trend.DOWN):
                return _FLIPPED[own] if high <= 0 else Trend.AT_ENDS
            return None
    if all(scope.limits(x)[0] >= 0 for x in size.operands):
        return _joined(trend(size.a, v, scope), trend(size.b, v, scope))
    return None


def _of_quotient(size: FloorDiv, v: int, scope: Scope) -> Trend | None:
    if scope.limits(size.b)[0] < 1:
        return None
    if v not in variables(size.b):
        return trend(size.a, v, scope)
    return _joined(trend(size.a, v, scope), _flipped(trend(size.b, v, scope))) if scope.limits(size.a)[0] >= 0 else None


def _of_extremum(size: Min | Max, v: int, scope: Scope) -> Trend | None:
    trends = [trend(x, v, scope) for x in size.operands]
    joined = _joined(*trends)
    return Trend.AT_ENDS if joined is None and isinstance(size, Max) and None not in trends else joined


def _of_condition(size: IfLess, v: int, scope: Scope) -> Trend | None:
    if scope.limits(size.value)[0] < 0:
        return None
    return _monotone(_flipped(trend(size.a, v, scope)), trend(size.b, v, scope), trend(size.value, v, scope))


def _of_range(size: MaxOver, v: int, scope: Scope) -> Trend | None:
    inner = scope.within(size)
    return _monotone(_flipped(trend(size.begin, v, scope)), trend(size.end, v, scope), trend(size.body, v, inner))


_RULES: dict[type, Callable[[Any, int, Scope], Trend | None]] = {
    Variable: lambda size, v, scope: Trend.UP,
    Add: lambda size, v, scope: _joined(trend(size.a, v, scope), trend(size.b, v, scope)),
    Sub: lambda size, v, scope: _joined(trend(size.a, v, scope), _flipped(trend(size.b, v, scope))),
    Mul: _of_product,
    FloorDiv: _of_quotient,
    Min: _of_extremum,
    Max: _of_extremum,
    IfLess: _of_condition,
    MaxOver: _of_range,
}


def _joined(*trends: Trend | None) -> Trend | None:
    """Return the trend of a sum, or of another function that is monotone in each operand."""
    moving = [each for each in trends if each is not Trend.FIXED]
    if len(set(moving)) > 1 or (Trend.AT_ENDS in moving and len(moving) > 1):
        return None
    return moving[0] if moving else Trend.FIXED


def _monotone(*trends: Trend | None) -> Trend | None:
    joined = _joined(*trends)
    return None if joined is Trend.AT_ENDS else joined


def _flipped(own: Trend | None) -> Trend | None:
    return None if own is None else _FLIPPED.get(own)


def _is_affine(size: Size, v: int) -> bool:
    if v not in variables(size) or size == Variable(v):
        return True
    if isinstance(size, (Add, Sub)):
        return _is_affine(size.a, v) and _is_affine(size.b, v)
    if not isinstance(size, Mul):
        return False
    return any(v not in variables(y) and _is_affine(x, v) for x, y in ((size.a, size.b), (size.b, size.a)))
