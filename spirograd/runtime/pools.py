"""Memory for the numbered cells of sparse fields, whose number may grow while a program runs.

A pool has two allocations: the ledger, whose head has the counters, and the cells. The layout of both does not depend on the number of
cells, so that a pool grows by copies into larger allocations.

Devices whose memory costs nothing before it is touched (`Device.reserve`) have memory for all cells from the beginning. On other devices
the number of cells in use is read back after each launch that may activate some, without waiting. Before the next such launch the pool
grows if more than half of the cells are in use.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from spirograd.base import validity
from spirograd.base.device import Readback, ReservesMemory
from spirograd.base.errors import OutOfDeviceMemory
from spirograd.base.records import dataclass
from spirograd.runtime import graph_recording
from spirograd.runtime.allocations import Allocation, Memory

_WORD = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class PoolExtent:
    """The bytes of an allocation of cells: ``head``, and ``cell`` for each."""

    head: int
    cell: int

    def of(self, cells: int) -> int:
        """Return the bytes for ``cells`` cells."""
        return self.head + self.cell * cells


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The allocations and limits of a pool.

    ``extents``: of the ledger and of the cells. ``reserved``: the first cells, which store nothing. ``first``, ``most``: the number of
    cells at first and at most, including these. ``used``, ``capacity``: the places in the ledger of the number of cells in use, and of all
    cells. ``what``: the node; ``call``: the user's call that makes it, with "{}" for a number.
    """

    extents: tuple[PoolExtent, ...]
    reserved: int
    first: int
    most: int
    used: int
    capacity: int
    what: str
    call: str


class Pool:
    """A pool, see the docstring of the module. ``capacity``: the number of cells that memory is allocated for."""

    def __init__(self, memory: Memory, plan: PoolPlan) -> None:
        self.plan = plan
        self._memory = memory
        self._most = plan.most
        self._asked: Readback | None = None  # The readback of the number of cells in use.
        reserved = self._reserved(memory, plan)
        self._synchronous = reserved is not None  # Launches are complete when they return.
        self.capacity = plan.first if reserved is None else plan.most
        self.allocations: Sequence[Allocation] = reserved or [memory.allocate(extent.of(self.capacity)) for extent in plan.extents]
        for allocation in self.allocations:
            allocation.pool = self
        self._write(plan.capacity, self.capacity)

    @staticmethod
    def _reserved(memory: Memory, plan: PoolPlan) -> list[Allocation] | None:
        """Return allocations for all cells, if the device can reserve them at no cost."""
        if not isinstance(memory.device, ReservesMemory):
            return None
        buffers = [memory.device.reserve(extent.of(plan.most)) for extent in plan.extents]
        if any(buffer is None for buffer in buffers):
            return None
        return [Allocation(memory.device, b, e.of(plan.most)) for b, e in zip(buffers, plan.extents) if b is not None]

    def given(self) -> int:
        """Return the number of cells that kernels have requested so far. Waits for them."""
        return int(self.allocations[0].unpack(_WORD, self.plan.used)[0])

    def extent(self) -> int:
        """Return the number of cells that may store values. Does not wait."""
        if not self._synchronous:
            return self.capacity
        return min(self.plan.reserved + self.given(), self.capacity)

    # --- growth ----------------------------------------------------------------------------------------------------------

    @property
    def grows(self) -> bool:
        """Whether the number of cells may grow."""
        return self.capacity < self._most

    def before_launch(self) -> None:
        """Grow if more than half of the cells were in use after an earlier launch that activated cells."""
        raw = None if self._asked is None else self._asked.take()
        if raw is not None:
            self._asked = None
            (given,) = _WORD.unpack(raw)
            if 2 * given > self.capacity - self.plan.reserved:
                self.grow(2 * given)

    def after_launch(self) -> None:
        """Begin to read the number of cells in use, after a launch of a kernel that may activate cells."""
        if self.grows and self._asked is None and graph_recording.active() is None:
            self._asked = self.allocations[0].read_async(self.plan.used, _WORD.size)

    def grow(self, cells: int) -> bool:
        """Allocate memory for ``cells`` in use, up to the limit; stored values stay. Return whether it suffices."""
        if graph_recording.active() is not None:
            return False
        wanted = self.plan.reserved + cells
        count = min(max(wanted, self.capacity), self._most)
        if count > self.capacity:
            try:
                new = [self._memory.allocate(extent.of(count)) for extent in self.plan.extents]
            except OutOfDeviceMemory:
                self._most = self.capacity
            else:
                for allocation, larger in zip(self.allocations, new):
                    larger.copy_from(allocation, allocation.nbytes)
                    allocation.become(larger)
                self.capacity = count
                self._write(self.plan.capacity, count)
                self._asked = None
                validity.renew()
        return self.capacity >= wanted

    def shortage(self) -> str:
        """Return, after launches, "" if there were enough cells, else the number needed and how to reserve them. The pool may have grown
        then."""
        if self.allocations[0].freed:
            return ""
        had, needed = self.capacity - self.plan.reserved, self.given()
        if needed <= had:
            return ""
        self._write(self.plan.used, had)  # Cells beyond do not exist.
        numbers = f"{self.plan.what} needed memory for {needed} cells and had it for {had}"
        if self.grows and self.grow(needed + needed // 4):
            return f"{numbers}; it has it for {self.capacity - self.plan.reserved} now: run again what was lost"
        return f"{numbers}; reserve more of them with `{self.plan.call.format(needed)}`"

    def _write(self, offset: int, number: int) -> None:
        self.allocations[0].write(offset, memoryview(_WORD.pack(number)))
