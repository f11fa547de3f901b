"""Gradients whose tapes exceed the memory that there is for them: loops get nested checkpoints, decided at launch.

The plain derivative comes first. If its tapes do not fit, or leave room for a small part of the thread slots only, the derivative is made
again with nested checkpoints, which takes less memory and more time. It serves as long as the plain one would not fit again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from spirograd.autodiff.derivative import Derivative
from spirograd.autodiff.nesting import Nesting, nestings
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.records import dataclass
from spirograd.gradients.plan import DerivativePlan
from spirograd.runtime.tape_heap import TapesTooLarge

T = TypeVar("T")

# The plain derivative is tried again once its tapes would take less than this part of what did not fit.
_SMALLER = 0.5


@dataclass(slots=True, eq=False)
class Planned:
    """A derivative and how to launch it."""

    derivative: Derivative
    plan: DerivativePlan


class NestedCheckpoints:
    """The ways to launch a derivative: ``plain``, and with nested checkpoints, which ``make`` makes (None: not of this derivative).
    ``current``: for the next launch; ``last``: that of the last one."""

    def __init__(self, plain: Planned, make: Callable[[Nesting], Planned] | None) -> None:
        self.plain = self.current = self.last = plain
        self._make = make
        self._made: dict[Nesting, Planned] = {}
        self._costs: dict[int, float] = {}  # bytes of an iteration, by number of the loop
        for record in plain.derivative.records:
            self._costs[record.number] = self._costs.get(record.number, 0) + record.bytes / record.every
        self._too_many = 0.0  # bytes of a thread slot of the plain derivative that did not fit
        self._refusal: SpirogradUnsupportedError | None = None
        plain.plan.ample = make is not None

    def fitting(self, error: TapesTooLarge, launch: Callable[[DerivativePlan], T]) -> tuple[Planned, T]:
        """Launch a plan that fits in place of the current one, which has raised ``error``; with as few levels as possible.

        Raises TapesTooLarge if none fits.
        """
        failed = self.current
        if self._make is None or self._refusal is not None:
            raise error
        share = error.share
        if failed is self.plain:
            self._too_many = self._nbytes(failed)
        else:  # the error is about fewer bytes than those of the plain derivative
            share *= self._held(failed) / max(self._nbytes(failed), 1)
        ways = [self.plain]
        for nesting in nestings(self._iterations(failed), self._costs, share):
            try:
                ways.append(self._planned(self._make, nesting))
                return self._launched_by(ways[-1], launch, True)
            except TapesTooLarge as larger:
                error = larger
            except SpirogradUnsupportedError as refusal:
                self._refusal = refusal
                break
        for way in dict.fromkeys((ways[0], ways[-1])):  # few thread slots are better than none
            try:
                return self._launched_by(way, launch, False)
            except TapesTooLarge as larger:
                error = larger
        self.current = self.plain
        if self._refusal is not None:
            raise TapesTooLarge(f"{error.message}\n{self._refusal}", error.tape, error.share) from None
        raise error

    def _launched_by(self, way: Planned, launch: Callable[[DerivativePlan], T], ample: bool) -> tuple[Planned, T]:
        way.plan.ample = ample
        result = launch(way.plan)
        self.current = way
        return way, result

    def launched(self, planned: Planned) -> None:
        """Note that a launch is done. After one whose plain tapes would be small the next one is plain."""
        self.last = planned
        if planned is not self.plain and 0 < self._nbytes(planned) < _SMALLER * self._too_many:
            self.current = self.plain

    def _planned(self, make: Callable[[Nesting], Planned], nesting: Nesting) -> Planned:
        planned = self._made.get(nesting)
        if planned is None:
            planned = self._made[nesting] = make(nesting)
        return planned

    def _iterations(self, planned: Planned) -> dict[int, int]:
        """The iterations of the loops with tapes at the last launch, by number, as far as they are known."""
        found: dict[int, int] = {}
        entries: Sequence[int] = planned.plan.capacities
        for record in planned.derivative.records:
            if record.most is None and record.tape.capacity < len(entries):
                found[record.number] = max(found.get(record.number, 0), entries[record.tape.capacity] * record.every)
        return found

    def _nbytes(self, planned: Planned) -> float:
        """What a thread slot of the plain derivative takes for the iterations of the last launch of ``planned``."""
        return sum(n * self._costs.get(number, 0) for number, n in self._iterations(planned).items())

    def _held(self, planned: Planned) -> float:
        """What a thread slot of ``planned`` took at its last launch."""
        entries = planned.plan.capacities
        return sum(record.bytes * entries[record.tape.capacity] for record in planned.derivative.records if entries)
