"""Trials: which candidate the next launch measures, and which candidate the times of launches choose.

Times of one candidate differ: other work of the machine and the caches disturb them, hardly ever to shorter times. So candidates take
turns, in an order that is reversed in each round, since programs may launch a kernel in turn with different data. The shortest times
decide. More rounds follow if medians, or one half of the rounds, say something else, or if times differ much.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from spirograd.base.device import Measurement
from spirograd.runtime.choices import Choice, Counts

E = TypeVar("E")  # executables

# Times in nanoseconds. Kernels that take less are not tuned: calls cost as much, and differ as much.
SHORTEST = 20_000
# The measured launches after which a kernel that takes less than that is left as it is. Later, before there are candidates, one launch of
# EVERY is measured.
FEW, EVERY = 6, 16
# The most launches of a candidate whose times have not arrived.
AHEAD = 2
# How often each candidate runs, if launches take LONG or more, and otherwise; and how many times as often at most, if that does not decide.
ROUNDS, MANY_ROUNDS = 4, 10
LONG = 10_000_000
LONGEST_EXTENSION = 4
# The part of the time of the cost model's code that an alternative must need at most: of the shortest time, while its median is no longer.
BETTER = 0.95
# The ratio of the median to the shortest time above which times differ much.
SPREAD = 1.3
# Candidates that take this many times as long as the best one run no more, by the number of rounds so far. After one round, other work of
# the machine may be the cause.
DROPPED = {2: 4.0, 3: 1.5}


def median(times: Sequence[int]) -> float:
    """Return the median. The import of `statistics` would take longer than that of the rest of the tuner."""
    ordered, middle = sorted(times), len(times) // 2
    return ordered[middle] if len(times) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Trial(Generic[E]):
    """The launches of one class of extents.

    ``counts``: the numbers of iterations of the first launch. ``parts``: for each part of the kernel, its alternatives. ``current``: the
    executable of launches that measure nothing. ``chosen``: the executable that runs from now on; None while that is open. ``choice``: the
    choice by measurement, or that of an earlier process, which may be measured again. ``names``: of its candidates, if it holds.
    ``wanted``: the alternatives that must be compiled. ``left``: candidates that may still be chosen, once they are compiled. ``issued``,
    ``runs``: for each candidate the number of its launches, and the times by part of those that have arrived. ``times``: the shortest of
    these. ``pending``: measurements that have not arrived, with the name of the candidate. ``begun``: how often `begin` was called.
    ``rounds``: how often each candidate has run at least; ``extension``: how many times as many rounds as usual decide.
    """

    __slots__ = (
        "begun", "choice", "chosen", "counts", "current", "extension", "issued", "launches", "left", "names", "parts", "pending", "rounds",
        "runs", "times", "wanted",
    )  # fmt: skip

    def __init__(self, counts: Counts, parts: Sequence[Sequence[str]], base: E) -> None:
        self.counts = tuple(counts)
        self.parts = parts
        self.current = base
        self.chosen: E | None = None
        self.names: tuple[str, ...] | None = None
        self.choice: Choice | None = None
        self.wanted = sorted({name for part in parts for name in part})
        self.left: list[str] = []
        self.issued: defaultdict[str, int] = defaultdict(int)
        self.runs: defaultdict[str, list[Sequence[int]]] = defaultdict(list)
        self.times: dict[str, tuple[int, ...]] = {}  # The shortest time of each candidate, by part.
        self.pending: deque[tuple[str, Measurement]] = deque()
        self.launches = 0
        self.begun = self.rounds = 0
        self.extension = 1

    # --- before there are candidates ---

    def is_short(self) -> bool:
        """Return whether the kernel takes too little time for a choice."""
        return len(self.runs[""]) >= FEW and sum(self.times[""]) < SHORTEST

    def spent(self) -> int:
        """Return the time that all launches have taken, by the shortest of them; 0 if that is unknown."""
        return self.launches * sum(self.times[""]) if self.times else 0

    # --- candidates ---

    def begin(self, names: Sequence[str]) -> None:
        """Begin to measure the code of the cost model and the candidates ``names``."""
        self.begun += 1
        self.left = ["", *names]
        self.extension = 1
        self.rounds = 0
        self.times.clear()
        self.runs.clear()
        self.issued.clear()
        self.pending.clear()

    def next(self) -> str | None:
        """Return the name of the candidate that the next launch measures; None if it measures nothing."""
        if self.names is not None:
            return None
        if not self.left:
            measured = self.issued[""] < FEW or self.launches % EVERY == 0
            return "" if measured and len(self.pending) < AHEAD else None
        fewest = min(map(self.issued.__getitem__, self.left))
        in_turn = self.left if fewest % 2 == 0 else reversed(self.left)
        name = next(name for name in in_turn if self.issued[name] == fewest)
        return name if fewest - len(self.runs[name]) < AHEAD else None

    def timed(self, name: str, times: Sequence[int]) -> None:
        """Note the times of a launch, for each part."""
        self.runs[name].append(times)
        known = self.times.get(name, times)
        self.times[name] = tuple(map(min, times, known))

    def drop(self) -> bool:
        """Drop candidates that are much slower than others. Return whether the times so far decide."""
        rounds = min([len(self.runs[name]) for name in self.left])
        if rounds == self.rounds:  # Threads may measure the next round meanwhile.
            return False
        self.rounds = rounds
        totals = {name: sum(self.times[name]) for name in self.left}
        worst = DROPPED.get(rounds, float("inf")) * min(totals.values())
        self.left = [name for name in self.left if totals[name] <= worst]
        if len(self.left) == 1:
            return True
        usual = ROUNDS if min(totals.values()) >= LONG else MANY_ROUNDS
        if rounds < usual * self.extension:
            return False
        if self.extension >= LONGEST_EXTENSION or all(map(self._is_decided, range(len(self.parts)))):
            return True
        self.extension *= 2
        return False

    def decide(self, now: float) -> Choice:
        """Choose for each part the fastest candidate that is left; the code of the cost model unless another one is faster by more than
        chance. ``now``: the time in seconds."""
        parts, before = range(len(self.parts)), self.choice
        names = tuple([self._best(part) if self._is_faster(part, self._best(part)) else "" for part in parts])
        same = before is not None and before.names == names
        confirmed = before.confirmed + 1 if before is not None and same else 0
        made = round(now) if same or all(map(self._is_steady, parts)) else 0
        self.names, self.choice = names, Choice(self.counts, names, tuple(sorted(self.times.items())), made, confirmed)
        return self.choice

    def _best(self, part: int) -> str:
        return min(["", *self._rivals(part)], key=lambda name: self.times[name][part])

    def _is_faster(self, part: int, name: str) -> bool:
        shorter = self.times[name][part] <= BETTER * self.times[""][part]
        return shorter and self._median(part, name) <= self._median(part, "")

    def _is_decided(self, part: int) -> bool:
        """Return whether shortest times, medians, and both halves of the rounds agree on the best candidate, whose times differ little."""
        best = min(self._rivals(part), key=lambda name: self.times[name][part], default="")
        model, other = ([times[part] for times in self.runs[name]] for name in ("", best))
        half = min(len(model), len(other)) // 2
        ways = ((min, model, other), (median, model, other), (min, model[:half], other[:half]), (min, model[half:], other[half:]))
        verdicts = {of(others) <= BETTER * of(models) for of, models, others in ways}
        return len(verdicts) == 1 and self._is_steady(part)

    def _is_steady(self, part: int) -> bool:
        """Return whether times of the best candidate differ little."""
        best = self._best(part)
        return self._median(part, best) <= SPREAD * self.times[best][part]

    def _rivals(self, part: int) -> list[str]:
        return [name for name in self.left if name in self.parts[part]]

    def _median(self, part: int, name: str) -> float:
        return median([times[part] for times in self.runs[name]])
