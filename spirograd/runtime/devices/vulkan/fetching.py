"""Where fetches of the Vulkan device land: small cells of mapped staging memory, used again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spirograd.runtime.devices.vulkan.allocator import Allocator, Block
from spirograd.runtime.devices.vulkan.api import ffi
from spirograd.runtime.devices.vulkan.stream import Stream

_SMALLEST_CELL = 64
_FIRST_BLOCK = 1 << 14
_DOUBLINGS = 6  # of later blocks


@dataclass(slots=True, eq=False)
class Cell:
    """A piece of staging memory: ``view`` is what the host sees of it, ``home`` the list that it lies in while nobody uses it."""

    buffer: Any
    offset: int
    view: Any
    home: list[Cell]


class CellReadback:
    """A `Readback` into ``cell``, which it gives back at its end. The bytes are there when the timeline has passed ``value``."""

    __slots__ = ("_nbytes", "_stream", "cell", "value")

    def __init__(self, stream: Stream, cell: Cell, nbytes: int) -> None:
        self._stream = stream
        self._nbytes = nbytes
        self.cell = cell
        self.value = 0

    def poll(self) -> bytes | None:
        if self._stream.completed < self.value and self._stream.poll() < self.value:
            return None
        data: bytes = self.cell.view[: self._nbytes]
        return data

    def wait(self) -> None:
        if self._stream.submitted < self.value:
            self._stream.flush()
        self._stream.wait(self.value)

    def __del__(self) -> None:
        self.cell.home.append(self.cell)


class Cells:
    """Cells by size, powers of two. Blocks of them are kept until `close`: as many as were in use at a time.

    The device's lock guards `take`. Giving a cell back is ``cell.home.append(cell)``, which finalizers may do anywhere without the lock.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._free: dict[int, list[Cell]] = {}
        self.blocks: list[Block] = []

    def take(self, nbytes: int) -> Cell:
        """A cell for ``nbytes``. A copy into it that nobody wants any more may still be to come: later copies come after it."""
        size = max(_SMALLEST_CELL, 1 << (nbytes - 1).bit_length())
        home = self._free.setdefault(size, [])
        if not home:
            self._grow(size, home)
        return home.pop()

    def _grow(self, size: int, home: list[Cell]) -> None:
        block = self._allocator.create_block(max(size, _FIRST_BLOCK << min(len(self.blocks), _DOUBLINGS)), staging=True)
        self.blocks.append(block)
        for offset in range(0, block.size, size):
            home.append(Cell(block.buffer, offset, ffi.buffer(ffi.cast("char*", block.host + offset), size), home))

    def close(self) -> None:
        """Give all blocks back; nothing may be pending."""
        for block in self.blocks:
            self._allocator.destroy_block(block)
        self.blocks.clear()
        self._free.clear()
