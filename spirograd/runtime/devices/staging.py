"""Staging memory for readbacks in small pieces, mapped or pinned, which are reused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from spirograd.base.records import dataclass

if TYPE_CHECKING:

    class StagingBlock(Protocol):
        """``size`` bytes that the host addresses at ``host``."""

        @property
        def size(self) -> int: ...

        @property
        def host(self) -> int: ...


_SMALLEST_CELL = 64
_FIRST_BLOCK = 1 << 14
_DOUBLINGS = 6  # Bytes of later blocks.

B = TypeVar("B", bound="StagingBlock")


@dataclass(slots=True, eq=False)
class StagingCell(Generic[B]):
    """A suballocation of a block: a slice of ``view`` is its bytes, ``home`` the free list that it returns to.

    ``event`` is None at first; devices whose copies end with an event store it here.
    """

    block: B
    offset: int
    view: Any
    home: list[StagingCell[B]]
    event: int | None = None


class StagingCells(Generic[B]):
    """Cells by size, powers of two. Blocks of cells are kept until `close`.

    ``create`` makes a block of at least a number of bytes, with attributes ``size`` and ``host``, the host's address; ``destroy`` frees
    one. The device's lock guards `take`. A cell is returned by ``cell.home.append(cell)``, which finalizers may run anywhere without the
    lock.
    """

    def __init__(self, create: Callable[[int], B], destroy: Callable[[B], object]) -> None:
        self._create, self._destroy = create, destroy
        self._free: dict[int, list[StagingCell[B]]] = {}
        self.blocks: list[B] = []

    def take(self, nbytes: int) -> StagingCell[B]:
        """Return a cell for ``nbytes``. An abandoned copy into it may still be pending; copies are ordered, so a later one overwrites
        it."""
        size = max(_SMALLEST_CELL, 1 << (nbytes - 1).bit_length())
        home = self._free.setdefault(size, [])
        if not home:
            self._grow(size, home)
        return home.pop()

    def _grow(self, size: int, home: list[StagingCell[B]]) -> None:
        block = self._create(max(size, _FIRST_BLOCK << min(len(self.blocks), _DOUBLINGS)))
        self.blocks.append(block)
        for offset in range(0, block.size - size + 1, size):
            home.append(StagingCell(block, offset, (ctypes.c_char * size).from_address(block.host + offset), home))

    def close(self) -> None:
        """Free all blocks; nothing may be pending."""
        for block in self.blocks:
            self._destroy(block)
        self.blocks.clear()
        self._free.clear()
