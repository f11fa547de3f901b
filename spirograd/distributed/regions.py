"""Ranges of indices, one for each axis, and their division into blocks by a grid of processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence


class Region(tuple[tuple[int, int], ...]):
    """A region of cells: for each axis the first index, and the one after the last, as in ``sg.ndrange(*region)``."""

    __slots__ = ()

    @property
    def flat(self) -> tuple[int, ...]:
        """The bounds in sequence, as arguments of a kernel: first and end of axis 0, of axis 1, ..."""
        return tuple(itertools.chain.from_iterable(self))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each axis."""
        return tuple(max(end - first, 0) for first, end in self)

    @property
    def size(self) -> int:
        """The number of cells."""
        return math.prod(self.shape)

    def with_axis(self, axis: int, first: int, end: int) -> Region:
        """Return the region with the bounds ``first`` and ``end`` of ``axis``."""
        return Region((first, end) if k == axis else bounds for k, bounds in enumerate(self))

    def slices_from(self, origin: Sequence[int]) -> tuple[slice[int, int, None], ...]:
        """Return the cells as slices of an array whose first element has the index ``origin``."""
        return tuple(slice(first - start, end - start) for (first, end), start in zip(self, origin))

    def intersection(self, other: Region) -> Region:
        """Return the cells that are also in ``other``."""
        return Region((max(a, c), min(b, d)) for (a, b), (c, d) in zip(self, other))


def bounds_of(extent: int, count: int, number: int) -> tuple[int, int]:
    """Return the bounds of block ``number`` of ``count`` blocks of ``extent`` indices. Lengths differ by at most 1; the first blocks are
    longer."""
    length, longer = divmod(extent, count)
    first = number * length + min(number, longer)
    return first, first + length + (number < longer)


def grids(size: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Iterate over all arrangements of ``size`` processes along ``axes`` axes."""
    if axes == 1:
        yield (size,)
        return
    for count in range(1, size + 1):
        if size % count == 0:
            yield from ((count, *rest) for rest in grids(size // count, axes - 1))


def best_grid(shape: Sequence[int], size: int, halo: Sequence[int]) -> tuple[int, ...] | None:
    """Return the arrangement of ``size`` processes whose blocks have the smallest surface; None if no arrangement has a block for each
    process that is as wide as its halo. Of several, the one that divides the first axes, whose halos are the longest ranges of memory."""

    def surface(grid: tuple[int, ...]) -> float:
        block = [extent / count for extent, count in zip(shape, grid)]
        return sum(2 * h * math.prod(block) / b for b, h, count in zip(block, halo, grid) if count > 1)

    possible = [grid for grid in grids(size, len(shape)) if not any(too_narrow(shape, grid, halo))]
    return min(possible, key=lambda grid: (surface(grid), tuple(-count for count in grid))) if possible else None


def too_narrow(shape: Sequence[int], grid: Sequence[int], halo: Sequence[int]) -> list[bool]:
    """Return for each axis whether its smallest block is empty, or narrower than its halo."""
    return [extent // count < max(h, 1) for extent, count, h in zip(shape, grid, halo)]
