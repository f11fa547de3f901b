"""Generations of memory: ticks of one clock for all allocations, and the writes of threads that keep track of their own."""

from __future__ import annotations

import bisect
import ctypes
import itertools
import operator
from threading import get_ident

# Taking the next tick is atomic, so two threads can never write the same generation. Compiled launches take ticks as well.
tick = itertools.count(1).__next__
observed: dict[int, list[OwnWrites]] = {}  # By thread.


def write(generations: dict[str, int], part: str) -> None:
    """Give ``part`` the next generation, because the calling thread has written to it."""
    now = generations[part] = tick()
    if observed:
        observe(now)


def observe(now: int) -> None:
    """Record that the calling thread made the write at the tick ``now``."""
    for own in observed.get(get_ident(), ()):
        if now != own.end:
            own.gaps.append((own.end, now))
        own.end = now + 1


class OwnWrites:
    """The writes of the thread that makes this object, until `close`: writes of its launches through Python, and of the host.

    Its ticks are consecutive, except for the ``gaps``, in which other threads took ticks. ``end``: the tick after the last one, at
    ``end_address`` for launches by compiled code.
    """

    __slots__ = ("_begin", "_end", "_thread", "end_address", "gaps")

    def __init__(self) -> None:
        self._begin = tick()
        self._end = ctypes.c_int64(self._begin + 1)
        self.end_address = ctypes.addressof(self._end)
        self.gaps: list[tuple[int, int]] = []
        self._thread = get_ident()
        observed[self._thread] = [*observed.get(self._thread, ()), self]

    @property
    def end(self) -> int:
        return self._end.value

    @end.setter
    def end(self, tick: int) -> None:
        self._end.value = tick

    def is_only(self) -> bool:
        """Return whether nothing else keeps track of the writes of the thread."""
        return observed.get(self._thread) == [self]

    def missed(self, gap: tuple[int, int]) -> None:
        """Record that another thread took ticks, which compiled code has found."""
        self.gaps.append(gap)

    def is_complete(self) -> bool:
        """Return whether no writes of other threads are known."""
        return not self.gaps

    def are_all(self) -> bool:
        """Return whether no other thread has written to any memory meanwhile."""
        observe(tick())
        return not self.gaps

    def include(self, generation: int) -> bool:
        """Return whether memory of this generation was last written by the thread, or earlier."""
        if generation >= self.end:
            return False
        k = bisect.bisect_right(self.gaps, generation, key=_begin_of) - 1
        return k < 0 or generation >= self.gaps[k][1]

    def close(self) -> None:
        """Stop tracking writes."""
        left = [own for own in observed.pop(self._thread, ()) if own is not self]
        if left:
            observed[self._thread] = left


_begin_of = operator.itemgetter(0)
