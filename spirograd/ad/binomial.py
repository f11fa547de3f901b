"""How the reverse of many steps repeats them from few checkpoints.

With ``s`` checkpoints besides the one where they start, ``C(s + 1 + t, t)`` steps can be reversed of which none is repeated more than ``t``
times before it is recorded, and the split of a range of steps that repeats fewest is binomial: A. Griewank and A. Walther, "Algorithm 799:
Revolve", ACM Transactions on Mathematical Software 26 (1), 2000. Where the number of steps is not known before they run, checkpoints are
placed and given up by levels, see `Checkpoints`: Q. Wang, P. Moin and G. Iaccarino, "Minimal repetition dynamic checkpointing algorithm for
unsteady adjoint calculation", SIAM Journal on Scientific Computing 31 (4), 2009.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import comb
from typing import Literal

from spirograd.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """``"repeat"``: run the steps from ``begin`` to ``end``. ``"keep"``: make a checkpoint at ``begin``. ``"reverse"``: record the step
    ``begin``, and reverse it. ``"return"``: go back to the last checkpoint. ``"drop"``: forget the last checkpoint, which is here."""

    kind: Literal["repeat", "keep", "reverse", "return", "drop"]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the checkpoints that the reverse makes: their number ``count``, and the bytes ``nbytes`` of their logs; None: unlimited.

    The log of a checkpoint takes no more than ``state``, and no more than ``step`` for each step from there to the next checkpoint.
    """

    count: int | None = None
    nbytes: float | None = None
    state: int = 0
    step: int = 0

    def log(self, steps: int) -> int:
        """Return an upper bound of the bytes of a log of ``steps`` steps."""
        return min(self.state, steps * self.step)

    def left(self, kept: int, taken: int, steps: int) -> int:
        """Return how many more checkpoints there may be in the last ``steps`` steps: ``kept`` are there, of which all but the last take
        ``taken`` bytes."""
        by_count = steps if self.count is None else self.count - kept
        by_memory = steps
        if self.nbytes is not None and steps * self.step > self.nbytes - taken:
            by_memory = int((self.nbytes - taken) // max(self.state, 1)) - 1
        return max(0, min(by_count, by_memory))


def split(steps: int, checkpoints: int) -> int:
    """Return how many of ``steps`` to repeat before the next checkpoint, of which ``checkpoints`` are left.

    Of two or more steps; the last step is reversed from a checkpoint just before it, or (0 left) from all before it.
    """
    if checkpoints == 0:
        return steps - 1
    times = 1  # how often a step is repeated at most
    while comb(checkpoints + 1 + times, times) < steps:
        times += 1
    least = comb(checkpoints + times - 1, times - 2) if times > 1 else 1
    return max(1, least, steps - comb(checkpoints + times, times))


def schedule(kept: list[int], steps: int, limits: Limits) -> Iterator[Action]:
    """Yield the actions that reverse ``steps`` steps, from checkpoints before the steps ``kept``; memory is as after the last.

    The first checkpoint is before step 0.

    Ends with the checkpoint before step 0, and memory as it was there. There may be more checkpoints than ``limits`` allow: then no more
    are made until some of them are dropped. ``kept`` changes with the actions, and the caller may remove others than the first and the
    last between them.
    """
    end, taken, counted = steps, 0, -1  # bytes of the logs of ``counted`` checkpoints
    yield Action("return", kept[-1], end)
    while end:
        at = kept[-1]
        while end - at > 1:
            if counted != len(kept):
                taken, counted = sum(limits.log(after - before) for before, after in pairwise(kept)), len(kept)
            left = limits.left(len(kept), taken, end - at)
            ahead = split(end - at, left)
            yield Action("repeat", at, at + ahead)
            at += ahead
            if left:
                taken, counted = taken + limits.log(ahead), counted + 1
                kept.append(at)
                yield Action("keep", at, at)
        yield Action("reverse", at, end)
        yield Action("return", kept[-1], end)
        end = at
        while kept[-1] == end and end > 0:
            kept.pop()
            taken, counted = taken - limits.log(end - kept[-1]), counted - 1
            yield Action("drop", end, end)
            yield Action("return", kept[-1], end)


def repetitions(checkpoints: Sequence[int], steps: int, limits: Limits) -> int:
    """Return how many steps the reverse runs again."""
    return sum(action.end - action.begin for action in schedule([*checkpoints], steps, limits) if action.kind in ("repeat", "reverse"))
