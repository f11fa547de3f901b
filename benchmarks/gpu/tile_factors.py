"""Factors of many small positive definite matrices by tiles, in the language of the family: as a simulator of rigid bodies makes them in
every step. The size of a matrix is known at run time only, and is no multiple of a tile."""

import importlib
import os

import numpy as np

from benchmarks.gpu.program import Program, samples, systems

sg = importlib.import_module(os.environ["BENCHMARKED"])


def factors(size):
    """``size``: the number of systems, of unknowns in each, of rows of a tile, of bits of a float."""
    count, n, rows, bits = size
    dtype, tile = (sg.f32 if bits == 32 else sg.f64), (sg.simt.Tile16x16 if rows == 16 else sg.simt.Tile32x32)
    matrices = systems(count, n).astype(f"f{bits // 8}")
    a, sizes = sg.ndarray(dtype, (count, n, n)), sg.ndarray(sg.i32, count)
    result = sg.ndarray(dtype, (count, n, n))
    a.from_numpy(matrices)
    sizes.from_numpy(np.full(count, n, "i4"))

    @sg.kernel
    def factorise(a: sg.types.NDArray[dtype, 3], sizes: sg.types.NDArray[sg.i32, 1], result: sg.types.NDArray[dtype, 3]):
        sg.loop_config(block_dim=rows)
        for i in range(count * rows):
            g = i // rows
            m = sizes[g]
            blocks = (m + rows - 1) // rows
            for k in range(blocks):
                first = k * rows
                last = sg.min(first + rows, m)
                diagonal = tile.eye(dtype=dtype)
                diagonal[:] = a[g, first:last, first:last]
                for c in range(first):
                    column = result[g, first:last, c]
                    diagonal -= sg.outer(column, column)
                diagonal.cholesky_(1e-12)
                result[g, first:last, first:last] = diagonal
                for r in range(k + 1, blocks):
                    top = r * rows
                    end = sg.min(top + rows, m)
                    below = tile.zeros(dtype=dtype)
                    below[:] = a[g, top:end, first:last]
                    for c in range(first):
                        below -= sg.outer(result[g, top:end, c], result[g, first:last, c])
                    diagonal.solve_triangular_(below)
                    result[g, top:end, first:last] = below
                sg.simt.block.sync()

    def found():
        factorise(a, sizes, result)
        return np.tril(result.to_numpy()).reshape(-1)[samples(count * n * n)]

    return [Program(lambda: factorise(a, sizes, result), found)]


def factors_16(size):
    return factors((*size, 16, 32))


def factors_32(size):
    return factors((*size, 32, 32))


def factors_16_f64(size):
    return factors((*size, 16, 64))


def factors_32_f64(size):
    return factors((*size, 32, 64))
