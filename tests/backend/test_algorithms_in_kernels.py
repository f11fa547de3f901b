"""Reductions, scans, selections and sorts that kernels call, with the signatures of Quadrants, against NumPy."""

import numpy as np
import pytest

from spirograd.compat import quadrants as qd

TYPES = ["f32", "i32", "u32", pytest.param("i64", marks=pytest.mark.archs("cpu", "vulkan", "interpreter"))]
SIZES = [0, 1, 255, 256, 257, 1000, pytest.param(70_000, marks=pytest.mark.archs("cpu", "vulkan"))]
LEVELS = 3


@pytest.fixture(autouse=True)
def started(arch):
    qd.init(arch=arch)


def array_of(numbers, dtype, room=0):
    array = qd.ndarray(dtype, max(len(numbers), 1) + room)
    padded = np.zeros(array.shape, dtype.np)
    padded[: len(numbers)] = numbers
    array.from_numpy(padded)
    return array


def empty(dtype, count):
    return qd.ndarray(dtype, max(int(count), 1))


def numbers_of(n, t, seed=1):
    rng = np.random.default_rng(seed)
    if t == "f32":
        return rng.integers(-50, 50, n).astype(np.float32) / 4
    return rng.integers(0 if t == "u32" else -1000, 1000, n).astype(getattr(qd, t).np)


def bits_of(dtype):
    return qd.u64 if dtype.bits == 64 else qd.u32


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("n", SIZES)
def test_reductions_and_scans(n, t):
    dtype, x = getattr(qd, t), numbers_of(n, t)
    arr, sums, scanned = array_of(x, dtype, room=3), empty(dtype, 3), empty(dtype, n)
    scratch = empty(bits_of(dtype), qd.algorithms.exclusive_scan_scratch_slots(n, LEVELS))

    @qd.kernel
    def run(arr: qd.template(), sums: qd.template(), scanned: qd.template(), scratch: qd.template(), n: qd.i32):
        qd.algorithms.reduce_min(arr, sums, scratch, n, dtype, LEVELS)
        for _ in range(1):
            sums[1] = sums[0]
        qd.algorithms.reduce_max(arr, sums, scratch, n, dtype, LEVELS)
        for _ in range(1):
            sums[2] = sums[0]
        qd.algorithms.reduce_add(arr, sums, scratch, n, dtype, LEVELS)
        qd.algorithms.exclusive_scan_add(arr, scanned, scratch, n, dtype, LEVELS)

    run(arr, sums, scanned, scratch, n)
    if n:
        assert sums.to_numpy().tolist() == [x.sum(dtype=x.dtype), x.min(), x.max()]
        assert (scanned.to_numpy()[:n] == np.concatenate([[0], np.cumsum(x, dtype=x.dtype)[:-1]])).all()
    else:
        assert sums[0] == 0


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_levels_and_scans_of_extremes(levels):
    n = min(200 * levels**2, 256**levels)
    x = numbers_of(n, "i32")
    arr, low, high = array_of(x, qd.i32), empty(qd.i32, n), empty(qd.i32, n)
    scratch = empty(qd.u32, qd.algorithms.exclusive_scan_scratch_slots(n, levels))

    @qd.kernel
    def run(arr: qd.template(), low: qd.template(), high: qd.template(), scratch: qd.template(), n: qd.i32):
        qd.algorithms.exclusive_scan_min(arr, low, scratch, n, qd.i32, levels)
        qd.algorithms.exclusive_scan_max(arr, high, scratch, n, qd.i32, levels)

    run(arr, low, high, scratch, n)
    assert (low.to_numpy()[1:] == np.minimum.accumulate(x)[:-1]).all() and low[0] == 2**31 - 1
    assert (high.to_numpy()[1:] == np.maximum.accumulate(x)[:-1]).all() and high[0] == -(2**31)


@pytest.mark.parametrize("n", SIZES)
def test_selections_and_runs(n):
    x, flags = numbers_of(n, "f32"), numbers_of(n, "i32", 2) % 3
    keys = np.sort(numbers_of(n, "i32", 3) // 40)
    room = qd.algorithms.select_scratch_slots(n)
    count, runs, out = empty(qd.i32, 1), empty(qd.i32, 1), empty(qd.f32, n)
    first, sums, scratch = empty(qd.i32, n), empty(qd.f32, n), empty(qd.u32, room)

    @qd.kernel
    def run(
        arr: qd.template(), flags: qd.template(), out: qd.template(), count: qd.template(), scratch: qd.template(), keys: qd.template(),
        first: qd.template(), sums: qd.template(), runs: qd.template(), n: qd.i32,
    ):  # fmt: skip
        qd.algorithms.select(arr, flags, out, count, scratch, n, LEVELS)
        qd.algorithms.reduce_by_key_add(keys, arr, first, sums, runs, scratch, n, qd.f32, LEVELS)

    run(array_of(x, qd.f32), array_of(flags, qd.i32), out, count, scratch, array_of(keys, qd.i32), first, sums, runs, n)
    chosen = x[flags != 0]
    assert count[0] == len(chosen) and (out.to_numpy()[: len(chosen)] == chosen).all()
    starts = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1)) if n else np.zeros(0, int)
    assert runs[0] == len(starts) and (first.to_numpy()[: len(starts)] == keys[starts]).all()
    if n:
        assert (sums.to_numpy()[: len(starts)] == np.add.reduceat(x, starts)).all()


@pytest.mark.parametrize("t", [*TYPES, pytest.param("f64", marks=pytest.mark.archs("cpu", "vulkan", "interpreter"))])
@pytest.mark.parametrize("n", [1, 257, pytest.param(3000, marks=pytest.mark.archs("cpu", "vulkan"))])
def test_sorts_in_a_loop_of_a_graph(n, t):
    dtype = getattr(qd, t)
    x = numbers_of(n, "f32" if t == "f64" else t).astype(dtype.np)
    keys, values, count, turns = array_of(x, dtype), array_of(np.arange(n), qd.i32), qd.ndarray(qd.i32, ()), qd.ndarray(qd.i32, ())
    scratch = empty(qd.u32, qd.algorithms.sort_scratch_slots(n, 2))
    count.fill(n)
    turns.fill(2)
    bits = dtype.bits

    @qd.kernel(graph=True)
    def run(
        keys: qd.types.ndarray(dtype, 1), other: qd.types.ndarray(dtype, 1), values: qd.types.ndarray(qd.i32, 1),
        others: qd.types.ndarray(qd.i32, 1), scratch: qd.types.ndarray(qd.u32, 1), n: qd.types.ndarray(qd.i32, 0),
        turns: qd.types.ndarray(qd.i32, 0),
    ):  # fmt: skip
        while qd.graph.do_while(turns):
            qd.algorithms.sort(keys, other, values, others, scratch, n, dtype, True, bits, 2)
            turns[()] -= 1

    run(keys, empty(dtype, n), values, empty(qd.i32, n), scratch, count, turns)
    order = np.argsort(x, kind="stable")
    assert (keys.to_numpy() == x[order]).all() and (values.to_numpy() == order).all()


@pytest.mark.archs("cpu")
def test_names_in_python():
    algorithms = qd.algorithms
    assert [algorithms.reduce_scratch_slots(n) for n in (0, 256, 257, 70_000, 1 << 24)] == [1, 1, 2, 276, 65_792]
    assert [algorithms.exclusive_scan_scratch_slots(n, 4) for n in (1, 1000)] == [3, 6]
    assert algorithms.select_scratch_slots(257) >= 259 and algorithms.sort_scratch_slots(257) >= 514
    x, flags, out = array_of([5, 6, 7], qd.i32), array_of([1, 0, 1], qd.i32), empty(qd.i32, 3)
    assert algorithms.select(x, flags, out) == 2 and out.to_numpy()[:2].tolist() == [5, 7]

    @qd.kernel
    def wrong(x: qd.template(), out: qd.template()):
        algorithms.reduce_add(x, out, out, 3, qd.i8, 1)

    with pytest.raises(TypeError, match="numbers of 32 and 64 bits, not i8"):
        wrong(x, out)
