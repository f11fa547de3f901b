"""Derivatives ready to launch. A subclass of `DerivativePlan` says how their adstacks get their sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from spirograd.base.arguments import Arguments, PreparedLaunch
from spirograd.base.artifact import AdstackLoop
from spirograd.base.device import CallsNatively
from spirograd.base.errors import render
from spirograd.base.records import dataclass
from spirograd.base.validity import Record
from spirograd.runtime.adstack_heap import AdstacksTooLarge, HeapPlan
from spirograd.runtime.launcher import LaunchPlan


@dataclass(frozen=True, slots=True)
class HeapForecast:
    """How a launch would use the heap of adstacks. ``entries``: of the adstacks of each capacity, by number; ``sources``: where their
    numbers came from ("known" to the host, "counted", "reused"). ``heap``: the bytes that it has by now; ``budget``: that it may have."""

    heap_plan: HeapPlan
    entries: tuple[int, ...]
    sources: tuple[str, ...]
    heap: int
    budget: int


@dataclass(frozen=True, slots=True)
class GrowthLimit:
    """The limit of adstacks that grow as they are written (the interpreter's). ``budget``: bytes; ``adstacks``: the name of each, the bytes
    of an entry, the number of its capacity."""

    budget: int
    adstacks: tuple[tuple[str, int, int], ...]

    def error(self, kernel: str, entries: Sequence[int]) -> AdstacksTooLarge | None:
        """Return the error for adstacks with ``entries``, by number of the capacity, if they exceed the limit."""
        each = [(entry * entries[number], name) for name, entry, number in self.adstacks]
        nbytes = sum(size for size, _ in each)
        if nbytes <= self.budget:
            return None
        largest, name = max(each)
        message = f"the adstacks of {kernel} need {nbytes:,} bytes, and may have {self.budget:,}: {largest:,} alone for one of this loop"
        return AdstacksTooLarge(message, name, self.budget / nbytes)


def launched(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan whose code ran last: ``plan``, or its sibling."""
    return plan.launched or plan


class DerivativePlan(ABC):
    """A derivative ready to launch. ``main``: its launch plan; ``loops``: the loops with adstacks. ``capacities``: of the adstacks at the
    last launch, by number, as far as the host knows. ``ample``: see `AdstackSizes`."""

    def __init__(self, main: LaunchPlan, loops: Sequence[AdstackLoop]) -> None:
        self.compiled = main.compiled
        self.main = main
        self.loops = loops
        self.capacities: tuple[int, ...] = ()
        self.ample = False

    @property
    def adstack_bytes(self) -> int:
        """The memory that the adstacks of the last launch took, in bytes. Waits for it where only the device knows."""
        return launched(self.main).adstack_bytes

    def launch(self, arguments: Arguments, drawn: int | None = None) -> None:
        """Launch it. Arguments as of `LaunchPlan.launch`. Waits if iterations have to be counted on the host, else once."""
        self.main.sibling_for(arguments)  # compiled here if it is needed, not while locks are held
        try:
            self._launch(arguments, drawn)
        except AdstacksTooLarge as error:
            raise self._located(error) from None

    def prepared(self, native: CallsNatively, arguments: Arguments, record: Record) -> PreparedLaunch:
        """Return `LaunchPlan.prepared`, after a launch: for others whose adstacks have the sizes of that one."""
        return self.main.prepared(native, arguments, record)

    def plan(self, arguments: Arguments, drawn: int | None = None) -> HeapForecast | None:
        """Return what a launch with these arguments would need for its adstacks, without launching it; None if it has none. Waits if
        iterations have to be counted. Raises AdstacksTooLarge if there is no room for the adstacks."""
        self.main.sibling_for(arguments)
        try:
            return self._forecast(arguments, drawn)
        except AdstacksTooLarge as error:
            raise self._located(error) from None

    def _located(self, error: AdstacksTooLarge) -> AdstacksTooLarge:
        """Return ``error`` with the line of the loop."""
        hint = "run fewer iterations of it, or of the loop around it, in one launch"
        loc = next((loop.loc for loop in self.loops if loop.adstack == error.adstack), None)
        return AdstacksTooLarge(render(error.message, loc, hint), error.adstack, error.share)

    @abstractmethod
    def _launch(self, arguments: Arguments, drawn: int | None) -> None: ...

    @abstractmethod
    def _forecast(self, arguments: Arguments, drawn: int | None) -> HeapForecast | None: ...


class UnplannedAdstacks(DerivativePlan):
    """No memory is planned: the kernel has no adstacks, or they grow as they are written, within ``limit``. ``count``: computes their
    entries, where there is a limit."""

    def __init__(
        self,
        main: LaunchPlan,
        loops: Sequence[AdstackLoop],
        limit: GrowthLimit | None = None,
        count: Callable[[Arguments, int | None], tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__(main, loops)
        self._limit, self._count = limit, count

    def _launch(self, arguments: Arguments, drawn: int | None) -> None:
        self._forecast(arguments, drawn)
        self.main.launch(arguments, drawn=drawn)

    def _forecast(self, arguments: Arguments, drawn: int | None) -> None:
        """Raise AdstacksTooLarge if the adstacks would grow beyond the limit."""
        if self._limit is None or self._count is None:
            return
        self.capacities = self._count(arguments, drawn)
        error = self._limit.error(self.compiled.name, self.capacities)
        if error is not None:
            raise error
