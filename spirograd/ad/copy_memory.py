"""Device memory for the copies that a tape with checkpoints makes: at no time more than its limit.

Freed memory serves the next copy of the same size. Devices work in the order of the calls, so that needs no wait; memory that asynchronous
devices give back only after pending work does not add up beside the copies.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakMethod

from spirograd.base.loc import Loc
from spirograd.base.protocols import Allocation
from spirograd.base.records import dataclass
from spirograd.lang import context


@dataclass(frozen=True, slots=True)
class Purpose:
    """What memory is for: ``what`` in an error, which points at ``loc``, and what to do if there is too little."""

    what: str
    loc: Loc | None = None
    remedy: str = ""


class CopyMemory:
    """Gives out at most ``limit`` bytes at a time (None: any number). ``used``: bytes given out; ``peak``: bytes that it
    had from the device at most at a time.

    ``free_up(nbytes, purpose)``: a method, which is called if the limit leaves fewer bytes than that, and gives copies back, or raises.
    """

    def __init__(self, limit: float | None, free_up: Callable[[int, Purpose], None]) -> None:
        self.limit = limit
        self._free_up = WeakMethod(free_up)  # of the tape, which ends with its last reference, not with a cycle
        self.used = self.peak = 0
        self._free: dict[int, list[Allocation]] = {}
        self._free_nbytes = 0

    def has_capacity(self, nbytes: int) -> bool:
        """Return whether the limit leaves ``nbytes`` bytes."""
        return self.limit is None or self.used + nbytes <= self.limit

    def allocate(self, nbytes: int, purpose: Purpose) -> Allocation:
        """Return an allocation with undefined contents, for `give`. Raises what ``free_up`` raises."""
        if not self.has_capacity(nbytes):
            free_up = self._free_up()
            assert free_up is not None
            free_up(nbytes, purpose)
        size = max(nbytes, 1)
        free = self._free.get(size)
        if free:
            allocation = free.pop()
            self._free_nbytes -= size
        else:
            self._trim(size)
            allocation = context.session().memory.allocate(size, zeroed=False)
        self.used += size
        self.peak = max(self.peak, self.used + self._free_nbytes)
        return allocation

    def give(self, allocation: Allocation) -> None:
        """Give an allocation back. Work under way may still use it."""
        size = allocation.nbytes
        self.used -= size
        self._free.setdefault(size, []).append(allocation)
        self._free_nbytes += size

    def _trim(self, nbytes: int) -> None:
        """Free what was given back until the limit leaves ``nbytes``: the largest first. Waits for the work that uses it."""
        if self.limit is None or self.used + self._free_nbytes + nbytes <= self.limit:
            return
        while self._free_nbytes and self.used + self._free_nbytes + nbytes > self.limit:
            size = max(size for size, free in self._free.items() if free)
            self._free[size].pop()
            self._free_nbytes -= size
        context.session().device.synchronize()

    def clear(self) -> None:
        """Free what was given back."""
        self._free.clear()
        self._free_nbytes = 0
