"""The loops of a gradient that have nested checkpoints, and their levels: the fewest that fit into the memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spirograd.base.nesting import Nesting

# The fewest iterations of the loops of a nest: shorter ones save little memory and cost another level.
_SHORTEST = 4


def nestings(iterations: Mapping[int, int], costs: Mapping[int, float], share: float) -> Iterator[Nesting]:
    """Yield nestings with which the adstacks of loops take no more than ``share`` of their memory without nests, as far as is known before
    they are tried; the one with the fewest levels first. ``iterations``, ``costs``: of loops by number, and the bytes of one iteration.

    Each level adds one more run of the loop, so the loops with the most bytes become nests, and no more than are needed.
    """
    loops = sorted([n for n in iterations if costs.get(n)], key=lambda n: -iterations[n] * costs[n])
    total = sum(iterations[n] * costs[n] for n in loops)
    budget, level, fits = share * total, 1, False
    while loops:
        level += 1
        length = _power_of_two(max(iterations[n] for n in loops), level)
        if length < _SHORTEST:
            return
        chosen, nbytes = Nesting((), length), total
        for n in loops:
            more = Nesting((*chosen.levels, (n, level)), length)
            saved = costs[n] * (iterations[n] - more.entries(n, iterations[n]))
            if nbytes <= budget:
                break
            if saved <= 0:  # it is shorter than the adstacks of a nest would be; later loops may be longer
                continue
            chosen, nbytes = more, nbytes - saved
        fits = fits or nbytes <= budget
        if chosen.levels and (fits or _power_of_two(max(iterations[n] for n in loops), level + 1) < _SHORTEST):
            yield chosen


def fitting(given: Sequence[Nesting], iterations: Mapping[int, int], costs: Mapping[int, float], share: float) -> Iterator[Nesting]:
    """Yield those of the ``given`` nestings that fit, as `nestings` does; each takes less memory than the one before it."""
    budget = share * sum([n * costs.get(number, 0) for number, n in iterations.items()])
    for nesting in given:
        nbytes = sum([nesting.entries(number, n) * costs.get(number, 0) for number, n in iterations.items()])
        if nbytes <= budget or nesting is given[-1]:
            yield nesting


def _power_of_two(n: int, level: int) -> int:
    """Return the least power of two whose power ``level`` is ``n`` or more."""
    bits = max(n - 1, 0).bit_length()
    return 1 << -(-bits // level)
