"""Where fetches of the CUDA device land: small cells of pinned memory, each with an event, used again and again."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from spirograd.runtime.devices.cuda.driver import Calls
from spirograd.runtime.devices.cuda.memory import new_event, pinned

_SMALLEST_CELL = 64
_FIRST_BLOCK = 1 << 14
_DOUBLINGS = 6  # of later blocks


@dataclass(slots=True, eq=False)
class Cell:
    """Pinned memory at ``address``, an event that is recorded after the copy into it, and the list that it lies in while nobody uses it."""

    address: int
    event: Any
    home: list[Cell]

    def read(self, nbytes: int) -> bytes:
        """The first ``nbytes``, once they are there."""
        return ctypes.string_at(self.address, nbytes)


class Cells:
    """Cells by size, powers of two. Blocks of them are kept until `close`: as many as were in use at a time.

    The device's lock guards `take`. Giving a cell back is ``cell.home.append(cell)``, which finalizers may do anywhere without the lock.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._free: dict[int, list[Cell]] = {}
        self._events: list[Any] = []
        self.blocks: list[int] = []

    def take(self, nbytes: int) -> Cell:
        """A cell for ``nbytes``. A copy into it that nobody wants any more may still be to come: later copies come after it."""
        size = max(_SMALLEST_CELL, 1 << (nbytes - 1).bit_length())
        home = self._free.setdefault(size, [])
        if not home:
            self._grow(size, home)
        return home.pop()

    def _grow(self, size: int, home: list[Cell]) -> None:
        nbytes = max(size, _FIRST_BLOCK << min(len(self.blocks), _DOUBLINGS))
        block = pinned(self._calls, nbytes)
        self.blocks.append(block)
        for offset in range(0, nbytes, size):
            event = new_event(self._calls)
            self._events.append(event)
            home.append(Cell(block + offset, event, home))

    def close(self) -> None:
        """Give everything back; nothing may be pending."""
        for event in self._events:
            self._calls.driver.event_destroy(event)
        for block in self.blocks:
            self._calls.driver.host_free(block)
        self._events.clear()
        self.blocks.clear()
        self._free.clear()
