"""Tables of indices, computed by NumPy: the cells of a block that go to each process, and the cells of its halo that come from each.

A process sends, for each direction in which it has a neighbour, the cells of its block within reach of that neighbour. Between two
processes there is one message: the cells of all directions that lead from one to the other, in the order of the directions of the sender.
Both compute that order on their own, so that no indices are sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from spirograd.base.records import dataclass
from spirograd.distributed.regions import Region

Cells = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
Part = tuple[int, int, int]  # the other process, and the first and end position of its message in a table


@dataclass(frozen=True, slots=True)
class HaloCells:
    """The cells of all messages of a process. ``owned``: for each element sent, in order, the index of its cell in the block. ``halo``: for
    each element received, the index of its cell in the halo. The first ``kept`` of both stay in this process, because a process may be its
    own neighbour in a periodic domain. ``to`` and ``coming``: the messages to and from other processes.
    """

    owned: Cells
    halo: Cells
    kept: int
    to: tuple[Part, ...]
    coming: tuple[Part, ...]


def directions(halo: Sequence[int], corners: bool) -> list[tuple[int, ...]]:
    """Return the directions of neighbours, in order; without ``corners`` only those along one axis."""
    steps = itertools.product(*[(-1, 0, 1) if h else (0,) for h in halo])
    return [step for step in steps if any(step) and (corners or sum(map(abs, step)) == 1)]


def halo_cells(block: Region, halo: Sequence[int], corners: bool, rank: int, neighbour: Callable[[Sequence[int]], int | None]) -> HaloCells:
    """Return the tables of process ``rank``, which owns ``block``. ``neighbour``: the process in a direction, None at the end of the
    domain."""
    sent: dict[int, list[Region]] = {}
    received: dict[int, list[Region]] = {}
    for step in directions(halo, corners):
        target, source = neighbour(step), neighbour([-s for s in step])
        if target is not None:
            inner = [(b - h, b) if s > 0 else (a, a + h) if s < 0 else (a, b) for (a, b), s, h in zip(block, step, halo)]
            sent.setdefault(target, []).append(Region(inner))
        if source is not None:  # cells sent in this direction arrive at the opposite side of the neighbour's halo
            outer = [(a - h, a) if s > 0 else (b, b + h) if s < 0 else (a, b) for (a, b), s, h in zip(block, step, halo)]
            received.setdefault(source, []).append(Region(outer))
    owned, to = _table(sent, rank, len(block))
    around, coming = _table(received, rank, len(block))
    kept = sum(region.size for region in sent.get(rank, []))
    return HaloCells(owned, around, kept, tuple(to), tuple(coming))


def _table(regions: dict[int, list[Region]], rank: int, axes: int) -> tuple[Cells, list[Part]]:
    """Return the cells of all messages, those of ``rank`` itself first, and the positions of the messages to others."""
    cells, parts, position = [], [], 0
    for other in sorted(regions, key=lambda number: (number != rank, number)):
        start = position
        for region in regions[other]:
            cells.append(_indices(region))
            position += region.size
        if other != rank:
            parts.append((other, start, position))
    return np.concatenate(cells) if cells else np.empty((0, axes), np.int32), parts


def _indices(region: Region) -> Cells:
    """Return the indices of all cells, in order."""
    axes = [np.arange(first, end, dtype=np.int32) for first, end in region]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(region))


def by_cell(owned: Cells) -> tuple[Cells, Cells, Cells]:
    """Invert the table ``owned``: return its distinct cells, the start of each cell's positions in the third array (and the end of the
    last), and the positions. Sums over the copies of a cell then have the same order on every device."""
    if not len(owned):
        return owned, np.zeros(1, np.int32), np.empty(0, np.int32)
    order = np.lexsort(owned.T[::-1])
    ordered = owned[order]
    starts = np.flatnonzero(np.concatenate(([True], (ordered[1:] != ordered[:-1]).any(axis=1))))
    return ordered[starts], np.append(starts, len(owned)).astype(np.int32), order.astype(np.int32)


def neighbours(coordinates: Sequence[int], grid: Sequence[int], periodic: Sequence[bool]) -> Callable[[Sequence[int]], int | None]:
    """Return the function from a direction to the process there, seen from ``coordinates`` of a grid."""

    def neighbour(step: Sequence[int]) -> int | None:
        place = [c + s for c, s in zip(coordinates, step)]
        if any(not (around or 0 <= c < n) for c, n, around in zip(place, grid, periodic)):
            return None
        return int(np.ravel_multi_index([c % n for c, n in zip(place, grid)], tuple(grid)))

    return neighbour


def border_regions(block: Region, halo: Sequence[int], neighbour: Callable[[Sequence[int]], int | None]) -> tuple[Region, list[Region]]:
    """Return the cells of a block whose stencil reads no exchanged halo, and the other cells, as disjoint regions."""
    inner, borders = block, []
    for axis, h in enumerate(halo):
        before, after = ([s if k == axis else 0 for k in range(len(halo))] for s in (-1, 1))
        first, end = block[axis]
        start = min(first + h, end) if h and neighbour(before) is not None else first
        stop = max(start, end - h) if h and neighbour(after) is not None else end
        borders += [inner.with_axis(axis, first, start), inner.with_axis(axis, stop, end)]
        inner = inner.with_axis(axis, start, stop)
    return inner, [region for region in borders if region.size]


def wrapped(shape: Sequence[int], region: Region) -> Iterator[Cells]:
    """Return the indices of a region along each axis, wrapped into a periodic domain."""
    return (np.arange(first, end, dtype=np.int32) % extent for (first, end), extent in zip(region, shape))
