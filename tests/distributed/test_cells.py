"""Blocks, and the tables of what goes where, for all processes at once: compared with a padded array of the whole domain."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spirograd.distributed import regions
from spirograd.distributed.halo_cells import border_regions, by_cell, directions, halo_cells, neighbours
from spirograd.distributed.launchers import ProcessPlace, place
from spirograd.distributed.regions import Region
from spirograd.errors import SpirogradValueError


@st.composite
def partitions(draw):
    """shape, grid, halo, periodic, corners"""
    axes = draw(st.integers(1, 3))
    grid = tuple(draw(st.integers(1, 3)) for _ in range(axes))
    halo = tuple(draw(st.integers(0, 3)) for _ in range(axes))
    shape = tuple(draw(st.integers(n * max(h, 1), n * max(h, 1) + 5)) for n, h in zip(grid, halo))
    return shape, grid, halo, tuple(draw(st.booleans()) for _ in range(axes)), draw(st.booleans())


def blocks_of(shape, grid):
    for coordinates in itertools.product(*map(range, grid)):
        yield coordinates, Region(regions.bounds_of(*one) for one in zip(shape, grid, coordinates))


@settings(max_examples=150, deadline=None)
@given(partitions())
def test_messages_bring_what_lies_in_the_domain(partition):
    shape, grid, halo, periodic, corners = partition
    whole = np.arange(math.prod(shape)).reshape(shape)
    tables = []
    for rank, (coordinates, block) in enumerate(blocks_of(shape, grid)):
        tables.append(halo_cells(block, halo, corners, rank, neighbours(coordinates, grid, periodic)))
    for rank, (coordinates, block) in enumerate(blocks_of(shape, grid)):
        table = tables[rank]
        values = np.full(len(table.halo), -1)
        values[: table.kept] = whole[tuple(table.owned[: table.kept].T)]
        for other, first, end in table.coming:
            (sent,) = [part for part in tables[other].to if part[0] == rank]
            values[first:end] = whole[tuple(tables[other].owned[sent[1] : sent[2]].T)]
        assert (values == whole[tuple((table.halo % shape).T)]).all()
        # Each cell that lies in the domain, or its continuation, comes once.
        reach = itertools.product(*[range(a - h, b + h) for (a, b), h in zip(block, halo)])
        wanted = set()
        for cell in reach:
            off = sum(not a <= c < b for c, (a, b) in zip(cell, block))
            inside = all(p or 0 <= c < n for c, n, p in zip(cell, shape, periodic))
            if off and inside and (corners or off == 1):
                wanted.add(cell)
        found = [tuple(map(int, cell)) for cell in table.halo]
        assert len(found) == len(wanted) and set(found) == wanted


@settings(max_examples=60, deadline=None)
@given(partitions())
def test_regions(partition):
    """Blocks are the domain; interior and borders are the block, and only borders read halos that are exchanged."""
    shape, grid, halo, periodic, _ = partition
    count = np.zeros(shape, int)
    for coordinates, block in blocks_of(shape, grid):
        neighbour = neighbours(coordinates, grid, periodic)
        interior, borders = border_regions(block, halo, neighbour)
        covered = np.zeros(shape, int)
        for region in (interior, *borders):
            covered[region.slices_from((0,) * len(shape))] += 1
        assert (covered[block.slices_from((0,) * len(shape))] == 1).all() and covered.sum() == block.size
        count += covered
        table = halo_cells(block, halo, True, -1, neighbour)
        for cell in {tuple(map(int, cell)) for cell in table.halo}:
            distances = [max(a - c, c - b + 1, 0) for c, (a, b) in zip(cell, interior)]
            assert not interior.size or any(d > h for d, h in zip(distances, halo))
    assert (count == 1).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(1, 60), min_size=1, max_size=3), st.integers(0, 2))
def test_the_chosen_grid_has_the_smallest_surface(size, shape, width):
    halo = (width,) * len(shape)
    assume(math.prod(shape) >= size)
    chosen = regions.best_grid(shape, size, halo)
    possible = [g for g in regions.grids(size, len(shape)) if not any(n // c < max(width, 1) for n, c in zip(shape, g))]
    assert (chosen is None) == (not possible)
    if chosen is not None:

        def surface(grid):
            block = [n / c for n, c in zip(shape, grid)]
            return sum(width * math.prod(block) / b for b, c in zip(block, grid) if c > 1)

        assert chosen in possible and surface(chosen) <= min(map(surface, possible)) + 1e-9


def test_blocks_differ_by_one():
    assert [regions.bounds_of(10, 4, k) for k in range(4)] == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert regions.best_grid((100, 100), 16, (1, 1)) == (4, 4)
    assert regions.best_grid((100, 10), 4, (1, 1)) == (4, 1)
    assert regions.best_grid((3, 3), 4, (2, 2)) is None


def test_sums_by_cell_have_one_order():
    owned = np.array([[1, 2], [0, 5], [1, 2], [0, 4]], np.int32)
    unique, starts, positions = by_cell(owned)
    found = {tuple(map(int, cell)): positions[a:b].tolist() for cell, a, b in zip(unique, starts, starts[1:])}
    assert found == {(0, 4): [3], (0, 5): [1], (1, 2): [0, 2]}
    assert [len(part) for part in by_cell(np.empty((0, 2), np.int32))] == [0, 1, 0]


def test_directions():
    assert len(directions((1, 1, 1), True)) == 26 and len(directions((1, 1, 1), False)) == 6
    assert directions((0, 2), True) == [(0, -1), (0, 1)]


def test_launchers():
    assert place({}) == ProcessPlace()
    torchrun = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert place(torchrun) == ProcessPlace(3, 8, 1, 2, "torch")
    assert place({"RANK": "3", "WORLD_SIZE": "8"}) == ProcessPlace(3, 8, 3, 8, "torch")
    mpirun = {f"OMPI_COMM_WORLD_{name}": value for name, value in (("RANK", "1"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "1"))}
    assert place(mpirun) == ProcessPlace(1, 2, 0, 1, "mpi")
    assert place({"PMI_RANK": "0", "PMI_SIZE": "2"}).transport == "mpi"
    with pytest.raises(SpirogradValueError, match="RANK=2 is no rank of 2 processes"):
        place({"RANK": "2", "WORLD_SIZE": "2"})
    with pytest.raises(SpirogradValueError, match="WORLD_SIZE is a number, not 'two'"):
        place({"RANK": "0", "WORLD_SIZE": "two"})
