"""Memory for the numbered cells of sparse fields, of which there may be more while a program runs.

A pool has two allocations: the ledger, whose head has the counters, and the cells. The places of both do not depend on how many cells there
are, so that a pool grows by copies into larger allocations. Devices whose memory costs nothing before it is touched (`Device.reserve`) have
memory for all cells from the beginning. On others the number of cells in use is read back after each launch that may activate some, without
waiting, and before the next such launch the pool grows if more than half of the cells are in use.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from spirograd.base import validity
from spirograd.base.device import ReservesMemory
from spirograd.base.errors import OutOfDeviceMemory
from spirograd.base.records import dataclass
from spirograd.runtime import graph_recording
from spirograd.runtime.allocations import Allocation, Memory

_WORD = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes of an allocation of cells: ``head``, and ``cell`` for each."""

    head: int
    cell: int

    def of(self, cells: int) -> int:
        """For so many cells."""
        return self.head + self.cell * cells


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What a pool is made of. ``extents``: of the ledger and of the cells. ``reserved``: cells that nothing is stored in, the first ones.
    ``first``, ``most``: how many cells there are at first and at most, those included. ``used``, ``capacity``: where in the ledger it says
    how many cells were given, and how many there are. ``what``: the node; ``call``: how the user makes it, with "{}" for a number."""

    extents: tuple[Extent, ...]
    reserved: int
    first: int
    most: int
    used: int
    capacity: int
    what: str
    call: str


class Pool:
    """See the head of this file. ``capacity``: cells that there is memory for."""

    def __init__(self, memory: Memory, plan: PoolPlan) -> None:
        self.plan = plan
        self._memory = memory
        self._most = plan.most
        self._asked: Any = None  # the readback of how many cells are in use
        found = self._reserved(memory, plan)
        self._synchronous = found is not None  # kernels are done when their launch returns
        self.capacity = plan.first if found is None else plan.most
        self.allocations: Sequence[Allocation] = found or [memory.allocate(extent.of(self.capacity)) for extent in plan.extents]
        for allocation in self.allocations:
            allocation.pool = self
        self._write(plan.capacity, self.capacity)

    @staticmethod
    def _reserved(memory: Memory, plan: PoolPlan) -> list[Allocation] | None:
        """Allocations for all cells, if the device has them for nothing."""
        if not isinstance(memory.device, ReservesMemory):
            return None
        buffers = [memory.device.reserve(extent.of(plan.most)) for extent in plan.extents]
        if any(buffer is None for buffer in buffers):
            return None
        return [Allocation(memory.device, b, e.of(plan.most)) for b, e in zip(buffers, plan.extents) if b is not None]

    def given(self) -> int:
        """How many cells kernels have asked for so far. Waits for them."""
        return int(self.allocations[0].unpack(_WORD, self.plan.used)[0])

    def extent(self) -> int:
        """How many cells may hold anything: waits for nothing."""
        if not self._synchronous:
            return self.capacity
        return min(self.plan.reserved + self.given(), self.capacity)

    # --- growth ----------------------------------------------------------------------------------------------------------

    @property
    def grows(self) -> bool:
        """Whether there may be more cells than there are."""
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
        """A kernel that may activate cells was launched."""
        if self.grows and self._asked is None and graph_recording.active() is None:
            self._asked = self.allocations[0].read_async(self.plan.used, _WORD.size)

    def grow(self, cells: int) -> bool:
        """Have memory for ``cells`` in use, or for as many as there may be; whether there is for so many. What is stored stays."""
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
        """After launches: "" if there were cells enough, else how many they needed and how to have them. There may be more then."""
        if self.allocations[0].freed:
            return ""
        had, needed = self.capacity - self.plan.reserved, self.given()
        if needed <= had:
            return ""
        self._write(self.plan.used, had)  # those beyond are not there
        numbers = f"{self.plan.what} needed memory for {needed} cells and had it for {had}"
        if self.grows and self.grow(needed + needed // 4):
            return f"{numbers}; it has it for {self.capacity - self.plan.reserved} now: run again what was lost"
        return f"{numbers}; reserve more of them with `{self.plan.call.format(needed)}`"

    def _write(self, offset: int, number: int) -> None:
        self.allocations[0].write(offset, memoryview(_WORD.pack(number)))
