"""Tiles of 16 and 32 rows, each in one thread: loads and stores, products of columns, factors and triangular systems, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.simt import Tile16x16, Tile32x32, block

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _session(arch: str) -> None:
    sg.init(arch=arch)


def numbers(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).uniform(0.1, 1, shape).astype("f4")


def field(data: Array, make: Any = sg.field, dtype: Any = sg.f32) -> Any:
    made = make(dtype, data.shape)
    made.from_numpy(data.astype(dtype.np))
    return made


def filled(shape: tuple[int, ...], make: Any = sg.field) -> Any:
    return field(np.full(shape, -1, "f4"), make)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("make", [sg.field, sg.ndarray], ids=["field", "ndarray"])
@pytest.mark.parametrize("tile", [Tile16x16, Tile32x32], ids=str)
def test_loads_and_stores(arch: str, tile: Any, make: Any) -> None:
    """What the slices and the memory do not have is neither loaded nor stored."""
    n = tile.SIZE
    data = numbers(40, 37)
    a, b = field(data, make), filled((40, 37), make)

    @sg.kernel
    def run(a: sg.Template, b: sg.Template, row: int, column: int, rows: int, columns: int):  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=n)
        for _ in range(n):
            t = tile.eye()
            t[:] = a[row : row + rows, column : column + columns]
            b[row + 1 : row + 1 + n, 2 : 2 + n] = t

    slices = ((0, 0, n, n), (3, 4, n, n), (30, 31, n, n), (2, 1, 5, 7), (5, 5, 0, 3), (1, 2, n + 9, n + 9), (0, 0, n, 1))
    for row, column, rows, columns in slices:
        b.fill(-1)
        run(a, b, row, column, rows, columns)
        loaded, wanted = np.eye(n, dtype="f4"), np.full((40 + n, 37 + n), -1, "f4")
        part = data[row : row + min(rows, n), column : column + min(columns, n)]
        loaded[: part.shape[0], : part.shape[1]] = part
        wanted[row + 1 : row + 1 + n, 2 : 2 + n] = loaded
        np.testing.assert_array_equal(b.to_numpy(), wanted[:40, :37])


@pytest.mark.vulkan_or_wgpu
def test_slices_with_steps_and_unsigned_or_negative_starts(arch: str) -> None:
    n, data = 16, numbers(40, 37)
    a, out = field(data), filled((4, n, n))

    @sg.kernel
    def run(a: sg.Template, out: sg.Template, start: int, unsigned: sg.u32):  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=n)
        for _ in range(n):
            t = Tile16x16.zeros()
            t[:] = a[start : start + n, start : start + n]
            out[0, 0:n, 0:n] = t
            t = Tile16x16.zeros()
            t[:] = a[unsigned : unsigned + n, unsigned : unsigned + n]
            out[1, 0:n, 0:n] = t
            t = Tile16x16.zeros()
            t[:] = a[0:40:3, 1:37:4]
            out[2, 0:n, 0:n] = t
            t = Tile16x16.zeros()
            t[:] = a[unsigned + 30 : unsigned + 60, 0:n]
            out[3, 0:n, 0:n] = t

    run(a, out, -5, 25)
    wanted = np.zeros((4, n, n), "f4")
    wanted[0, 5:, 5:] = data[: n - 5, : n - 5]
    wanted[1, :15, :12] = data[25:, 25:]
    wanted[2, :14, :9] = data[::3, 1::4]
    np.testing.assert_array_equal(out.to_numpy(), wanted)


def test_groups_with_more_threads_than_rows(arch: str) -> None:
    """Threads beyond the rows of a tile load nothing, store nothing, and change nothing, however long the slices are."""
    data = numbers(40, 37)
    a, b = field(data), filled((40, 37))
    m = data[:16, :16] @ data[:16, :16].T + np.eye(16, dtype="f4")
    c, lower = field(m), filled((40, 37))

    @sg.kernel
    def run(a: sg.Template, b: sg.Template, c: sg.Template, lower: sg.Template):  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=32)
        for _ in range(32):
            t = Tile16x16.zeros()
            t[:] = a[0:32, 0:16]
            t += sg.outer(a[0:32, 20], a[0:32, 21])
            b[2:34, 1:17] = t
            t[:] = c[0:16, 0:16]
            t.cholesky_(1e-6)
            lower[0:40, 0:16] = t

    run(a, b, c, lower)
    wanted = np.full((40, 37), -1, "f4")
    wanted[2:18, 1:17] = data[:16, :16] + np.outer(data[:16, 20], data[:16, 21])
    np.testing.assert_allclose(b.to_numpy(), wanted, rtol=1e-6)
    found = lower.to_numpy()
    np.testing.assert_allclose(np.tril(found[:16, :16]), np.linalg.cholesky(m), rtol=1e-4, atol=1e-5)
    assert (found[16:] == -1).all()


def run_on_tile(size: int, body: Any, a: Any, b: Any, out: Any, groups: int = 1) -> None:
    @sg.kernel
    def run(a: sg.Template, b: sg.Template, out: sg.Template):  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=size)
        for i in range(groups * size):
            body(a, b, out, i // size)

    run(a, b, out)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("tile", [Tile16x16, Tile32x32], ids=str)
def test_products(arch: str, tile: Any) -> None:
    """A product of matrices, column by column; columns are slices of memory, and numbers of each thread."""
    n = tile.SIZE
    x, y = numbers(n, 11), numbers(n, 11, seed=2)
    out = filled((n, n))

    @sg.func
    def body(a, b, out, group):  # type: ignore[no-untyped-def]
        t = tile.eye()
        for k in range(11):
            t += sg.outer(a[0:n, k], b[0:n, k])
        v = a[0:5, 3]
        t -= sg.outer(v, v)
        t -= sg.outer(t.r[2], 2.0)
        out[0:n, 0:n] = t

    run_on_tile(n, body, field(x), field(y), out)
    wanted = np.eye(n) + x.astype("f8") @ y.astype("f8").T
    column = np.where(np.arange(n) < 5, x[:, 3], 0)
    wanted -= np.outer(column, column)
    wanted -= 2 * wanted[:, 2:3]
    np.testing.assert_allclose(out.to_numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("tile", [Tile16x16, pytest.param(Tile32x32, marks=pytest.mark.long)], ids=str)
def test_factors(arch: str, tile: Any) -> None:
    """Three groups, each with its own matrix; the upper triangle stays."""
    n = tile.SIZE
    m = numbers(3, n, n).astype("f8")
    spd = (m @ m.transpose(0, 2, 1) + np.eye(n)).astype("f4")
    right = numbers(3, n, n, seed=3)
    a, b, out = field(spd), field(right), filled((3, n, n))

    @sg.func
    def body(a, b, out, group):  # type: ignore[no-untyped-def]
        factor = tile.zeros(dtype=sg.f32)
        factor[:] = a[group, 0:n, 0:n]
        factor.cholesky_(1e-6)
        x = tile.zeros()
        x[:] = b[group, 0:n, 0:n]
        factor.solve_triangular_(x)
        a[group, 0:n, 0:n] = factor
        out[group, 0:n, 0:n] = x

    run_on_tile(n, body, a, b, out, 3)
    for k in range(3):
        lower = np.linalg.cholesky(spd[k].astype("f8"))
        np.testing.assert_allclose(a.to_numpy()[k], lower + np.triu(spd[k], 1), rtol=2e-4, atol=2e-4)
        x = np.linalg.solve(lower, right[k].T).T
        np.testing.assert_allclose(out.to_numpy()[k], x, rtol=1e-3, atol=1e-3 * np.abs(x).max())


@pytest.mark.vulkan_or_wgpu
def test_what_is_not_positive_is_raised_to_eps(arch: str) -> None:
    n = 16
    a, out = field(np.diag(np.arange(-3.0, 13.0))), filled((n, n))

    @sg.func
    def body(a, b, out, group):  # type: ignore[no-untyped-def]
        t = Tile16x16.zeros()
        t[:] = a[0:n, 0:n]
        t.cholesky_(0.25)
        out[0:n, 0:n] = t
        u = t  # a copy
        u.eye_()

    run_on_tile(n, body, a, a, out)
    np.testing.assert_allclose(out.to_numpy(), np.diag(np.sqrt(np.maximum(np.arange(-3.0, 13.0), 0.25))), atol=1e-6)


@pytest.mark.vulkan_or_wgpu
def test_eps_of_each_row(arch: str) -> None:
    """The pivot of a row takes the eps of its own thread."""
    n = 16
    floors = np.linspace(0.5, 2, n, dtype="f4")
    a, eps, out = field(np.eye(n)), field(floors), filled((n, n))

    @sg.func
    def body(a, eps, out, group):  # type: ignore[no-untyped-def]
        t = Tile16x16.zeros()
        t[:] = a[0:n, 0:n]
        t.cholesky_(eps[block.thread_idx()])
        out[0:n, 0:n] = t

    run_on_tile(n, body, a, eps, out)
    np.testing.assert_allclose(out.to_numpy(), np.diag(np.sqrt(np.maximum(1, floors))), rtol=1e-6)


@pytest.mark.vulkan_or_wgpu
def test_nan_stays_where_it_counts(arch: str) -> None:
    """A NaN reaches the rows of the factor from its own on, and of a solution its own row only."""
    n, row, column = 16, 9, 4
    m = numbers(n, n) @ numbers(n, n).T + np.eye(n, dtype="f4")
    right = numbers(n, n, seed=3)
    lower = np.linalg.cholesky(m.astype("f8"))
    broken, broken_right = m.copy(), right.copy()
    broken[row, column] = broken_right[row, column] = np.nan
    a, b, out = field(broken), field(broken_right), field(lower.astype("f4"))

    @sg.func
    def body(a, b, out, group):  # type: ignore[no-untyped-def]
        t, x = Tile16x16.zeros(), Tile16x16.zeros()
        t[:] = out[0:n, 0:n]
        x[:] = b[0:n, 0:n]
        t.solve_triangular_(x)
        b[0:n, 0:n] = x
        t[:] = a[0:n, 0:n]
        t.cholesky_(1e-6)
        a[0:n, 0:n] = t

    run_on_tile(n, body, a, b, out)
    factor, x = np.tril(a.to_numpy()), b.to_numpy()
    np.testing.assert_allclose(factor[:row], lower[:row], rtol=1e-4, atol=1e-5)
    assert np.isnan(factor[row, column]) and np.isnan(factor[row + 1 :, row]).all()
    whole = [k for k in range(n) if k != row]
    np.testing.assert_allclose(x[whole], np.linalg.solve(lower, right.T).T[whole], rtol=1e-3, atol=1e-3)
    assert np.isfinite(x[row, :column]).all() and np.isnan(x[row, column:]).all()


@pytest.mark.parametrize("dtype", [sg.f32, sg.f64], ids=str)
@pytest.mark.parametrize("tile", [Tile16x16, pytest.param(Tile32x32, marks=pytest.mark.long)], ids=str)
@pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")  # wgpu has no f64
def test_systems_of_sizes_that_are_known_at_run_time(arch: str, tile: Any, dtype: Any) -> None:
    """Each group factorises and solves a system of its own size, none of which fills its tiles, in loops that it alone runs that often."""
    n, sizes, most = tile.SIZE, np.array([1, 9, 17, 40], "i4"), 40
    rng = np.random.default_rng(2)
    m = rng.uniform(-1, 1, (len(sizes), most, most))
    spd = m @ m.transpose(0, 2, 1) + np.eye(most)
    a, counts = field(spd, sg.ndarray, dtype), field(sizes, sg.ndarray, sg.i32)

    @sg.kernel
    def run(a: sg.types.NDArray[dtype, 3], counts: sg.types.NDArray[sg.i32, 1]):  # type: ignore[no-untyped-def, valid-type]
        sg.loop_config(block_dim=n)
        for i in range(a.shape[0] * n):
            g = i // n
            size = counts[g]
            if size > 0:
                for k in range((size + n - 1) // n):
                    j = k * n
                    diagonal = tile.eye(dtype)
                    diagonal[:] = a[g, j:size, j:size]
                    for c in range(j):
                        diagonal -= sg.outer(a[g, j:size, c], a[g, j:size, c])
                    diagonal.cholesky_(1e-10)
                    a[g, j:size, j:size] = diagonal
                    for r in range(k + 1, (size + n - 1) // n):
                        below = tile.zeros(dtype)
                        below[:] = a[g, r * n : size, j : j + n]
                        for c in range(j):
                            below -= sg.outer(a[g, r * n : size, c], a[g, j:size, c])
                        diagonal.solve_triangular_(below)
                        a[g, r * n : size, j : j + n] = below
                    block.sync()

    run(a, counts)
    tolerance = 1e-3 if dtype is sg.f32 else 1e-11
    for found, matrix, size in zip(a.to_numpy(), spd, sizes):
        lower = np.linalg.cholesky(matrix[:size, :size])
        np.testing.assert_allclose(np.tril(found[:size, :size]), lower, rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(found[size:], matrix[size:].astype(dtype.np))


@pytest.mark.vulkan_or_wgpu
def test_shared_memory_and_two_sizes(arch: str) -> None:
    """A tile of 16 rows in a group of 32 threads; shared arrays that are narrower than a tile."""
    data = numbers(32, 32)
    a, out = field(data), filled((2, 32, 32))

    @sg.func
    def body(a, b, out, group):  # type: ignore[no-untyped-def]
        shared = block.SharedArray((32, 20), sg.f32)
        large, small = Tile32x32.zeros(), Tile16x16.eye()
        large[:] = a[0:32, 0:32]
        shared[0:32, 0:32] = large
        block.sync()
        small[:] = shared[4:20, 10:26]
        small -= sg.outer(shared[1:17, 3], shared[2:18, 4])
        large.eye_()
        large[:] = shared[0:32, 0:32]
        out[0, 0:32, 0:32] = large
        out[1, 0:16, 0:16] = small

    run_on_tile(32, body, a, a, out)
    large, small = np.eye(32, dtype="f4"), np.eye(16, dtype="f4")
    large[:, :20] = data[:, :20]
    small[:, :10] = data[4:20, 10:20]
    found = out.to_numpy()
    np.testing.assert_array_equal(found[0], large)
    np.testing.assert_allclose(found[1, :16, :16], small - np.outer(data[1:17, 3], data[2:18, 4]), rtol=1e-6, atol=1e-6)
    assert (found[1, 16:] == -1).all()
    assert (found[1, :, 16:] == -1).all()


@pytest.mark.archs("interpreter", "cpu", "cuda")
def test_blocked_cholesky_in_f64(arch: str) -> None:
    """A matrix of 44 x 44 in tiles of 16, whose last ones are cut off."""
    n, size, tiles = 44, 16, 3
    m = np.random.default_rng(5).uniform(-1, 1, (n, n))
    spd = m @ m.T + np.eye(n)
    a = field(spd, dtype=sg.f64)

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=size)
        for _ in range(size):
            for j in range(tiles):
                diagonal = Tile16x16.eye(dtype=sg.f64)
                diagonal[:] = a[j * size : n, j * size : n]
                for k in range(j * size):
                    diagonal -= sg.outer(a[j * size : n, k], a[j * size : n, k])
                diagonal.cholesky_(1e-12)
                a[j * size : n, j * size : n] = diagonal
                for i in range(j + 1, tiles):
                    below = Tile16x16.zeros(dtype=sg.f64)
                    below[:] = a[i * size : n, j * size : n]
                    for k in range(j * size):
                        below -= sg.outer(a[i * size : n, k], a[j * size : n, k])
                    diagonal.solve_triangular_(below)
                    a[i * size : n, j * size : n] = below
                block.sync()

    run()
    np.testing.assert_allclose(np.tril(a.to_numpy()), np.linalg.cholesky(spd), rtol=1e-10, atol=1e-10)


@pytest.mark.archs("cpu", "vulkan")
def test_debug_mode(arch: str) -> None:
    """Slices of tiles may be larger than what there is; other elements are still checked."""
    sg.init(arch=arch, debug=True)
    a = field(numbers(20, 20))

    @sg.kernel
    def run(at: int):  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=16)
        for _ in range(16):
            t = Tile16x16.zeros()
            t[:] = a[10:26, 10:26]
            a[10:26, 10:26] = t
            part = a[0:30, 0:30]
            part[at, 0] = 1.0

    run(3)
    with pytest.raises(sg.SpirogradAssertionError, match=r"index \(25, 0\) out of range"):
        run(25)
        sg.sync()


@pytest.mark.archs("cpu")
def test_refusals(arch: str) -> None:
    a, whole = field(numbers(32, 32)), sg.field(sg.i32, (32, 32))

    def refused(message: str, body: Any, size: int = 16, count: int = 16) -> None:
        @sg.kernel
        def run():  # type: ignore[no-untyped-def]
            sg.loop_config(block_dim=size)
            for _ in range(count):
                t = Tile16x16.zeros()
                body(t)

        with pytest.raises(sg.SpirogradCompilationError, match=message):
            run()

    @sg.func
    def nothing(t):  # type: ignore[no-untyped-def]
        t.eye_()

    @sg.func
    def from_element(t):  # type: ignore[no-untyped-def]
        t[:] = a[0, 1]

    @sg.func
    def part(t):  # type: ignore[no-untyped-def]
        t[0:4] = a[0:16, 0:16]

    @sg.func
    def integers(t):  # type: ignore[no-untyped-def]
        t[:] = whole[0:16, 0:16]

    @sg.func
    def column(t):  # type: ignore[no-untyped-def]
        a[0:16, 2] = t

    @sg.func
    def factor(t):  # type: ignore[no-untyped-def]
        t *= sg.outer(1.0, 2.0)

    @sg.func
    def no_column(t):  # type: ignore[no-untyped-def]
        t -= sg.outer(a[0:16, 0:16], 2.0)

    @sg.func
    def upper(t):  # type: ignore[no-untyped-def]
        t.solve_triangular_(t, False)

    @sg.func
    def sizes(t):  # type: ignore[no-untyped-def]
        u = Tile16x16.zeros(sg.i32)
        u.eye_()

    @sg.func
    def halves(t):  # type: ignore[no-untyped-def]
        u = Tile16x16.zeros(sg.f16)
        u.add_product_(u, u)

    @sg.func
    def factor_of_halves(t):  # type: ignore[no-untyped-def]
        u = Tile16x16.zeros(sg.f16)
        u.cholesky_(0.0)

    @sg.func
    def number(t):  # type: ignore[no-untyped-def]
        t.add_product_(t, 2.0)

    refused("tiles of f16 and f16 have no product of f16", halves)
    refused("`cholesky_` takes tiles of f32 and f64", factor_of_halves)
    refused("a product has two tiles of 16 rows", number)
    refused("needs groups of 16 to 32 threads, and those of this loop have 8", nothing, 8)
    refused("needs groups of 16 to 32 threads, and those of this loop have 64", nothing, 64)
    refused("20 iterations leave a group with fewer threads", nothing, 16, 20)
    refused("a tile is loaded from a slice with two axes", from_element)
    refused("a tile is loaded as a whole", part)
    refused("tiles are loaded from and stored to memory of floats", integers)
    refused("a tile is stored to a slice with two axes", column)
    refused("an outer product is added to, or subtracted from, a tile", factor)
    refused("`outer` takes numbers, or slices with one axis", no_column)
    refused("solves with lower triangles only", upper)
    refused("a Tile16x16 is of f16, f32 or f64, not of i32", sizes)


@pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")  # wgpu has no f64
def test_products_in_groups_that_lack_threads(arch: str) -> None:
    """How many threads there are is known at run time only: the last group has those of the rows, and no others."""
    sg.init(arch=arch)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 2, 16, 16))
    a, b, c = field(x, dtype=sg.f64), field(y, dtype=sg.f64), field(0 * x, dtype=sg.f64)

    @sg.kernel
    def run(n: sg.i32, a: sg.Template, b: sg.Template, c: sg.Template):  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=32)
        for i in range(n):
            g = i // 32
            left, right, t = Tile16x16.zeros(sg.f64), Tile16x16.zeros(sg.f64), Tile16x16.zeros(sg.f64)
            left[:] = a[g, 0:16, 0:16]
            right[:] = b[g, 0:16, 0:16]
            t.add_product_(left, right)
            c[g, 0:16, 0:16] = t

    run(48, a, b, c)
    np.testing.assert_allclose(c.to_numpy(), x @ y, rtol=1e-13, atol=1e-13)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("threads", [16, pytest.param(32, marks=pytest.mark.long)])
@pytest.mark.parametrize("tile", [Tile16x16, pytest.param(Tile32x32, marks=pytest.mark.long)], ids=str)
def test_products_of_tiles(arch: str, tile: Any, threads: int) -> None:
    check_products(tile, max(threads, tile.SIZE), sg.f32)


@pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")  # wgpu has no f64, and may have no f16
@pytest.mark.parametrize(
    ("dtype", "tile"), [(sg.f64, Tile16x16), (sg.f16, Tile16x16), pytest.param(sg.f64, Tile32x32, marks=pytest.mark.long)]
)
def test_products_of_wide_and_narrow_tiles(arch: str, tile: Any, dtype: Any) -> None:
    """On CUDA and the interpreter by an instruction for matrices."""
    check_products(tile, 32, dtype)


def check_products(tile: Any, threads: int, dtype: Any) -> None:
    n = tile.SIZE
    x, y, z = (numbers(2, n, n, seed=k).astype(dtype.np) for k in (1, 2, 3))
    total = sg.f32 if dtype is sg.f16 else dtype
    a, b, c = field(x, dtype=dtype), field(y, dtype=dtype), field(z, dtype=total)

    @sg.kernel
    def run(a: sg.Template, b: sg.Template, c: sg.Template):  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=threads)
        for i in range(2 * threads):
            g = i // threads
            left, right, t = tile.zeros(dtype), tile.zeros(dtype), tile.zeros(total)
            left[:] = a[g, 0:n, 0:n]
            right[:] = b[g, 0:n, 0:n]
            t[:] = c[g, 0:n, 0:n]
            t.add_product_(left, right)
            for _ in range(2):
                t.subtract_product_(right, left, transposed=True)
            c[g, 0:n, 0:n] = t

    run(a, b, c)
    x, y, z = (m.astype("f8") for m in (x, y, z))
    wanted = z + x @ y - 2 * y @ x.transpose(0, 2, 1)
    np.testing.assert_allclose(c.to_numpy(), wanted, rtol=1e-13 if dtype is sg.f64 else 1e-5, atol=1e-13 if dtype is sg.f64 else 2e-5)
