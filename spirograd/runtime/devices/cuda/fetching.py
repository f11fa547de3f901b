"""Where fetches of the CUDA device land: small cells of pinned memory, each with an event, used again and again."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from spirograd.runtime.devices.cuda.memory import pinned
from spirograd.runtime.devices.cuda.stream import Stream

_SMALLEST_CELL = 64
_FIRST_BLOCK = 1 << 14
_DOUBLINGS = 6  # of later blocks


@dataclass(slots=True, eq=False)
class Cell:
    """Pinned memory at ``address``, an event that is recorded after the copy into it, and the list that it lies in while nobody uses it."""

    address: int
    event: Any
    home: list[Cell]


class CellReadback:
    """A `Readback` into ``cell``, which it gives back at its end. The bytes are there when the event of the cell is done."""

    __slots__ = ("_nbytes", "_stream", "cell")

    def __init__(self, stream: Stream, cell: Cell, nbytes: int) -> None:
        self._stream = stream
        self._nbytes = nbytes
        self.cell = cell

    def poll(self) -> bytes | None:
        return ctypes.string_at(self.cell.address, self._nbytes) if self._stream.done(self.cell.event) else None

    def wait(self) -> None:
        self._stream.wait(self.cell.event)

    def __del__(self) -> None:
        self.cell.home.append(self.cell)


class Cells:
    """Cells by size, powers of two. Blocks of them are kept until `close`: as many as were in use at a time.

    The device's lock guards `take`. Giving a cell back is ``cell.home.append(cell)``, which finalizers may do anywhere without the lock.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
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
        block = pinned(self._stream.driver, nbytes)
        self.blocks.append(block)
        for offset in range(0, nbytes, size):
            event = self._stream.event()
            self._events.append(event)
            home.append(Cell(block + offset, event, home))

    def close(self) -> None:
        """Give everything back; nothing may be pending."""
        driver = self._stream.driver
        for event in self._events:
            driver.event_destroy(event)
        for block in self.blocks:
            driver.host_free(block)
        self._events.clear()
        self.blocks.clear()
        self._free.clear()
