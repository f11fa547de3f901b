"""The line search for the strong Wolfe conditions: J. Nocedal and S. Wright, Numerical Optimization, 2nd edition, algorithms 3.5 and 3.6,
with the minimum of the cubic through two points (3.59) as the next step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

# Factors of the slope in the conditions: of sufficient decrease, and of curvature.
_DECREASE, _CURVATURE = 1e-4, 0.9
# The next step keeps this part of the distance of two steps from both.
_MARGIN = 0.1
# The largest quotient of a step and the one before.
_GROWTH = 10.0


class Point(NamedTuple):
    """A step along a direction, with the loss there and its derivative along the direction."""

    step: float
    loss: float
    slope: float


def strong_wolfe(evaluate: Callable[[float], Point], start: Point, step: float, most: int, smallest: float) -> Point:
    """Return a point that satisfies the strong Wolfe conditions, or the one with the least loss among those that were evaluated.

    ``start``: the point of step 0; ``step``: the first one to try; ``most``: the largest number of evaluations; ``smallest``: the distance
    of steps below which the search ends. The last evaluation may have been at another point than the returned one.
    """
    before = start
    for k in range(most):
        point = evaluate(step)
        if not _is_finite(point):
            step = (before.step + step) / 2
            continue
        if not _decreases(point, start) or (before is not start and point.loss >= before.loss):
            return _between(evaluate, start, before, point, most - k - 1, smallest)
        if abs(point.slope) <= -_CURVATURE * start.slope:
            return point
        if point.slope >= 0:
            return _between(evaluate, start, point, before, most - k - 1, smallest)
        minimum = _cubic_minimum(before, point)
        nearest, farthest = point.step + _MARGIN * (point.step - before.step), _GROWTH * point.step
        step = min(max(minimum, nearest), farthest) if minimum > point.step else farthest
        before = point
    return before


def _between(evaluate: Callable[[float], Point], start: Point, low: Point, high: Point, most: int, smallest: float) -> Point:
    """Return the point to step to between two that bracket one. ``low``: the one with the smaller loss."""
    for _ in range(most):
        width = high.step - low.step
        if abs(width) * abs(start.slope) < smallest:
            break
        ends = sorted((low.step + _MARGIN * width, high.step - _MARGIN * width))
        point = evaluate(min(max(_cubic_minimum(low, high), ends[0]), ends[1]))
        if not _is_finite(point) or not _decreases(point, start) or point.loss >= low.loss:
            high = point
        else:
            if abs(point.slope) <= -_CURVATURE * start.slope:
                return point
            if point.slope * width >= 0:
                high = low
            low = point
    return low


def _decreases(point: Point, start: Point) -> bool:
    return point.loss <= start.loss + _DECREASE * point.step * start.slope


def _is_finite(point: Point) -> bool:
    return math.isfinite(point.loss) and math.isfinite(point.slope)


def _cubic_minimum(a: Point, b: Point) -> float:
    """Return where the cubic through two points with their slopes is least; halfway if it has no minimum."""
    width = b.step - a.step
    if width != 0 and _is_finite(a) and _is_finite(b):
        d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.step - b.step)
        square = d1 * d1 - a.slope * b.slope
        if square >= 0:
            d2 = math.copysign(math.sqrt(square), width)
            divisor = b.slope - a.slope + 2 * d2
            if divisor != 0:
                return b.step - width * (b.slope + d2 - d1) / divisor
    return (a.step + b.step) / 2
