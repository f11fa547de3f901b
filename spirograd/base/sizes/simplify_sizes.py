"""Simplification of symbolic sizes: an expression of the same value with fewer operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from spirograd.base.sizes.evaluate import OPERATIONS
from spirograd.base.sizes.limits import Scope
from spirograd.base.sizes.linear import built, factored, linear, times_in, total, without
from spirograd.base.sizes.monotonicity import Trend, trend
from spirograd.base.sizes.size_nodes import (
    Add,
    Binary,
    Element,
    FloorDiv,
    IfLess,
    Max,
    MaxOver,
    Min,
    Mod,
    Mul,
    Node,
    Size,
    Sub,
    Variable,
    flattened,
    replaced,
    variables,
)

_Extremum = type[Min] | type[Max]
_OTHER: dict[type, _Extremum] = {Min: Max, Max: Min}


@functools.lru_cache(1 << 12)
def simplify(size: Size) -> Size:
    """Return a size with the value of ``size`` for all arguments, extents and contents of memory.

    Constants are folded, sums are ordered, and operands that cannot matter are removed from minima and maxima. The maximum over a range of
    a body that is monotone in the variable becomes the body at an end of the range, and 0 if the range is empty.
    """
    return _Simplifier(Scope()).simplified(size)


class _Simplifier:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def simplified(self, size: Size) -> Size:
        if isinstance(size, int):
            return size
        if isinstance(size, MaxOver):
            return self.max_over(MaxOver(size.variable, self.simplified(size.begin), self.simplified(size.end), size.body))
        size = size.rebuilt(self.simplified)
        rule = _RULES.get(type(size))
        return size if rule is None else rule(self, size)

    # --- arithmetic ------------------------------------------------------------------------------------------------------

    def sum(self, size: Add | Sub) -> Size:
        """Combine terms of a sum: max(a, b) - b is max(a - b, 0), and a quotient plus the excess of its remainder is rounded up."""
        size_now = total([(size.a, 1), (size.b, 1 if isinstance(size, Add) else -1)])
        terms, constant = linear(size_now)
        for term, n in terms.items() if len(terms) > 1 else ():
            rest = without(terms, constant, term)
            if abs(n) == 1 and isinstance(term, (Min, Max)):
                parts = [total([(rest, 1), (x, n)]) for x in term.operands]
                if any(isinstance(part, int) for part in parts):
                    return self.extremum(type(term) if n == 1 else _OTHER[type(term)], *parts)
            if n == 1 and isinstance(term, FloorDiv) and isinstance(term.b, int):
                left = self.extremum(Min, self.mod(term.a, term.b), 1)
                if terms.get(left) == 1:
                    up = self.floordiv(total([(term.a, 1), (term.b - 1, 1)]), term.b)
                    return total([(rest, 1), (left, -1), (up, 1)])
        return size_now

    def mul(self, a: Size, b: Size) -> Size:
        for x, n in ((a, b), (b, a)):
            if isinstance(n, int):
                return total([(x, n)])
        (x, m), (y, n) = factored(a), factored(b)
        return total([(Mul(*sorted((x, y), key=repr)), m * n)])

    def floordiv(self, a: Size, b: Size) -> Size:
        if not isinstance(b, int) or b <= 0:
            return _folded(FloorDiv, a, b)
        low, high = self.scope.limits(a)
        if -math.inf < low and high < math.inf and low // b == high // b:
            return int(low // b)
        if isinstance(a, FloorDiv) and isinstance(a.b, int) and a.b > 0:
            return self.floordiv(a.a, a.b * b)
        # Multiples of the divisor move out of the quotient.
        terms, constant = linear(a)
        out = built({t: n // b for t, n in terms.items() if n % b == 0}, constant // b)
        rest = built({t: n for t, n in terms.items() if n % b}, constant % b)
        return total([(out, 1), (0 if isinstance(rest, int) else FloorDiv(rest, b) if b > 1 else rest, 1)])

    def mod(self, a: Size, b: Size) -> Size:
        if not isinstance(b, int) or b <= 0:
            return _folded(Mod, a, b)
        low, high = self.scope.limits(a)
        if low >= 0 and high < b:
            return a
        terms, constant = linear(a)
        return _folded(Mod, built({t: n for t, n in terms.items() if n % b}, constant % b), b)

    def extremum(self, kind: _Extremum, a: Size, b: Size) -> Size:
        operands = [*flattened(kind, a), *flattened(kind, b)]
        kept: list[Size] = []
        for k, x in enumerate(operands):
            if not any(self.decides(kind, y, x) for y in (*kept, *operands[k + 1 :])):
                kept.append(x)
        kept.sort(key=lambda x: isinstance(x, int))
        return functools.reduce(kind, kept)

    def decides(self, kind: _Extremum, a: Size, b: Size) -> bool:
        """Return whether a alone decides the minimum or maximum of a and b."""
        low, high = self.scope.difference(a, b)
        return bool(low >= 0 if kind is Max else high <= 0)

    def if_less(self, a: Size, b: Size, value: Size) -> Size:
        low, high = self.scope.difference(a, b)
        if high < 0 or value == 0:
            return value
        if low >= 0:
            return 0
        if isinstance(value, Max) and value.b == 0 and self.is_positive(value.a, total([(b, 1), (a, -1)])):
            value = value.a
        return IfLess(a, b, value)

    # --- ranges ----------------------------------------------------------------------------------------------------------

    def max_over(self, loop: MaxOver) -> Size:
        """Simplify a maximum over a range whose ends are simplified."""
        if self.scope.difference(loop.end, loop.begin)[1] <= 0:
            return 0
        inner = _Simplifier(self.scope.within(loop))
        parts = [x for x in flattened(Max, inner.simplified(loop.body)) if inner.scope.limits(x)[1] > 0]
        maxima: list[Size] = []  # none of which is negative
        left: list[Size] = []
        for part in parts:
            one = MaxOver(loop.variable, loop.begin, loop.end, part)
            new = self.one_over(one)
            if new == one:
                left.append(part)
            else:
                maxima.append(new)
        if left:
            maxima.append(MaxOver(loop.variable, loop.begin, loop.end, functools.reduce(Max, left)))
        return functools.reduce(lambda x, y: self.extremum(Max, x, y), maxima) if maxima else 0

    def one_over(self, loop: MaxOver) -> Size:
        """Simplify a maximum over a range whose body is simplified and is not a maximum."""
        v, begin, end, body = loop.variable, loop.begin, loop.end, loop.body
        if isinstance(body, IfLess):
            new = self.narrowed(loop, body)
            if new is not None:
                return new
        inner = _Simplifier(self.scope.within(loop))
        own = trend(body, v, inner.scope)
        if own is None:
            body = inner.spread(body)
            own = trend(body, v, inner.scope)
            if own is None:
                return loop
        last = total([(end, 1), (-1, 1)])
        places = {Trend.FIXED: (begin,), Trend.UP: (last,), Trend.DOWN: (begin,), Trend.AT_ENDS: (begin, last)}[own]
        largest: Size = 0
        for place in places:
            largest = self.extremum(Max, largest, self.simplified(replaced(body, v, place)))
        return largest if self.at_most(largest, 0, total([(end, 1), (begin, -1)])) else self.if_less(begin, end, largest)

    def narrowed(self, loop: MaxOver, body: IfLess) -> Size | None:
        """Return the maximum over the values of the variable that meet the condition of the body; None if these are not a range."""
        v, begin, end = loop.variable, loop.begin, loop.end
        if v not in variables(body.a) | variables(body.b):
            return self.if_less(body.a, body.b, self.max_over(MaxOver(v, begin, end, body.value)))
        terms, constant = linear(total([(body.a, 1), (body.b, -1)]))
        factor = terms.pop(Variable(v), 0)
        rest = built(terms, constant)  # v * factor + rest < 0
        if abs(factor) != 1 or v in variables(rest):
            return None
        if factor == 1:
            end = self.extremum(Min, end, total([(rest, -1)]))
        else:
            begin = self.extremum(Max, begin, total([(rest, 1), (1, 1)]))
        return self.max_over(MaxOver(v, begin, end, body.value))

    def spread(self, size: Size, most: int = 4) -> Size:
        """Distribute a sum over the minimum or maximum among its terms. ``most``: the limit of nested ones."""
        if not most:
            return size
        terms, constant = linear(size)
        for term, n in terms.items():
            if abs(n) == 1 and isinstance(term, (Min, Max)) and len(terms) > 1:
                rest = without(terms, constant, term)
                kind = type(term) if n == 1 else _OTHER[type(term)]
                a, b = (self.spread(total([(rest, 1), (x, n)]), most - 1) for x in term.operands)
                return self.extremum(kind, a, b)
        return size

    def at_most(self, size: Size, most: int, length: Size) -> bool:
        """Return whether ``size`` is at most a number >= 0 where ``length`` is at most 0, so far as is easy to see."""
        if self.scope.limits(size)[1] <= most or self.scope.limits(length)[0] > 0:
            return True
        if isinstance(size, int):
            return False
        if isinstance(size, (Min, Max)):
            return (any if isinstance(size, Min) else all)(self.at_most(x, most, length) for x in size.operands)
        if isinstance(size, FloorDiv) and isinstance(size.b, int) and size.b > 0:
            return self.at_most(size.a, size.b * (most + 1) - 1, length)
        if isinstance(size, IfLess):
            return self.at_most(size.value, most, length) or self.at_most(total([(size.b, 1), (size.a, -1)]), 0, length)
        if isinstance(size, MaxOver):
            return self.at_most(total([(size.end, 1), (size.begin, -1)]), 0, length)
        times = times_in(size, length)
        return times > 0 and bool(self.scope.limits(total([(size, 1), (length, -times)]))[1] <= most)

    def is_positive(self, size: Size, length: Size) -> bool:
        """Return whether ``size`` is 0 or more where ``length`` is 1 or more, so far as is easy to see."""
        if self.scope.limits(size)[0] >= 0:
            return True
        if isinstance(size, int):
            return False
        if isinstance(size, (Min, Max)):
            return (all if isinstance(size, Min) else any)(self.is_positive(x, length) for x in size.operands)
        if isinstance(size, (Mul, FloorDiv)) and all(self.is_positive(x, length) for x in size.operands):
            return True
        times = times_in(size, length)
        return times > 0 and bool(self.scope.limits(total([(size, 1), (length, -times)]))[0] + times >= 0)


# Rules for nodes whose operands are simplified.
_RULES: dict[type[Node], Callable[[_Simplifier, Any], Size]] = {
    Add: _Simplifier.sum,
    Sub: _Simplifier.sum,
    Mul: lambda s, size: s.mul(size.a, size.b),
    FloorDiv: lambda s, size: s.floordiv(size.a, size.b),
    Mod: lambda s, size: s.mod(size.a, size.b),
    Min: lambda s, size: s.extremum(Min, size.a, size.b),
    Max: lambda s, size: s.extremum(Max, size.a, size.b),
    IfLess: lambda s, size: s.if_less(size.a, size.b, size.value),
    Element: lambda s, size: 0 if isinstance(size.offset, int) and size.offset < 0 else size,
}


def _folded(kind: type[Binary], a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return OPERATIONS[kind](a, b)
    return 0 if 0 in (a, b) else kind(a, b)
