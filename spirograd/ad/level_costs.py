"""Which levels of memory a tape with checkpoints uses: each as soon as its copies take less time than the steps that they save.

The time of a schedule is that of the steps which run again, and of what is written to and read from the levels: P. Stumm and A. Walther,
"MultiStage approaches for optimal offline checkpointing", SIAM Journal on Scientific Computing 31 (3), 2009. The number of steps is that so
far, so that a level that is not worth its time now may be later. Both times are measured: that of a step over the steps since the levels in
use were full for the first time, that of a copy by writing and reading one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import comb

from spirograd.ad.memory_report import Cost
from spirograd.lang import context

# A level that is not worth its time is looked at again after so many times as many steps.
_AGAIN = 1.25
_LEVELS = 3  # of the device, of the host, of files


def fewest_repetitions(steps: int, checkpoints: int) -> int:
    """How many steps the reverse of ``steps`` steps runs again at least, besides each once to record it."""
    if steps < 2:
        return 0
    times = 0  # how often a step is repeated at most
    while comb(checkpoints + times, times) < steps:
        times += 1
    return times * steps - comb(checkpoints + times, times - 1)


class LevelCosts:
    """``used``: how many levels the tape uses, the first ones; ``found``: the costs of the others, by level, as they were looked at."""

    def __init__(self) -> None:
        self.used = 1
        self.found: dict[int, Cost] = {}
        self._prices: dict[int, float] = {}  # seconds for each byte, by level
        self._begin = 0.0  # when the steps from ``_first`` on began
        self._first = 0
        self._aside = 0.0  # seconds since then that were no steps
        self._next = 0  # the number of steps at which to look again; 0 before the first time

    def aside(self, begin: float) -> None:
        """What went on since ``begin`` were no steps."""
        self._aside += time.perf_counter() - begin

    def need(self) -> bool:
        """Use one level more, because there is too little memory else; whether there is one."""
        self.used += 1
        return self.used <= _LEVELS

    def look(self, sizes: Sequence[float], steps: int, fixed: int, each: float, price: Callable[[int], float]) -> bool:
        """Use more levels, of so many bytes, if that is worth its time for so many steps; whether that is so. ``fixed``: bytes that are no
        checkpoints; ``each``: bytes of one; ``price``: seconds for each byte that goes to a level and back."""
        if self.used >= _LEVELS or steps < self._next or each <= 0:
            return False
        context.session().device.synchronize()  # the steps so far are done
        begin = time.perf_counter()
        if not self._next:  # the first steps wait for compilers, and for memory that is new: measure others
            self._begin, self._first, self._aside, self._next = begin, steps, 0.0, 2 * steps
            return False
        self._next = int(_AGAIN * steps) + 1
        step = max(begin - self._begin - self._aside, 1e-9) / max(steps - self._first, 1)
        before = self.used
        for level in range(self.used, _LEVELS):
            if sizes[level]:
                if level not in self._prices:
                    self._prices[level] = price(level)
                self.found[level] = Cost(self._prices[level] * each, step)
                if self._worth(sizes, level, steps, fixed, each):
                    self.used = level + 1
        self.aside(begin)
        return self.used > before

    def _worth(self, sizes: Sequence[float], level: int, steps: int, fixed: int, each: float) -> bool:
        """Whether the steps that the levels up to ``level`` save take longer than the copies."""
        there, then = sum(sizes[: self.used]), sum(sizes[: level + 1])
        few, many = (max(int((nbytes - fixed) / each), 1) for nbytes in (there, then))
        cost = self.found[level]
        moved = steps * (1 - there / then)  # as many checkpoints as steps pass through the levels, from the first to the last
        return cost.step * (fewest_repetitions(steps, few) - fewest_repetitions(steps, many)) > cost.copy * moved
