"""Runs on any number of processes: random partitions, whose transfers and gradients are compared with NumPy on the whole domain."""

from __future__ import annotations

import itertools
import sys

import numpy as np

import spirograd as sg

dist = sg.distributed


def reached(part, corners):
    """Of the block with its halo: which places an exchange writes (1), which are owned (2), and the others (0)."""
    offsets = np.indices(part.local_shape)
    off = [np.where(o < h, -1, np.where(o >= n - h, 1, 0)) for o, h, n in zip(offsets, part.halo, part.local_shape)]
    cell = [o + first for o, first in zip(offsets, part.origin)]
    inside = np.logical_and.reduce([p | ((c >= 0) & (c < n)) for c, n, p in zip(cell, part.shape, part.periodic)])
    count = sum(abs(o) for o in off)
    return np.where(count == 0, 2, np.where(inside & ((count == 1) | corners), 1, 0)), [c % n for c, n in zip(cell, part.shape)]


def random_partition(rng, axes):
    while True:
        shape = tuple(int(n) for n in rng.integers(1, 14 if axes < 3 else 8, axes))
        halo = tuple(int(n) for n in rng.integers(0, 4 if axes < 3 else 3, axes))
        periodic = tuple(bool(b) for b in rng.integers(0, 2, axes))
        grids = [g for g in itertools.product(range(1, dist.size() + 1), repeat=axes) if np.prod(g) == dist.size()]
        grid = grids[rng.integers(len(grids))]
        if all(n // g >= max(h, 1) for n, g, h in zip(shape, grid, halo)):
            return dist.Partition(shape, grid, halo, periodic, corners=bool(rng.integers(2)))


def check_exchange(rng, part, dtype, components):
    kind = sg.types.vector(components, dtype) if components > 1 else dtype
    memories = [part.field(kind), part.ndarray(kind)]
    tail = (components,) if components > 1 else ()
    kinds, cell = reached(part, part.corners)
    for memory in memories:
        numpy_type = memory.dtype.np
        whole = rng.integers(-50, 50, part.shape + tail).astype(numpy_type)
        part.from_numpy(memory, whole)
        assert (memory.to_numpy()[kinds > 0] == whole[tuple(cell)][kinds > 0]).all()
        local = memory.to_numpy()
        outside = (dist.rank() + 100 + np.arange(local.size).reshape(local.shape) % 20).astype(numpy_type)
        start = np.where((kinds == 2).reshape(kinds.shape + (1,) * len(tail)), local, outside)
        memory.from_numpy(start)
    part.exchange(*memories)
    for memory in memories:
        found = memory.to_numpy()
        whole = part.to_numpy(memory)
        wanted = np.where((kinds > 0).reshape(kinds.shape + (1,) * len(tail)), whole[tuple(cell)], outside)
        assert (found == wanted).all(), part


def check_sum(rng, part):
    """What each process adds, cell by cell of the domain, as NumPy adds it up on one."""
    memory = part.field(sg.f64)
    kinds, cell = reached(part, part.corners)
    local = rng.integers(-9, 9, (dist.size(), *([64] * len(part.shape))))[dist.rank()][tuple(slice(n) for n in part.local_shape)].astype(
        float
    )
    memory.from_numpy(local)
    whole = np.zeros(part.shape)
    np.add.at(whole, tuple(c[kinds > 0] for c in cell), local[kinds > 0])
    wanted = np.add.reduce(dist.world.transport().all_gather(whole))
    part.add_halos(memory)
    found = memory.to_numpy()
    assert (part.to_numpy(memory) == wanted).all(), part
    assert (found[kinds == 1] == 0).all() and (found[kinds == 0] == local[kinds == 0]).all()


def main(count: int) -> None:
    rng = np.random.default_rng(7)  # the same on all processes
    for number in range(count):
        part = random_partition(rng, 1 + number % 3)
        check_exchange(rng, part, (sg.f32, sg.i32)[number % 2], 1 + number % 2)
        check_sum(rng, part)


if __name__ == "__main__":
    dist.init(arch=sys.argv[1], timeout=60, device=None if sys.argv[1] == "cpu" else 0)
    main(int(sys.argv[2]))
    print(f"process {dist.rank()} of {dist.size()} is done")
