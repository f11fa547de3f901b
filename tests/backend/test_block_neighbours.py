"""Loops over small blocks of cells whose bodies read neighbours, in the same block or in the next one, against NumPy. The CPU looks up the
blocks of neighbours once for each group of lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.dtypes import DType

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.optimized]


def fields(count: int, dtype: DType, blocks: Sequence[int], cells: Sequence[int], sparse: bool) -> list[Any]:
    made = [sg.field(dtype) for _ in range(count)]
    axes = sg.ijk if len(blocks) == 3 else sg.ij
    level = sg.root.pointer(axes, blocks) if sparse else sg.root.dense(axes, blocks)
    level.dense(axes, cells).place(*made)
    return made


def filled(x: Any, cells: Sequence[int]) -> np.ndarray:
    """Numbers in some places of ``x``, so far from its ends that no neighbour lies beyond; returns its contents."""
    rng = np.random.default_rng(cells)
    margins = [-(-4 // n) * n for n in cells]  # whole blocks: all cells of a block look at their neighbours
    places = np.array([rng.integers(m, n - m, 60) for n, m in zip(x.shape, margins)], np.int32)
    values = rng.integers(1, 50, 60).astype(np.int32)
    contents = np.zeros(x.shape, x.dtype.np)
    for place, value in zip(places.T, values):
        index = tuple(int(k) for k in place)
        x[index] = int(value)
        contents[index] = value
    return contents


def shifted(contents: np.ndarray, *by: int) -> np.ndarray:
    return np.roll(contents, [-k for k in by], range(contents.ndim))


def active(contents: np.ndarray, cells: Sequence[int]) -> np.ndarray:
    """The cells of blocks that have a number."""
    some = contents != 0
    for axis, n in enumerate(cells):
        some = np.logical_or.reduceat(some, range(0, some.shape[axis], n), axis).repeat(n, axis)
    return some


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("dtype", (sg.f32, sg.i32), ids=str)
@pytest.mark.parametrize("members", (1, 2, 3, 5))
def test_cubes(arch: Any, dtype: DType, members: int, threads: int) -> None:
    """Blocks of 4 x 4 x 4 cells of some members: six neighbours, all cells; then those of one colour, of which some read."""
    sg.init(arch=arch, cpu_max_num_threads=threads)
    cells = (4, 4, 4)
    x = fields(members, dtype, (8, 8, 8), cells, sparse=True)[0]
    (y,) = fields(1, dtype, (8, 8, 8), cells, sparse=True)

    @sg.kernel
    def add():
        for i, j, k in x:
            sides = x[i + 1, j, k] + x[i - 1, j, k] + x[i, j + 1, k] + x[i, j - 1, k]
            y[i, j, k] = 6 * x[i, j, k] - sides - x[i, j, k + 1] - x[i, j, k - 1]

    @sg.kernel
    def one_colour(colour: sg.i32):
        for i, j, k in x:
            if (i + j + k) % 2 == colour:
                x[i, j, k] = y[i + 1, j - 1, k] + 2 * y[i, j, k + 3]
                if y[i, j, k] > 0:
                    x[i, j, k] += 3 * y[i - 2, j, k] + y[i, j, k - 1]

    contents = filled(x, cells)
    on = active(contents, cells)
    add()
    axes = np.eye(3, dtype=int)
    sums = np.where(on, 6 * contents - sum(shifted(contents, *(sign * a)) for a in axes for sign in (1, -1)), 0)
    np.testing.assert_array_equal(y.to_numpy(), sums)
    for colour in (0, 1):
        one_colour(colour)
        mine = on & (np.indices(x.shape).sum(0) % 2 == colour)
        more = np.where(sums > 0, 3 * shifted(sums, -2, 0, 0) + shifted(sums, 0, 0, -1), 0)
        contents = np.where(mine, shifted(sums, 1, -1, 0) + 2 * shifted(sums, 0, 0, 3) + more, contents)
        np.testing.assert_array_equal(x.to_numpy(), contents)


SQUARES = [((16, 8), (4, 4)), ((8, 8), (8, 8)), ((4, 6), (16, 16)), ((9, 16), (4, 8)), ((16, 4), (2, 32)), ((10, 10), (3, 5))]


@pytest.mark.parametrize("sparse", (True, False), ids=("sparse", "dense"))
@pytest.mark.parametrize(("blocks", "cells"), SQUARES, ids=str)
def test_squares(session: Any, blocks: tuple[int, int], cells: tuple[int, int], sparse: bool) -> None:
    """Diagonal neighbours, a sum, and neighbours that only some cells have."""
    x, y = fields(2, sg.i32, blocks, cells, sparse)

    @sg.kernel
    def gather() -> sg.i32:
        total = 0
        for i, j in x:
            y[i, j] = x[i + 1, j + 1] + 2 * x[i - 1, j + 2] + 3 * x[i, j - 3] - x[i - 4, j]
            total += x[i + 1, j] * x[i, j - 1]
        return total

    @sg.kernel
    def guarded():
        for i, j in x:
            left = x[i, j - 1] if j > 0 else -1
            above = 0
            if i + 5 < x.shape[0] and x[i, j] >= 0:
                above = x[i + 5, j] + 2 * x[i + 1, j]
            y[i, j] = left + 10 * above

    contents = filled(x, cells)
    if not sparse:  # neighbours of all cells exist
        guarded()
        padded = np.pad(contents, ((0, 5), (0, 0)))
        left = np.pad(contents, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        above = np.where(np.arange(x.shape[0])[:, None] + 5 < x.shape[0], padded[5:] + 2 * padded[1:-4], 0)
        np.testing.assert_array_equal(y.to_numpy(), left + 10 * above)
        return
    on = active(contents, cells)
    total = gather()
    expected = shifted(contents, 1, 1) + 2 * shifted(contents, -1, 2) + 3 * shifted(contents, 0, -3) - shifted(contents, -4, 0)
    np.testing.assert_array_equal(y.to_numpy(), np.where(on, expected, 0))
    assert total == np.where(on, shifted(contents, 1, 0) * shifted(contents, 0, -1), 0).sum()


def test_edges_of_the_domain(session: Any) -> None:
    """Conditions on several axes around much arithmetic: each is the same in groups of cells."""
    x, y = fields(2, sg.i32, (4, 4, 4), (4, 4, 4), sparse=True)

    @sg.kernel
    def run():
        for i, j, k in x:
            if j > 0 and j < 15 and i > 0 and i < 15:
                total = x[i, j + 1, k] + 2 * x[i, j - 1, k] + 3 * x[i + 1, j, k] + 5 * x[i - 1, j, k]
                for n in sg.static(range(60)):
                    total = total * 3 + (total >> 4) - n
                y[i, j, k] = total

    values = np.random.default_rng(1).integers(1, 100, x.shape).astype(np.int32)
    x.from_numpy(values)
    run()
    padded = np.pad(values, ((1, 1), (1, 1), (0, 0)))
    total = padded[1:-1, 2:] + 2 * padded[1:-1, :-2] + 3 * padded[2:, 1:-1] + 5 * padded[:-2, 1:-1]
    for n in range(60):
        total = total * np.int32(3) + (total >> np.int32(4)) - np.int32(n)
    inside = np.zeros(x.shape, bool)
    inside[1:-1, 1:-1] = True
    np.testing.assert_array_equal(y.to_numpy(), np.where(inside, total, 0))


@pytest.mark.parametrize("by", (3, 3_000_000, 1_500_000_000), ids=str)
def test_products_that_wrap_around(session: Any, by: int) -> None:
    """Quotients and remainders of them are not those of an index of a cell."""
    x, y = sg.field(sg.i32, 64), sg.field(sg.i32, 4096)

    @sg.kernel
    def run():
        for i in y:
            total = i * by // 3 + i * by % 48 + (i % 16 * by) // 4
            for k in range(20):
                total = total * 3 + x[(i // 4 + k) % 64]
            y[i] = total

    values = np.random.default_rng(by).integers(-50, 50, 64).astype(np.int32)
    x.from_numpy(values)
    run()
    i, wide = np.arange(4096), np.arange(4096).astype(np.int32)
    product, cells = wide * np.int32(by), (i % 16).astype(np.int32) * np.int32(by)
    total = product // 3 + product % 48 + cells // 4
    for k in range(20):
        total = total * np.int32(3) + values[(i // 4 + k) % 64]
    np.testing.assert_array_equal(y.to_numpy(), total)
