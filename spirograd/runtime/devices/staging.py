"""Pieces of staging memory for readbacks: small, mapped or pinned, used again and again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from spirograd.base.records import dataclass

_SMALLEST_CELL = 64
_FIRST_BLOCK = 1 << 14
_DOUBLINGS = 6  # of later blocks


@dataclass(slots=True, eq=False)
class Cell:
    """A suballocation of a block: a slice of ``view`` is its bytes, ``home`` the free list that it returns to.

    ``event`` is None at first; a device whose copies end with an event keeps that here.
    """

    block: Any
    offset: int
    view: Any
    home: list[Cell]
    event: Any = None


class Cells:
    """Cells by size, powers of two. Blocks of them are kept until `close`: as many as were in use at a time.

    ``create`` makes a block of at least so many bytes, with ``size`` and the host's address ``host``; ``destroy`` gives one back.
    The device's lock guards `take`. Giving a cell back is ``cell.home.append(cell)``, which finalizers may do anywhere without the lock.
    """

    def __init__(self, create: Callable[[int], Any], destroy: Callable[[Any], None]) -> None:
        self._create, self._destroy = create, destroy
        self._free: dict[int, list[Cell]] = {}
        self.blocks: list[Any] = []

    def take(self, nbytes: int) -> Cell:
        """A cell for ``nbytes``. An abandoned copy into it may still be pending; copies are ordered, so a later one overwrites it."""
        size = max(_SMALLEST_CELL, 1 << (nbytes - 1).bit_length())
        home = self._free.setdefault(size, [])
        if not home:
            self._grow(size, home)
        return home.pop()

    def _grow(self, size: int, home: list[Cell]) -> None:
        block = self._create(max(size, _FIRST_BLOCK << min(len(self.blocks), _DOUBLINGS)))
        self.blocks.append(block)
        for offset in range(0, block.size - size + 1, size):
            home.append(Cell(block, offset, (ctypes.c_char * size).from_address(block.host + offset), home))

    def close(self) -> None:
        """Give all blocks back; nothing may be pending."""
        for block in self.blocks:
            self._destroy(block)
        self.blocks.clear()
        self._free.clear()
