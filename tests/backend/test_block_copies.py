"""Many atomics on few integers: on the CPU, blocks of iterations update copies, which are then added to memory."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg
from spirograd.transforms.tasks import block_copies

KINDS = {
    "add": (sg.atomic_add, np.add, 0),
    "min": (sg.atomic_min, np.minimum, 50),
    "max": (sg.atomic_max, np.maximum, -50),
    "and": (sg.atomic_and, np.bitwise_and, -1),
    "or": (sg.atomic_or, np.bitwise_or, 0),
    "xor": (sg.atomic_xor, np.bitwise_xor, 7),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch) -> None:
    """Blocks of few iterations, so that several threads get some."""
    monkeypatch.setattr(block_copies, "_LEAST_ITERATIONS", 1 << 10)


@pytest.fixture
def n(arch: str) -> int:
    """No multiple of anything."""
    return 3001 if arch in ("interpreter", "python") else 50_021


def has_blocks(arch: str, kernel) -> bool:
    return arch == "cpu" and "_blocks" in kernel.ir("offload")


def data(seed: int, bins: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, bins, n).astype(np.int32), rng.integers(-1000, 1000, n).astype(np.int32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("t", [sg.i32, sg.u32, sg.i64], ids=str)
def test_kinds(session, arch: str, n: int, kind: str, t) -> None:
    if arch == "wgpu" and t is sg.i64:
        pytest.skip("no atomics of 64 bits")
    atomic, ufunc, start = KINDS[kind]
    where, what, bins = sg.field(sg.i32, n), sg.field(t, n), sg.field(t, 20)

    @sg.kernel
    def update():
        for i in where:
            atomic(bins[where[i]], what[i])

    index, values = data(0, 20, n)
    values = values.astype(what.to_numpy().dtype)
    expected = np.full(20, start).astype(values.dtype)
    bins.from_numpy(expected)
    where.from_numpy(index)
    what.from_numpy(values)
    for _ in range(2):
        update()
        ufunc.at(expected, index, values)
    np.testing.assert_array_equal(bins.to_numpy(), expected)
    assert has_blocks(arch, update) or arch != "cpu"


def test_arrays_of_any_length(session, arch: str, n: int) -> None:
    """The lengths of arrays decide at each launch: whether they fit into a copy, and whether there are iterations enough."""

    @sg.kernel
    def count(x: sg.types.ndarray(sg.i32, 1), h: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            h[x[i]] += 1

    for bins, length in ((10, n), (10, 100), (10, 0), (1, n), (n, n), (70_000, n)):
        x, _ = data(bins, bins, length)
        h = np.arange(bins, dtype=np.int32)
        expected = h + np.bincount(x, minlength=bins).astype(np.int32)
        count(x, h)
        np.testing.assert_array_equal(h, expected)
    assert has_blocks(arch, count) or arch != "cpu"


def test_bounds_of_a_launch(session, arch: str, n: int) -> None:
    x, h = sg.field(sg.i32, n), sg.field(sg.i32, 8)
    values, _ = data(3, 8, n)
    x.from_numpy(values)

    @sg.kernel
    def count(begin: sg.i32, end: sg.i32):
        for i in range(begin, end):
            h[x[i]] += 1

    for begin, end in ((0, n), (7, n - 5), (n - 3, n), (5, 5), (9, 2)):
        h.fill(0)
        count(begin, end)
        np.testing.assert_array_equal(h.to_numpy(), np.bincount(values[begin : max(begin, end)], minlength=8))
    assert has_blocks(arch, count) or arch != "cpu"


def test_two_axes_components_and_conditions(session, arch: str, n: int) -> None:
    """Some iterations update nothing; elements have two axes and two components."""
    x = sg.field(sg.i32, n)
    h = sg.Vector.field(2, sg.i32, shape=(3, 5))
    values, _ = data(4, 15, n)
    x.from_numpy(values)

    @sg.kernel
    def count():
        for i in x:
            if i % 3 != 0:
                h[x[i] // 5, x[i] % 5][i % 2] += i % 7

    count()
    i = np.arange(n)
    expected = np.zeros((15, 2), np.int64)
    np.add.at(expected, (values[i % 3 != 0], (i % 2)[i % 3 != 0]), (i % 7)[i % 3 != 0])
    np.testing.assert_array_equal(h.to_numpy().reshape(15, 2), expected)
    assert has_blocks(arch, count) or arch != "cpu"


@pytest.mark.archs("cpu")
def test_loops_without_copies(session) -> None:
    """Results of atomics that are used, elements that are read, two kinds of atomics, floats, few iterations, much memory."""
    n = 1 << 16
    x, y, h, f, large = sg.field(sg.i32, n), sg.field(sg.i32, n), sg.field(sg.i32, 8), sg.field(sg.f32, 8), sg.field(sg.i32, 1 << 20)

    @sg.kernel
    def used():
        for i in x:
            y[i] = sg.atomic_add(h[x[i]], 1)

    @sg.kernel
    def read():
        for i in x:
            h[x[i]] += h[0]

    @sg.kernel
    def two_kinds():
        for i in x:
            h[x[i]] += 1
            sg.atomic_max(h[x[i]], 3)

    @sg.kernel
    def floats():
        for i in x:
            f[x[i]] += 1.0

    @sg.kernel
    def few():
        for i in range(100):
            h[x[i]] += 1

    @sg.kernel
    def much():
        for i in x:
            large[x[i]] += 1

    for kernel in (used, read, two_kinds, floats, few, much):
        kernel()
        assert not has_blocks("cpu", kernel), kernel.__name__


@pytest.mark.parametrize("t", [sg.i8, sg.u8, sg.i16, sg.u16], ids=str)
def test_narrow_integers_wrap(session, arch: str, n: int, t) -> None:
    what, where = sg.field(t, n), sg.field(sg.i32, n)
    dtype = what.to_numpy().dtype
    info, rng = np.iinfo(dtype), np.random.default_rng(1)
    values, index = rng.integers(info.min, info.max, n, dtype, endpoint=True), rng.integers(0, 7, n).astype(np.int32)
    what.from_numpy(values)
    where.from_numpy(index)
    for atomic, ufunc in ((sg.atomic_add, np.add), (sg.atomic_min, np.minimum), (sg.atomic_xor, np.bitwise_xor)):
        bins = sg.field(t, 7)

        @sg.kernel
        def update():
            for i in what:
                atomic(bins[where[i]], what[i])

        update()
        expected = np.zeros(7, dtype)
        ufunc.at(expected, index, values)
        np.testing.assert_array_equal(bins.to_numpy(), expected)
        assert has_blocks(arch, update) or arch != "cpu"


def test_a_loop_may_update_what_its_bounds_read(session, arch: str, n: int) -> None:
    """The bounds are those before the loop, in both tasks."""
    left = sg.field(sg.i32, 2)

    @sg.kernel
    def consume():
        for i in range(left[0]):
            left[i % 2] -= 1

    left[0] = n
    consume()
    assert (left[0], left[1]) == (n - (n + 1) // 2, -(n // 2))
    assert has_blocks(arch, consume) or arch != "cpu"


def test_arrays_that_share_memory(session, arch: str, n: int) -> None:
    """Updates of elements that the loop does not read, in the array that it reads."""

    @sg.kernel
    def count(x: sg.types.ndarray(sg.i32, 1), h: sg.types.ndarray(sg.i32, 1)):
        for i in range(100, x.shape[0]):
            h[x[i]] += 1

    x, _ = data(2, 100, n)
    both = sg.ndarray(sg.i32, n)
    both.from_numpy(x)
    count(both, both)
    expected = x.copy()
    np.add.at(expected, x[100:], 1)
    np.testing.assert_array_equal(both.to_numpy(), expected)


@pytest.mark.archs("cpu")
def test_updates_out_of_range_change_nothing(session) -> None:
    n = 1 << 14
    x = sg.field(sg.i32, n)
    h = sg.field(sg.i32, 8)
    values = np.random.default_rng(0).integers(-3, 12, n).astype(np.int32)
    x.from_numpy(values)

    @sg.kernel
    def count():
        for i in x:
            h[x[i]] += 1

    count()
    np.testing.assert_array_equal(h.to_numpy(), np.bincount(values[(values >= 0) & (values < 8)], minlength=8))
