"""Generations of memory: ticks of one clock for all allocations, and which of them are writes of a thread that keeps track of its own."""

from __future__ import annotations

import itertools
from threading import get_ident

# Taking the next tick is atomic, so two threads can never write the same generation. Compiled launches take ticks as well.
tick = itertools.count(1).__next__
_observed: dict[int, list[set[int]]] = {}  # thread -> the ticks in each of its `OwnWrites`


def write(generations: dict[str, int], part: str) -> None:
    """Give ``part`` the next generation: the calling thread has written to it."""
    now = generations[part] = tick()
    if _observed:
        observe(now)


def observe(now: int) -> None:
    """Note that the write at the tick ``now`` is one of the calling thread."""
    for ticks in _observed.get(get_ident(), ()):
        ticks.add(now)


class OwnWrites:
    """The writes of the thread that makes this object, from then until `close`: of its launches through Python, and of the host."""

    def __init__(self) -> None:
        self._begin = tick()
        self._ticks: set[int] = set()
        self._thread = get_ident()
        _observed[self._thread] = [*_observed.get(self._thread, ()), self._ticks]

    def includes(self, generation: int) -> bool:
        """Whether memory of this generation was last written by the thread, or before."""
        return generation <= self._begin or generation in self._ticks

    def close(self) -> None:
        """Keep track of no further writes."""
        left = [ticks for ticks in _observed.pop(self._thread, ()) if ticks is not self._ticks]
        if left:
            _observed[self._thread] = left
