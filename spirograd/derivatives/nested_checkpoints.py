"""Gradients whose adstacks exceed the memory that there is for them: loops get nested checkpoints, decided at launch.

The plain derivative comes first. If its adstacks do not fit, or leave memory for a small part of the thread slots only, the derivative is
made again with nested checkpoints, which takes less memory and more time. It serves as long as the plain one would not fit again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from spirograd.base.arguments import Arguments
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.nesting import Nesting
from spirograd.derivatives.nestings import nestings
from spirograd.derivatives.plan import DerivativePlan
from spirograd.runtime.adstack_heap import AdstacksTooLarge

T = TypeVar("T")

# The plain derivative is tried again once its adstacks would take less than this part of what did not fit.
_SMALLER = 0.5


# Nestings to try, in this order. Arguments as of `nestings`.
Choose = Callable[[Mapping[int, int], Mapping[int, float], float], Iterator[Nesting]]


class Variant(Protocol):
    """A derivative that can be launched: plain, or with nested checkpoints."""

    @property
    def plan(self) -> DerivativePlan: ...


W = TypeVar("W", bound=Variant)


class NestedCheckpoints(Generic[W]):
    """The variants of a derivative: ``plain``, and with nested checkpoints, which ``make`` makes (None: not of this derivative), for
    those that ``choose`` chooses. ``current``: for the next launch; ``last``: of the last one."""

    def __init__(self, plain: W, make: Callable[[Nesting], W] | None, choose: Choose | None = None) -> None:
        self.plain = self.current = self.last = plain
        self._make = make
        self._choose = choose
        self._nested: dict[Nesting, W] = {}
        self._costs: dict[int, float] = {}  # bytes of an iteration, by number of the loop
        for loop in plain.plan.loops:
            self._costs[loop.number] = self._costs.get(loop.number, 0) + loop.nbytes / loop.every
        self._too_many = 0.0  # bytes of a thread slot of the plain derivative that did not fit
        self._refusal: SpirogradUnsupportedError | None = None
        plain.plan.ample = make is not None

    def launch(self, arguments: Arguments, number: int | None) -> W:
        """Launch what fits, and return it. ``number``: see `DerivativePlan.launch`."""
        variant = self.current
        try:
            variant.plan.launch(arguments, number)
        except AdstacksTooLarge as error:
            variant, _ = self.fitting(error, lambda plan: plan.launch(arguments, number))
        if variant is not self.plain or variant is not self.last:
            self._launched(variant)
        return variant

    def fitting(self, error: AdstacksTooLarge, launch: Callable[[DerivativePlan], T]) -> tuple[W, T]:
        """Launch a plan that fits in place of the current one, which has raised ``error``; with as few levels as possible.

        Raises AdstacksTooLarge if none fits.
        """
        failed = self.current
        if self._make is None or self._refusal is not None:
            raise error
        share = error.share
        if failed is self.plain:
            self._too_many = self._nbytes(failed)
        else:  # the error is about fewer bytes than those of the plain derivative
            share *= self._held(failed) / max(self._nbytes(failed), 1)
        variants = [self.plain]
        for nesting in (self._choose or nestings)(self._iterations(failed), self._costs, share):
            try:
                variants.append(self._planned(self._make, nesting))
                return self._launched_by(variants[-1], launch, True)
            except AdstacksTooLarge as larger:
                error = larger
            except SpirogradUnsupportedError as refusal:
                self._refusal = refusal
                break
        for variant in dict.fromkeys((variants[0], variants[-1])):  # few thread slots are better than none
            try:
                return self._launched_by(variant, launch, False)
            except AdstacksTooLarge as larger:
                error = larger
        self.current = self.plain
        if self._refusal is not None:
            raise AdstacksTooLarge(f"{error.message}\n{self._refusal}", error.adstack, error.share) from None
        raise error

    def _launched_by(self, variant: W, launch: Callable[[DerivativePlan], T], ample: bool) -> tuple[W, T]:
        variant.plan.ample = ample
        result = launch(variant.plan)
        self.current = variant
        return variant, result

    def _launched(self, planned: W) -> None:
        """Note that a launch is done. After one whose plain adstacks would be small the next one is plain."""
        self.last = planned
        if planned is not self.plain and 0 < self._nbytes(planned) < _SMALLER * self._too_many:
            self.current = self.plain

    def _planned(self, make: Callable[[Nesting], W], nesting: Nesting) -> W:
        planned = self._nested.get(nesting)
        if planned is None:
            planned = self._nested[nesting] = make(nesting)
        return planned

    def _iterations(self, planned: W) -> dict[int, int]:
        """Return the iterations of the loops with adstacks at the last launch, by number, as far as they are known."""
        iterations: dict[int, int] = {}
        entries: Sequence[int] = planned.plan.capacities
        for loop in planned.plan.loops:
            if not loop.inner and loop.capacity < len(entries):
                iterations[loop.number] = max(iterations.get(loop.number, 0), entries[loop.capacity] * loop.every)
        return iterations

    def _nbytes(self, planned: W) -> float:
        """Return the bytes of a thread slot of the plain derivative for the iterations of the last launch of ``planned``."""
        return sum(n * self._costs.get(number, 0) for number, n in self._iterations(planned).items())

    def _held(self, planned: W) -> float:
        """Return the bytes of a thread slot of ``planned`` at its last launch."""
        entries = planned.plan.capacities
        return sum(loop.nbytes * entries[loop.capacity] for loop in planned.plan.loops if entries)
