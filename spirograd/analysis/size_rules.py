"""Simpler size expressions of the same value."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping

from spirograd.base.size_parts import UNLIMITED, Limits, Size, limits, rebuilt, variables
from spirograd.base.sizes import evaluate

# How a size changes with a variable: not at all, never down, never up, or: it is largest at one of the ends of any range.
_FIXED, _UP, _DOWN, _AT_ENDS = "fixed", "up", "down", "at ends"
_FLIPPED = {_FIXED: _FIXED, _UP: _DOWN, _DOWN: _UP}


@functools.lru_cache(1 << 12)
def simplify(size: Size) -> Size:
    """A size with the value of ``size`` for all arguments, extents and contents of memory.

    Constants are folded, sums ordered, minima and maxima freed of operands that cannot matter. The maximum over a range of what is
    monotone in its variable becomes its value at an end of the range; if the range may be empty, such that it is 0 then.
    """
    return _Simplifier({}).simplified(size)


def limits_of(size: Size) -> Limits:
    """Between which numbers ``size`` lies, so far as its form tells: integers, or infinite."""
    return _Simplifier({}).limits(size)


class _Simplifier:
    """``ranges``: what is known of bound variables."""

    def __init__(self, ranges: Mapping[int, Limits]) -> None:
        self.ranges = ranges

    def simplified(self, size: Size) -> Size:
        if isinstance(size, int):
            return size
        if size[0] == "max_over":
            _, v, begin, end, body = size
            return self.max_over(v, self.simplified(begin), self.simplified(end), body)
        return self.rule(rebuilt(size, self.simplified))

    def rule(self, size: Size) -> Size:
        """``size``, whose parts are simplified."""
        if isinstance(size, int) or size[0] not in _RULES:
            return size
        return _RULES[size[0]](self, *size[1:])

    def within(self, v: int, begin: Size, end: Size) -> _Simplifier:
        """For the body of a range."""
        low, high = self.limits(begin)[0], self.limits(end)[1] - 1
        return _Simplifier({**self.ranges, v: (low, high)} if low <= high else {**self.ranges, v: UNLIMITED})

    # --- limits ----------------------------------------------------------------------------------------------------------

    def limits(self, size: Size) -> Limits:
        """Between which numbers ``size`` lies."""
        if isinstance(size, int):
            return size, size
        kind = size[0]
        if kind == "bound":
            return self.ranges.get(size[1], UNLIMITED)
        if kind == "shape":
            return 0, math.inf
        if kind == "memory":
            return min(int(size[4].min), 0), int(size[4].max)
        if kind == "arg":
            return UNLIMITED
        if kind == "if_less":
            low, high = self.limits(size[3])
            return min(low, 0), max(high, 0)
        if kind == "max_over":
            _, v, begin, end, body = size
            return 0, max(self.within(v, begin, end).limits(body)[1], 0)
        return limits(kind, self.limits(size[1]), self.limits(size[2]))

    def difference(self, a: Size, b: Size) -> Limits:
        """Between which numbers a - b lies."""
        return self.limits(self.sum([(a, 1), (b, -1)]))

    # --- arithmetic ------------------------------------------------------------------------------------------------------

    def sum(self, parts: Iterable[tuple[Size, int]]) -> Size:
        """The sum of sizes, each times a number."""
        terms: dict[Size, int] = {}
        total = 0
        for part, factor in parts:
            own, number = _linear(part)
            total += factor * number
            for term, n in own.items():
                terms[term] = terms.get(term, 0) + factor * n
        return _built(terms, total)

    def cancelled(self, size: Size) -> Size:
        """A sum, simpler where terms of it belong together: max(a, b) - b is max(a - b, 0), and what a division leaves rounds it up."""
        terms, number = _linear(size)
        for term, n in terms.items() if len(terms) > 1 else ():
            if isinstance(term, int):
                continue
            rest = _built({t: m for t, m in terms.items() if t != term}, number)
            if abs(n) == 1 and term[0] in ("min", "max"):
                parts = [self.sum([(rest, 1), (x, n)]) for x in term[1:]]
                if any(isinstance(part, int) for part in parts):
                    return self.extreme(term[0] if n == 1 else _OTHER[term[0]], *parts)
            if n == 1 and term[0] == "floordiv" and isinstance(term[2], int):
                left = self.extreme("min", self.mod(term[1], term[2]), 1)
                if terms.get(left) == 1:
                    up = self.floordiv(self.sum([(term[1], 1), (term[2] - 1, 1)]), term[2])
                    return self.sum([(rest, 1), (left, -1), (up, 1)])
        return size

    def mul(self, a: Size, b: Size) -> Size:
        for x, n in ((a, b), (b, a)):
            if isinstance(n, int):
                return self.sum([(x, n)])
        (x, m), (y, n) = _factored(a), _factored(b)
        return self.sum([(("mul", *sorted((x, y), key=repr)), m * n)])

    def floordiv(self, a: Size, b: Size) -> Size:
        if not isinstance(b, int) or b <= 0:
            return _folded("floordiv", a, b)
        low, high = self.limits(a)
        if -math.inf < low and high < math.inf and low // b == high // b:
            return int(low // b)
        if not isinstance(a, int) and a[0] == "floordiv" and isinstance(a[2], int) and a[2] > 0:
            return self.floordiv(a[1], a[2] * b)
        # Multiples of the divisor leave it.
        terms, number = _linear(a)
        out = _built({t: n // b for t, n in terms.items() if n % b == 0}, number // b)
        rest = _built({t: n for t, n in terms.items() if n % b}, number % b)
        return self.sum([(out, 1), (0 if isinstance(rest, int) else ("floordiv", rest, b) if b > 1 else rest, 1)])

    def mod(self, a: Size, b: Size) -> Size:
        if not isinstance(b, int) or b <= 0:
            return _folded("mod", a, b)
        low, high = self.limits(a)
        if low >= 0 and high < b:
            return a
        terms, number = _linear(a)
        return _folded("mod", _built({t: n for t, n in terms.items() if n % b}, number % b), b)

    def extreme(self, kind: str, a: Size, b: Size) -> Size:
        """A minimum or maximum."""
        operands = [*_operands(kind, a), *_operands(kind, b)]
        kept: list[Size] = []
        for k, x in enumerate(operands):
            if not any(self.decides(kind, y, x) for y in (*kept, *operands[k + 1 :])):
                kept.append(x)
        kept.sort(key=lambda x: isinstance(x, int))
        return functools.reduce(lambda x, y: (kind, x, y), kept)

    def decides(self, kind: str, a: Size, b: Size) -> bool:
        """Whether b cannot matter next to a."""
        low, high = self.difference(a, b)
        return bool(low >= 0 if kind == "max" else high <= 0)

    def if_less(self, a: Size, b: Size, x: Size) -> Size:
        low, high = self.difference(a, b)
        if high < 0 or x == 0:
            return x
        if low >= 0:
            return 0
        if not isinstance(x, int) and x[0] == "max" and x[2] == 0 and self.is_positive(x[1], self.sum([(b, 1), (a, -1)])):
            x = x[1]
        return "if_less", a, b, x

    def memory(self, *leaf: object) -> Size:
        return 0 if isinstance(leaf[2], int) and leaf[2] < 0 else ("memory", *leaf)

    # --- ranges ----------------------------------------------------------------------------------------------------------

    def max_over(self, v: int, begin: Size, end: Size, body: Size) -> Size:
        """A maximum over a range whose ends are simplified."""
        if self.difference(end, begin)[1] <= 0:
            return 0
        inner = self.within(v, begin, end)
        parts = [x for x in _operands("max", inner.simplified(body)) if inner.limits(x)[1] > 0]
        found: list[Size] = []  # none of which is negative
        left: list[Size] = []
        for part in parts:
            new = self.one_over(v, begin, end, part)
            if new == ("max_over", v, begin, end, part):
                left.append(part)
            else:
                found.append(new)
        if left:
            found.append(("max_over", v, begin, end, functools.reduce(lambda x, y: ("max", x, y), left)))
        return functools.reduce(lambda x, y: self.extreme("max", x, y), found) if found else 0

    def one_over(self, v: int, begin: Size, end: Size, body: Size) -> Size:
        """The same of a body that is simplified and no maximum."""
        if not isinstance(body, int) and body[0] == "if_less":
            new = self.narrowed(v, begin, end, body)
            if new is not None:
                return new
        inner = self.within(v, begin, end)
        way = inner.way(body, v)
        if way is None:
            spread = inner.spread(body)
            way = inner.way(spread, v)
            if way is None:
                return ("max_over", v, begin, end, body)
            body = spread
        last = self.sum([(end, 1), (-1, 1)])
        places = {_FIXED: (begin,), _UP: (last,), _DOWN: (begin,), _AT_ENDS: (begin, last)}[way]
        found: Size = 0
        for place in places:
            found = self.extreme("max", found, self.simplified(_with(body, v, place)))
        return found if self.at_most(found, 0, self.sum([(end, 1), (begin, -1)])) else self.if_less(begin, end, found)

    def narrowed(self, v: int, begin: Size, end: Size, body: Size) -> Size | None:
        """A range whose body depends on a condition: over those v that meet it. None if that is no range."""
        assert not isinstance(body, int)
        _, a, b, x = body
        if v not in variables(a) | variables(b):
            return self.if_less(a, b, self.max_over(v, begin, end, x))
        terms, number = _linear(self.sum([(a, 1), (b, -1)]))
        factor = terms.pop(("bound", v), 0)
        rest = _built(terms, number)  # v * factor + rest < 0
        if abs(factor) != 1 or v in variables(rest):
            return None
        if factor == 1:
            return self.max_over(v, begin, self.extreme("min", end, self.sum([(rest, -1)])), x)
        return self.max_over(v, self.extreme("max", begin, self.sum([(rest, 1), (1, 1)])), end, x)

    def spread(self, size: Size, most: int = 4) -> Size:
        """A sum with a minimum or maximum among its terms as the minimum or maximum of sums; ``most``: of those in one another."""
        if not most:
            return size
        terms, number = _linear(size)
        for term, n in terms.items():
            if abs(n) == 1 and not isinstance(term, int) and term[0] in ("min", "max") and len(terms) > 1:
                rest = _built({t: m for t, m in terms.items() if t != term}, number)
                kind = term[0] if n == 1 else _OTHER[term[0]]
                a, b = (self.spread(self.sum([(rest, 1), (x, n)]), most - 1) for x in term[1:])
                return self.extreme(kind, a, b)
        return size

    def at_most(self, size: Size, most: int, length: Size) -> bool:
        """Whether ``size`` is at most a number >= 0 where ``length`` is at most 0, so far as is easy to see."""
        if self.limits(size)[1] <= most or self.limits(length)[0] > 0:
            return True
        if isinstance(size, int):
            return False
        kind = size[0]
        if kind in ("min", "max"):
            return {"min": any, "max": all}[kind](self.at_most(x, most, length) for x in size[1:])
        if kind == "floordiv" and isinstance(size[2], int) and size[2] > 0:
            return self.at_most(size[1], size[2] * (most + 1) - 1, length)
        if kind == "if_less":
            return self.at_most(size[3], most, length) or self.at_most(self.sum([(size[2], 1), (size[1], -1)]), 0, length)
        if kind == "max_over":
            return self.at_most(self.sum([(size[3], 1), (size[2], -1)]), 0, length)
        times = _times_in(size, length)
        return times > 0 and bool(self.limits(self.sum([(size, 1), (length, -times)]))[1] <= most)

    def is_positive(self, size: Size, length: Size) -> bool:
        """Whether ``size`` is 0 or more where ``length`` is 1 or more, so far as is easy to see."""
        if self.limits(size)[0] >= 0:
            return True
        if isinstance(size, int):
            return False
        if size[0] in ("min", "max"):
            return {"min": all, "max": any}[size[0]](self.is_positive(x, length) for x in size[1:])
        if size[0] in ("mul", "floordiv") and all(self.is_positive(x, length) for x in size[1:]):
            return True
        times = _times_in(size, length)
        return times > 0 and bool(self.limits(self.sum([(size, 1), (length, -times)]))[0] + times >= 0)

    # --- monotony --------------------------------------------------------------------------------------------------------

    def way(self, size: Size, v: int) -> str | None:
        """How ``size`` changes with variable ``v``; None if that is not known."""
        if v not in variables(size):
            return _FIXED
        assert not isinstance(size, int)
        rule = _WAYS.get(size[0])
        way = None if rule is None else rule(self, v, size)
        return _AT_ENDS if way is None and _is_affine(size, v) else way

    def way_of_product(self, v: int, size: Size) -> str | None:
        assert not isinstance(size, int)
        for x, y in ((size[1], size[2]), (size[2], size[1])):
            if v not in variables(y):
                low, high = self.limits(y)
                way = self.way(x, v)
                if low >= 0:
                    return way
                if way in (_UP, _DOWN):
                    return _FLIPPED[way] if high <= 0 else _AT_ENDS
                return None
        if all(self.limits(x)[0] >= 0 for x in size[1:]):
            return _joined(self.way(size[1], v), self.way(size[2], v))
        return None

    def way_of_quotient(self, v: int, size: Size) -> str | None:
        assert not isinstance(size, int)
        _, a, b = size
        if self.limits(b)[0] < 1:
            return None
        if v not in variables(b):
            return self.way(a, v)
        return _joined(self.way(a, v), _flipped(self.way(b, v))) if self.limits(a)[0] >= 0 else None

    def way_of_extreme(self, v: int, size: Size) -> str | None:
        assert not isinstance(size, int)
        ways = [self.way(x, v) for x in size[1:]]
        joined = _joined(*ways)
        return _AT_ENDS if joined is None and size[0] == "max" and None not in ways else joined

    def way_of_condition(self, v: int, size: Size) -> str | None:
        assert not isinstance(size, int)
        _, a, b, x = size
        if self.limits(x)[0] < 0:
            return None
        return _monotone(_flipped(self.way(a, v)), self.way(b, v), self.way(x, v))

    def way_of_range(self, v: int, size: Size) -> str | None:
        assert not isinstance(size, int)
        _, w, begin, end, body = size
        return _monotone(_flipped(self.way(begin, v)), self.way(end, v), self.within(w, begin, end).way(body, v))


_OTHER = {"min": "max", "max": "min"}
_RULES: dict[str, Callable[..., Size]] = {
    "add": lambda s, a, b: s.cancelled(s.sum([(a, 1), (b, 1)])),
    "sub": lambda s, a, b: s.cancelled(s.sum([(a, 1), (b, -1)])),
    "mul": _Simplifier.mul,
    "floordiv": _Simplifier.floordiv,
    "mod": _Simplifier.mod,
    "min": lambda s, a, b: s.extreme("min", a, b),
    "max": lambda s, a, b: s.extreme("max", a, b),
    "if_less": _Simplifier.if_less,
    "memory": _Simplifier.memory,
}
_WAYS: dict[str, Callable[[_Simplifier, int, Size], str | None]] = {
    "bound": lambda s, v, size: _UP,
    "add": lambda s, v, size: _joined(*[s.way(x, v) for x in size[1:]]),  # type: ignore[index]
    "sub": lambda s, v, size: _joined(s.way(size[1], v), _flipped(s.way(size[2], v))),  # type: ignore[index]
    "mul": _Simplifier.way_of_product,
    "floordiv": _Simplifier.way_of_quotient,
    "min": _Simplifier.way_of_extreme,
    "max": _Simplifier.way_of_extreme,
    "if_less": _Simplifier.way_of_condition,
    "max_over": _Simplifier.way_of_range,
}


def _joined(*ways: str | None) -> str | None:
    """Of a sum, or another function that goes up with each operand."""
    moving = {way for way in ways if way != _FIXED}
    if len(moving) > 1 or (_AT_ENDS in moving and len([way for way in ways if way != _FIXED]) > 1):
        return None
    return moving.pop() if moving else _FIXED


def _monotone(*ways: str | None) -> str | None:
    joined = _joined(*ways)
    return None if joined == _AT_ENDS else joined


def _flipped(way: str | None) -> str | None:
    return None if way is None else _FLIPPED.get(way)


def _is_affine(size: Size, v: int) -> bool:
    if v not in variables(size) or size == ("bound", v):
        return True
    assert not isinstance(size, int)
    if size[0] in ("add", "sub"):
        return _is_affine(size[1], v) and _is_affine(size[2], v)
    if size[0] != "mul":
        return False
    return any(v not in variables(y) and _is_affine(x, v) for x, y in ((size[1], size[2]), (size[2], size[1])))


# --- forms ---------------------------------------------------------------------------------------------------------------


def _linear(size: Size) -> tuple[dict[Size, int], int]:
    """A simplified size as a sum: how often each term, and a number."""
    if isinstance(size, int):
        return {}, size
    if size[0] in ("add", "sub"):
        sign = 1 if size[0] == "add" else -1
        (terms, number), (others, other) = _linear(size[1]), _linear(size[2])
        for term, n in others.items():
            terms[term] = terms.get(term, 0) + sign * n
        return {term: n for term, n in terms.items() if n}, number + sign * other
    if size[0] == "mul" and isinstance(size[2], int):
        terms, number = _linear(size[1])
        return {term: n * size[2] for term, n in terms.items()}, number * size[2]
    return {size: 1}, 0


def _built(terms: Mapping[Size, int], number: int) -> Size:
    """The sum in the form that all sums have here: what is added, what is taken away, the number."""
    plus = [_times(term, n) for term, n in terms.items() if n > 0]
    minus = [_times(term, -n) for term, n in terms.items() if n < 0]
    if not plus:
        plus, number = [number], 0
    total = functools.reduce(lambda a, b: ("sub", a, b), minus, functools.reduce(lambda a, b: ("add", a, b), plus))
    if isinstance(total, int) or not number:
        return total if not isinstance(total, int) else total + number
    return ("add", total, number) if number > 0 else ("sub", total, -number)


def _times(term: Size, n: int) -> Size:
    return term if n == 1 else ("mul", term, n)


def _factored(size: Size) -> tuple[Size, int]:
    """A size that is one term, and how often it is that."""
    terms, number = _linear(size)
    if len(terms) != 1 or number:
        return size, 1
    return next(iter(terms.items()))


def _times_in(size: Size, part: Size) -> int:
    """How often ``part`` is in the sum ``size``; 0 if it is not a number of times."""
    own, _ = _linear(size)
    for term, n in _linear(part)[0].items():
        times, left = divmod(own.get(term, 0), n)
        return 0 if left else times
    return 0


def _folded(kind: str, a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return evaluate((kind, a, b), int, lambda k, axis: 0)
    return 0 if 0 in (a, b) else (kind, a, b)


def _operands(kind: str, size: Size) -> list[Size]:
    """Those of nested minima or maxima."""
    if isinstance(size, int) or size[0] != kind:
        return [size]
    return [x for part in size[1:] for x in _operands(kind, part)]


def _with(size: Size, v: int, value: Size) -> Size:
    """``size`` with ``value`` for variable ``v``."""
    if size == ("bound", v):
        return value
    return rebuilt(size, lambda part: _with(part, v, value))
