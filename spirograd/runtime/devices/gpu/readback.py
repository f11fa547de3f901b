"""Staging memory for asynchronous readbacks of a GPU: cells of pinned memory, each with an event recorded after the copy into it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import Future

from spirograd.base.records import dataclass
from spirograd.runtime.devices.gpu.allocator import pinned
from spirograd.runtime.devices.gpu.stream import Stream
from spirograd.runtime.devices.staging import StagingCell, StagingCells
from spirograd.runtime.devices.streamed import StreamedDevice


@dataclass(slots=True, eq=False)
class PinnedBlock:
    """``size`` bytes of pinned memory at the address ``host``."""

    host: int
    size: int


def pinned_cells(stream: Stream) -> StagingCells[PinnedBlock]:
    """Return cells of pinned memory."""
    driver = stream.driver
    return StagingCells(lambda nbytes: PinnedBlock(pinned(driver, nbytes), nbytes), lambda block: driver.host_free(block.host))


class CellReadback:
    """A `StagedReadback` into a cell, which it returns at its end. The bytes are available when the event of the cell is complete."""

    __slots__ = ("_cell", "_event", "_nbytes", "_stream")

    def __init__(self, stream: Stream, cell: StagingCell[PinnedBlock], nbytes: int) -> None:
        self._stream, self._cell, self._nbytes = stream, cell, nbytes
        if cell.event is None:
            cell.event = stream.event()
        self._event = cell.event

    @property
    def address(self) -> int:
        """The address of the destination."""
        return self._cell.block.host + self._cell.offset

    def record(self) -> None:
        """Mark that the copy is recorded."""
        self._stream.record(self._event)

    @property
    def arrived(self) -> bool:
        """Return whether the bytes are in the cell."""
        return self._stream.done(self._event)

    def poll(self) -> bytes | None:
        return ctypes.string_at(self.address, self._nbytes) if self.arrived else None

    def wait(self) -> None:
        self._stream.wait(self._event)

    def __del__(self) -> None:
        self._cell.home.append(self._cell)


class CellArrival:
    """An `Arrival`: a readback until the bytes are in the cell; then ``move`` has a thread copy them from there."""

    __slots__ = ("_device", "_move", "_moving", "_readback")

    def __init__(self, device: StreamedDevice, readback: CellReadback, move: Callable[[CellReadback], Future[int]]) -> None:
        self._device = device
        self._readback: CellReadback | None = readback
        self._move = move
        self._moving: Future[int] | None = None

    def here(self) -> bool:
        """Return whether the bytes have arrived, see `Arrival.here`.

        While another thread is inside of the device, which may take long, the result is also False.
        """
        if self._moving is None:
            turn = self._device._turn
            if not turn.lock.acquire(blocking=False):
                return False
            try:
                with turn:
                    if self._readback is not None and self._readback.arrived:
                        self._begin(self._readback)
            finally:
                turn.release()
        return self._moving is not None and self._moving.done()

    def wait(self) -> None:
        """See `Arrival.wait`."""
        device = self._device
        device._count_wait()
        if self._moving is None:
            with device._turn:
                if self._readback is not None:
                    self._readback.wait()
                    device._check()
                    self._begin(self._readback)
        assert self._moving is not None
        self._moving.result()

    def _begin(self, readback: CellReadback) -> None:
        """Have the thread move the bytes, which are in the cell, and return the cell. The caller holds the lock."""
        self._moving, self._readback = self._move(readback), None
