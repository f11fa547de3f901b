"""Staging memory for asynchronous readbacks of a GPU: cells of pinned memory, each with an event recorded after the copy into it."""

from __future__ import annotations

import ctypes

from spirograd.base.records import dataclass
from spirograd.runtime.devices.gpu.allocator import pinned
from spirograd.runtime.devices.gpu.stream import Stream
from spirograd.runtime.devices.staging import Cell, Cells


@dataclass(slots=True, eq=False)
class PinnedBlock:
    """``size`` bytes of pinned memory at the address ``host``."""

    host: int
    size: int


def pinned_cells(stream: Stream) -> Cells:
    """Cells of pinned memory."""
    driver = stream.driver
    return Cells(lambda nbytes: PinnedBlock(pinned(driver, nbytes), nbytes), lambda block: driver.host_free(block.host))


class CellReadback:
    """A `StagedReadback` into a cell, which it gives back at its end. The bytes are there when the event of the cell is done."""

    __slots__ = ("_cell", "_nbytes", "_stream")

    def __init__(self, stream: Stream, cell: Cell, nbytes: int) -> None:
        self._stream, self._cell, self._nbytes = stream, cell, nbytes
        if cell.event is None:
            cell.event = stream.event()

    @property
    def address(self) -> int:
        """Where the bytes are to land."""
        address: int = self._cell.block.host + self._cell.offset
        return address

    def record(self) -> None:
        """The copy is on its way."""
        self._stream.record(self._cell.event)

    def poll(self) -> bytes | None:
        return ctypes.string_at(self.address, self._nbytes) if self._stream.done(self._cell.event) else None

    def wait(self) -> None:
        self._stream.wait(self._cell.event)

    def __del__(self) -> None:
        self._cell.home.append(self._cell)
