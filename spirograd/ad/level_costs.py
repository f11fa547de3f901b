"""The levels of memory that a tape with checkpoints uses: each as soon as its copies take less time than the steps that they save.

The time of a schedule is the time of the steps which run again, and of the writes to and reads from the levels: P. Stumm and A. Walther,
"MultiStage approaches for optimal offline checkpointing", SIAM Journal on Scientific Computing 31 (3), 2009. The number of steps is that so
far, so that a level that is not worth its time now may be later. Both times are measured: that of a step over several periods since the
levels in use were full for the first time, that of a copy by writing and reading some; the least counts, because what else the machine does
only adds to it. Once copies go to a level, the time that the program takes more than its steps is what they cost, beside its work. A level
that is not worth that is left.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from math import comb

from spirograd.ad.memory_report import Cost
from spirograd.lang import context

# A level that costs more time than it saves is measured again when the tape has grown by this factor.
_AGAIN = 1.25
_LEVELS = 3  # of the device, of the host, of files
_PERIODS = 3  # of steps, and copies, of which the least time counts
_MOVED = 4  # checkpoints that have gone to a level before it is judged by them


def fewest_repetitions(steps: int, checkpoints: int) -> int:
    """Return the fewest steps that the reverse of ``steps`` steps runs again, besides each once to record it."""
    if steps < 2:
        return 0
    times = 0  # how often a step is repeated at most
    while comb(checkpoints + times, times) < steps:
        times += 1
    return times * steps - comb(checkpoints + times, times - 1)


class LevelCosts:
    """``used``: how many levels the tape uses, the first ones; ``measured``: the costs of the others, by level, as they were looked at;
    ``left``: levels that were used, and turned out not to be worth their time."""

    def __init__(self) -> None:
        self.used = 1
        self.measured: dict[int, Cost] = {}
        self.left: set[int] = set()
        self._least = 1  # levels that are used because nothing goes without them
        self._prices: dict[int, list[tuple[float, float]]] = {}  # seconds for each byte to a level and back, by level
        self._facts: dict[int, float] = {}  # those to a level as the program had them
        self._steps: deque[float] = deque(maxlen=_PERIODS)  # seconds of a step
        self._begin = 0.0  # when the steps from ``_first`` on began
        self._first = self._moved = 0  # bytes that had left the device by then
        self._aside = 0.0  # seconds since then that were no steps
        self._next = 0  # the number of steps at which to look again; 0 before the first time

    def aside(self, begin: float) -> None:
        """Exclude the time since ``begin``, in which no step ran."""
        self._aside += time.perf_counter() - begin

    def need(self) -> bool:
        """Use one level more, because there is too little memory else; whether there is one."""
        self.used += 1
        self._least = self.used
        return self.used <= _LEVELS

    def look(
        self, sizes: Sequence[float], steps: int, fixed: int, each: float, price: Callable[[int], tuple[float, float]], moved: int = 0
    ) -> bool:
        """Use more levels if that saves time for ``steps`` steps. Return whether more are used. ``fixed``: bytes that are no
        checkpoints; ``each``: bytes of one; ``price``: seconds for each byte that goes to a level, and back; ``moved``: bytes that went to
        levels so far."""
        if self.used >= _LEVELS or steps < self._next or each <= 0:
            return False
        context.session().device.synchronize()  # the steps so far are done
        begin = time.perf_counter()
        if self._next:  # the first steps wait for compilers, and for memory that is new: others are measured
            self._steps.append(max(begin - self._begin - self._aside, 1e-9) / max(steps - self._first, 1))
        before = self.used
        if len(self._steps) < _PERIODS:
            self._next = steps + max(steps // (_PERIODS + len(self._steps)), 1)
        else:
            self._next = int(_AGAIN * steps) + 1
            for level in range(self.used, _LEVELS):
                if sizes[level]:
                    self.measured[level] = Cost(self._price(level, price) * each, min(self._steps))
                    if self._worth(sizes, self.used, level, steps, fixed, each):
                        self.used = level + 1
        self._start(steps, moved)
        return self.used > before

    def _start(self, steps: int, moved: int) -> None:
        """Start to measure."""
        self._begin, self._first, self._moved, self._aside = time.perf_counter(), steps, moved, 0.0

    def _price(self, level: int, price: Callable[[int], tuple[float, float]]) -> float:
        """Return the seconds for each byte that goes to a level and back."""
        prices = self._prices.setdefault(level, [])
        if len(prices) < _PERIODS:
            prices.append(price(level))
        there = self._facts.get(level, min(there for there, _ in prices))
        return there + min(back for _, back in prices)

    def review(self, sizes: Sequence[float], steps: int, fixed: int, each: float, moved: int, arrive: Callable[[], None]) -> bool:
        """Leave the last level in use if its copies cost more time than they save. Return whether it was left. Arguments as of `look`;
        ``arrive`` waits for the copies under way."""
        level = self.used - 1
        if level not in self.measured or self.used <= self._least or moved - self._moved < _MOVED * each or steps < _AGAIN * self._first:
            return False
        arrive()
        context.session().device.synchronize()
        step = min(self._steps)
        extra = time.perf_counter() - self._begin - (steps - self._first) * step  # the copies are part of that, what waits for them, too
        self._facts[level] = max(extra, 0.0) / (moved - self._moved)
        fewer = next(fewer for fewer in range(level, 0, -1) if sizes[fewer - 1])
        there = self._facts[level] + min(back for _, back in self._prices[level])
        self.measured[level] = Cost(there * each, step)
        left = not self._worth(sizes, fewer, level, steps, fixed, each)
        if left:
            self.left.add(level)
            self.used, self._next = fewer, int(_AGAIN * steps) + 1
        self._start(steps, moved)
        return left

    def _worth(self, sizes: Sequence[float], used: int, level: int, steps: int, fixed: int, each: float) -> bool:
        """Return whether the steps that the levels from ``used`` to ``level`` save take longer than the copies."""
        there, then = sum(sizes[:used]), sum(sizes[: level + 1])
        few, many = (max(int((nbytes - fixed) / each), 1) for nbytes in (there, then))
        cost = self.measured[level]
        moved = steps * (1 - there / then)  # as many checkpoints as steps pass through the levels, from the first to the last
        return cost.step * (fewest_repetitions(steps, few) - fewest_repetitions(steps, many)) > cost.copy * moved
