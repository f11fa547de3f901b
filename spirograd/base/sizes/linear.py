"""Sizes as linear combinations: terms, each times an integer, and a constant. Sums in this form are equal if their sizes are."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from spirograd.base.sizes.size_nodes import Add, Mul, Size, Sub


def linear(size: Size) -> tuple[dict[Size, int], int]:
    """Return the terms of ``size`` with their factors, none of which is 0, and the constant."""
    if isinstance(size, int):
        return {}, size
    if isinstance(size, (Add, Sub)):
        sign = 1 if isinstance(size, Add) else -1
        (terms, constant), (others, other) = linear(size.a), linear(size.b)
        for term, factor in others.items():
            terms[term] = terms.get(term, 0) + sign * factor
        return {term: factor for term, factor in terms.items() if factor}, constant + sign * other
    if isinstance(size, Mul) and isinstance(size.b, int):
        terms, constant = linear(size.a)
        return {term: factor * size.b for term, factor in terms.items()}, constant * size.b
    return {size: 1}, 0


def built(terms: Mapping[Size, int], constant: int) -> Size:
    """Return the canonical size of a linear combination: positive terms, negative terms, the constant."""
    plus = [_times(term, factor) for term, factor in terms.items() if factor > 0]
    minus = [_times(term, -factor) for term, factor in terms.items() if factor < 0]
    if not plus:
        plus, constant = [constant], 0
    size = functools.reduce(Sub, minus, functools.reduce(Add, plus))
    if isinstance(size, int):
        return size + constant
    if not constant:
        return size
    return Add(size, constant) if constant > 0 else Sub(size, -constant)


def total(parts: Iterable[tuple[Size, int]]) -> Size:
    """Return the sum of sizes, each times an integer."""
    terms: dict[Size, int] = {}
    constant = 0
    for part, factor in parts:
        own, number = linear(part)
        constant += factor * number
        for term, n in own.items():
            terms[term] = terms.get(term, 0) + factor * n
    return built(terms, constant)


def without(terms: Mapping[Size, int], constant: int, term: Size) -> Size:
    """Return a linear combination without one of its terms."""
    return built({other: factor for other, factor in terms.items() if other != term}, constant)


def factored(size: Size) -> tuple[Size, int]:
    """Return the term and the factor of a size that has one term; any other size with factor 1."""
    terms, constant = linear(size)
    return next(iter(terms.items())) if len(terms) == 1 and not constant else (size, 1)


def times_in(size: Size, part: Size) -> int:
    """Return how often ``size`` contains ``part``: the quotient of their first terms, or 0 if it is not an integer."""
    own, _ = linear(size)
    for term, factor in linear(part)[0].items():
        times, left = divmod(own.get(term, 0), factor)
        return 0 if left else times
    return 0


def _times(term: Size, factor: int) -> Size:
    return term if factor == 1 else Mul(term, factor)
