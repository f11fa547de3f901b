"""What memory a sparse field takes on the CPU: cells of 8^3 of a grid of 1024^3, 1 % of them active, against the bytes of these cells.

    python -m benchmarks.sparse_memory                       # spirograd
    PYTHON -m benchmarks.sparse_memory --module taichi       # by a Python that has a peer, in this folder
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import numpy as np

BLOCKS, SIDE = 128, 8


def resident() -> int:
    """Bytes of memory that the process has in use (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def kernels(sg: Any, x: Any) -> Any:
    """What activates cells."""

    def activate(cells):
        for n in range(cells.shape[0]):
            x[cells[n, 0] * SIDE, cells[n, 1] * SIDE, cells[n, 2] * SIDE] = 1.0

    activate.__annotations__ = {"cells": sg.types.ndarray(sg.i32, 2)}
    return sg.kernel(activate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default="spirograd", help="the package: spirograd, taichi")
    sg = importlib.import_module(parser.parse_args().module)
    sg.init(arch=sg.cpu)
    chosen = np.random.default_rng(0).choice(BLOCKS**3, BLOCKS**3 // 100, replace=False)
    taken = []
    for count in (1, len(chosen)):  # the first one has all that takes memory once
        x = sg.field(sg.f32)
        builder = sg.FieldsBuilder()
        builder.pointer(sg.ijk, (BLOCKS,) * 3).dense(sg.ijk, (SIDE,) * 3).place(x)
        tree = builder.finalize()
        cells = sg.ndarray(sg.i32, (count, 3))
        cells.from_numpy(np.stack(np.unravel_index(chosen[:count], (BLOCKS,) * 3), 1).astype(np.int32))
        before = resident()
        kernels(sg, x)(cells)
        sg.sync()
        taken.append(resident() - before)
        tree.destroy()
    own = len(chosen) * SIDE**3 * 4
    print(f"{sg.__name__}: {taken[1] / 2**20:.1f} MiB for {own / 2**20:.1f} MiB of active cells, {taken[1] / own:.2f} times as much")


if __name__ == "__main__":
    main()
