"""Products of tiles, by instructions for matrices where devices have them: what stays in registers between them, and how sums round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.simt import Tile16x16, Tile32x32

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")]  # wgpu may have no f16
TYPES = [pytest.param(sg.f16, sg.f32, id="f16"), pytest.param(sg.f32, sg.f32, id="f32"), pytest.param(sg.f64, sg.f64, id="f64")]
THREADS = 32


def field(data: Any, dtype: Any) -> Any:
    made = sg.field(dtype, data.shape)
    made.from_numpy(data.astype(dtype.np))
    return made


def eighths(*shape: int, seed: int = 0) -> Any:
    """Factors whose products, and the sums of these, are exact in f32."""
    return np.random.default_rng(seed).integers(-16, 17, shape) / 8


def multiply(tile: Any, x: Any, y: Any, factors: Any, total: Any, transposed: bool = False) -> Any:
    """x @ y (or x @ y^T) by tiles, one of the result for each group."""
    n, rows, columns, depth = tile.SIZE, x.shape[0], y.shape[0 if transposed else 1], x.shape[1]
    a, b, c = field(x, factors), field(y, factors), sg.field(total, (rows, columns))
    across = columns // n

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=THREADS)
        for i in range(rows // n * across * THREADS):
            row, column = i // THREADS // across * n, i // THREADS % across * n
            t = tile.zeros(total)
            for k in range(depth // n):
                left, right = tile.zeros(factors), tile.zeros(factors)
                left[:] = a[row : row + n, k * n : k * n + n]
                if sg.static(transposed):
                    right[:] = b[column : column + n, k * n : k * n + n]
                else:
                    right[:] = b[k * n : k * n + n, column : column + n]
                t.add_product_(left, right, transposed)
            c[row : row + n, column : column + n] = t

    run()
    return c.to_numpy()


@pytest.mark.parametrize(("factors", "total"), TYPES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tile", [Tile16x16, pytest.param(Tile32x32, marks=pytest.mark.long)], ids=str)
def test_exact_products_of_matrices(tile: Any, transposed: bool, factors: Any, total: Any) -> None:
    """Every entry in its place."""
    n = tile.SIZE
    x, y = eighths(2 * n, 3 * n, seed=1), eighths(3 * n, 2 * n, seed=2)
    found = multiply(tile, x, y.T if transposed else y, factors, total, transposed)
    np.testing.assert_array_equal(found, x @ y)


@pytest.mark.parametrize(("factors", "total"), TYPES)
def test_sums_round_as_their_type_does(factors: Any, total: Any) -> None:
    """Products of f16 are exact in f32. Devices add in any order, and some cut sums off where others round."""
    rng, depth = np.random.default_rng(3), 64
    x, y = rng.normal(size=(16, depth)).astype(factors.np), rng.normal(size=(depth, 16)).astype(factors.np)
    found = multiply(Tile16x16, x, y, factors, total).astype("f8")
    x, y = x.astype("f8"), y.astype("f8")
    bound = (depth + 1) * np.finfo(total.np).eps * (np.abs(x) @ np.abs(y))
    assert (np.abs(found - x @ y) <= bound).all()


@pytest.mark.parametrize(("factors", "total"), TYPES)
def test_between_products(factors: Any, total: Any) -> None:
    """What reads or changes rows between products, in loops and branches, sees what they left, and they what it left."""
    n = 16
    x, y = eighths(n, n, seed=4), eighths(n, n, seed=5)
    a, b, c = field(x, factors), field(y, factors), sg.field(total, (4, n, n))

    @sg.kernel
    def run(often: int):  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=THREADS)
        for i in range(2 * THREADS):
            g = i // THREADS
            left, right, t = Tile16x16.zeros(factors), Tile16x16.zeros(factors), Tile16x16.eye(total)
            left[:] = a[0:n, 0:n]
            right[:] = b[0:n, 0:n]
            for k in range(often):
                t.add_product_(left, right)
                if g == 1:
                    t.subtract_product_(right, left)
                c[g, 0:n, 0:n] = t
            t.r[2] = 1.0
            for _ in range(often):
                for _ in range(2):
                    t.subtract_product_(left, left, True)
                t += sg.outer(1.0, t.r[2])
            c[2 + g, 0:n, 0:n] = t

    run(2)
    found, often = c.to_numpy(), 2
    for g in range(2):
        t = np.eye(n) + often * (x @ y - g * y @ x)
        np.testing.assert_array_equal(found[g], t)
        t[:, 2] = 1
        for _ in range(often):
            t -= 2 * x @ x.T
            t += np.outer(np.ones(n), t[:, 2])
        np.testing.assert_array_equal(found[2 + g], t)


def test_where_only_memory_says_that_threads_agree() -> None:
    """In a loop in a branch in a loop."""
    n = 16
    x, y = eighths(n, n, seed=8), eighths(n, n, seed=9)
    a, b, c = field(x, sg.f16), field(y, sg.f16), sg.field(sg.f32, (3, n, n))
    often = field(np.repeat([0, 1, 2], THREADS), sg.i32)

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=THREADS)
        for i in range(3 * THREADS):
            left, right, t = Tile16x16.zeros(sg.f16), Tile16x16.zeros(sg.f16), Tile16x16.eye(sg.f32)
            left[:] = a[0:n, 0:n]
            right[:] = b[0:n, 0:n]
            for k in range(often[i]):
                if often[i] > k:
                    rounds = often[i]
                    while rounds > 0:
                        t.add_product_(left, right)
                        rounds -= 1
            c[i // THREADS, 0:n, 0:n] = t

    run()
    np.testing.assert_array_equal(c.to_numpy(), [np.eye(n) + k * k * x @ y for k in range(3)])


def test_slices_that_matrices_do_not_fill() -> None:
    """Rows and columns that there are not count as what the tile had: zeros."""
    n, rows, columns, depth = 16, 21, 19, 37
    x, y = eighths(rows, depth, seed=6), eighths(depth, columns, seed=7)
    a, b, c = field(x, sg.f16), field(y, sg.f16), field(np.full((rows, columns), -1.0), sg.f32)

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=THREADS)
        for i in range(4 * THREADS):
            row, column = i // THREADS // 2 * n, i // THREADS % 2 * n
            t = Tile16x16.zeros(sg.f32)
            for k in range(3):
                left, right = Tile16x16.zeros(sg.f16), Tile16x16.zeros(sg.f16)
                left[:] = a[row : row + n, k * n : k * n + n]
                right[:] = b[k * n : k * n + n, column : column + n]
                t.add_product_(left, right)
            c[row : row + n, column : column + n] = t

    run()
    np.testing.assert_array_equal(c.to_numpy(), x @ y)


@pytest.mark.archs("interpreter", "cuda", "vulkan")
def test_instructions_where_devices_have_them(session: Any) -> None:
    """For f16 on CUDA from Turing on, and on NVIDIA's cards in Vulkan; never for f32."""
    kernels = {}
    for factors, total in ((sg.f16, sg.f32), (sg.f32, sg.f32)):
        a, c = field(eighths(16, 16), factors), sg.field(total, (16, 16))

        @sg.kernel
        def square():  # type: ignore[no-untyped-def]
            sg.loop_config(block_dim=THREADS)
            for _ in range(THREADS):
                left, t = Tile16x16.zeros(a.dtype), Tile16x16.zeros(c.dtype)
                left[:] = a[0:16, 0:16]
                t.add_product_(left, left)
                c[0:16, 0:16] = t

        square()
        kernels[factors] = square.ir("kernel").count("tile_product")
    assert kernels == {sg.f16: bool(session.device.caps.matrix_shapes), sg.f32: 0}
