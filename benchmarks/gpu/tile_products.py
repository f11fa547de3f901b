"""Products of square matrices by tiles: by instructions for matrices where the device has them, and by lanes.

Not in the language of the family, which has no products of tiles.
"""

import importlib
import os

from benchmarks.gpu.program import Program, factor, samples
from spirograd.base.matrix_shapes import shape_for
from spirograd.lang.context import language_options
from spirograd.simt import Tile16x16, Tile32x32

sg = importlib.import_module(os.environ["BENCHMARKED"])
THREADS = 32


def tiles_f16(n):
    return _programs(n, sg.f16, sg.f32)


def tiles_f64(n):
    return _programs(n, sg.f64, sg.f64)


def _programs(n, factors, total):
    a, b, c = sg.field(factors, (n, n)), sg.field(factors, (n, n)), sg.field(total, (n, n))
    a.from_numpy(factor(n, 0).astype(factors.np))
    b.from_numpy(factor(n, 1).astype(factors.np))
    ways = [("by lanes", _one(n, Tile16x16, a, b, c, threads=16))]  # groups that no instruction takes
    if shape_for(language_options().matrix_shapes, total):
        for tile in (Tile16x16, Tile32x32):
            ways.append((f"{tile.SIZE} x {tile.SIZE}", _one(n, tile, a, b, c)))
            ways.append((f"4 x {tile.SIZE} x {tile.SIZE}", _four(n, tile, a, b, c)))

    def result(run):
        c.fill(0)
        run()
        return c.to_numpy().reshape(-1)[samples(n * n)]

    return [Program(run, lambda run=run: result(run), label) for label, run in ways]


def _one(n, tile, a, b, c, threads=THREADS):
    """A tile of the result for each group."""
    s, across = tile.SIZE, n // tile.SIZE
    factors, total = a.dtype, c.dtype

    @sg.kernel
    def multiply():
        sg.loop_config(block_dim=threads)
        for i in range(across * across * threads):
            row, column = i // threads // across * s, i // threads % across * s
            t = tile.zeros(total)
            for k in range(across):
                left, right = tile.zeros(factors), tile.zeros(factors)
                left[:] = a[row : row + s, k * s : k * s + s]
                right[:] = b[k * s : k * s + s, column : column + s]
                t.add_product_(left, right)
            c[row : row + s, column : column + s] = t

    return multiply


def _four(n, tile, a, b, c):
    """Two by two tiles, so that each factor that is loaded serves two products."""
    s, across = tile.SIZE, n // tile.SIZE // 2
    factors, total = a.dtype, c.dtype

    @sg.kernel
    def multiply():
        sg.loop_config(block_dim=THREADS)
        for i in range(across * across * THREADS):
            row, column = i // THREADS // across * 2 * s, i // THREADS % across * 2 * s
            t00, t01, t10, t11 = tile.zeros(total), tile.zeros(total), tile.zeros(total), tile.zeros(total)
            for k in range(2 * across):
                left, right = tile.zeros(factors), tile.zeros(factors)
                below, beside = tile.zeros(factors), tile.zeros(factors)
                left[:] = a[row : row + s, k * s : k * s + s]
                below[:] = a[row + s : row + 2 * s, k * s : k * s + s]
                right[:] = b[k * s : k * s + s, column : column + s]
                beside[:] = b[k * s : k * s + s, column + s : column + 2 * s]
                t00.add_product_(left, right)
                t01.add_product_(left, beside)
                t10.add_product_(below, right)
                t11.add_product_(below, beside)
            c[row : row + s, column : column + s] = t00
            c[row : row + s, column + s : column + 2 * s] = t01
            c[row + s : row + 2 * s, column : column + s] = t10
            c[row + s : row + 2 * s, column + s : column + 2 * s] = t11

    return multiply
