"""Library kernels over fields and ndarrays: scans, reductions, sorting, selections; against NumPy."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

import spirograd as sg
from spirograd import algorithms
from spirograd.algorithms import checks_and_scratch, one_sweep, scan_passes, sorting

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]

SIZES = [0, 1, 2, 255, 2049, pytest.param(70_001, marks=pytest.mark.long)]


def made(values, dtype, kind=sg.ndarray):
    x = kind(dtype, max(len(values), 1)) if len(values) == 0 else kind(dtype, len(values))
    if len(values):
        x.from_numpy(values)
    return x


def numbers(n, dtype, low=-1000, high=1000):
    rng = np.random.default_rng(n)
    if dtype.is_float:
        return rng.normal(size=n).astype(dtype.np)
    return rng.integers(max(low, dtype.min), min(high, dtype.max), n).astype(dtype.np)


@pytest.mark.parametrize("kind", [sg.field, sg.ndarray])
@pytest.mark.parametrize("n", [1, 2, 255, 2049, 5000])
def test_prefix_sums(n, kind):
    a = numbers(n, sg.i32)
    x = made(a, sg.i32, kind)
    executor = algorithms.PrefixSumExecutor(n)
    executor.run(x)
    assert (x.to_numpy() == np.cumsum(a)).all()
    executor.run(x)
    assert (x.to_numpy() == np.cumsum(np.cumsum(a))).all()


@pytest.mark.parametrize("n", [1, 300, 2049])
@pytest.mark.parametrize(("op", "accumulate"), [("add", np.add), ("max", np.maximum), ("min", np.minimum)])
def test_scans(n, op, accumulate):
    a = numbers(n, sg.i32)
    x, out = made(a, sg.i32), sg.ndarray(sg.i32, n)
    algorithms.inclusive_scan(x, out, op)
    wanted = accumulate.accumulate(a)
    assert (out.to_numpy() == wanted).all()
    assert (x.to_numpy() == a).all()
    algorithms.exclusive_scan(x, out, op)
    assert (out.to_numpy()[1:] == wanted[:-1]).all()
    assert out.to_numpy()[0] == {"add": 0, "max": -(2**31), "min": 2**31 - 1}[op]
    assert algorithms.reduce(x, op) == accumulate.reduce(a)


# Devices whose groups go on while others wait for them; llvmpipe ends the loop of one that waits for long.
SIDE_BY_SIDE = ("interpreter", "cpu", "cuda")


@pytest.fixture
def one_pass(monkeypatch):
    """Scans of more than one tile look back, as on CUDA."""
    monkeypatch.setattr(scan_passes, "has_groups", lambda: True)
    monkeypatch.setattr(scan_passes, "runs_side_by_side", lambda: True)


@pytest.mark.usefixtures("one_pass")
@pytest.mark.archs(*SIDE_BY_SIDE)
@pytest.mark.parametrize(("op", "dtype"), [("add", sg.i32), ("max", sg.f32), ("mul", sg.u32)])
@pytest.mark.parametrize("n", [2049, 6144, 6145, 12_300, pytest.param(300_000, marks=pytest.mark.long)])
def test_scans_in_one_pass(n, op, dtype):
    a = numbers(n, dtype)
    x, out = made(a, dtype), sg.ndarray(dtype, n)
    accumulate = {"add": np.add, "max": np.maximum, "mul": np.multiply}[op].accumulate
    wanted = accumulate(a, dtype=a.dtype)
    for _ in range(2):  # the second time in scratch memory that is there
        algorithms.inclusive_scan(x, out, op)
        assert (out.to_numpy() == wanted).all()
    algorithms.exclusive_scan(x, None, op)
    assert (x.to_numpy()[1:] == wanted[:-1]).all()
    assert x.to_numpy()[0] == {"add": 0, "max": -np.inf, "mul": 1}[op]


@pytest.mark.usefixtures("one_pass")
@pytest.mark.archs(*SIDE_BY_SIDE)
def test_order_of_a_scan_in_one_pass():
    """A function for which the order of its operands matters."""

    @sg.func
    def last_nonzero(a, b):
        return sg.select(b != 0, b, a)

    n = 20_000
    a = numbers(n, sg.i32) * (np.arange(n) % 4999 == 0)
    x = made(a.astype(np.int32), sg.i32)
    algorithms.inclusive_scan(x, op=last_nonzero)
    wanted = a.copy()
    for k in range(1, n):
        wanted[k] = wanted[k] or wanted[k - 1]
    assert (x.to_numpy() == wanted).all()


def test_scan_by_a_function():
    @sg.func
    def last_nonzero(a, b):
        return sg.select(b != 0, b, a)

    a = numbers(3000, sg.i32) * (np.arange(3000) % 7 == 0)
    x = made(a.astype(np.int32), sg.i32)
    algorithms.inclusive_scan(x, op=last_nonzero)
    wanted = a.copy()
    for k in range(1, len(a)):
        wanted[k] = wanted[k] or wanted[k - 1]
    assert (x.to_numpy() == wanted).all()


def test_sums_of_floats():
    a = numbers(5000, sg.f32)
    x = made(a, sg.f32)
    algorithms.inclusive_scan(x)
    assert np.allclose(x.to_numpy(), np.cumsum(a.astype(np.float64)), atol=1e-3)


@pytest.mark.parametrize("dtype", [sg.i32, sg.u32, sg.f32])
@pytest.mark.parametrize("n", [1, 2, 255, 2049, 6000])
def test_sort(n, dtype):
    a = numbers(n, dtype)
    x = made(a, dtype)
    algorithms.parallel_sort(x)
    assert (x.to_numpy() == np.sort(a)).all()
    algorithms.parallel_sort(x)
    assert (x.to_numpy() == np.sort(a)).all()


@pytest.mark.parametrize("dtype", [sg.i64, sg.f64])
@pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")  # wgpu on some devices has no 64-bit types
def test_sort_of_wide_keys(dtype):
    a = numbers(3000, dtype, -(2**40), 2**40)
    x = made(a, dtype)
    algorithms.parallel_sort(x)
    assert (x.to_numpy() == np.sort(a)).all()


@pytest.fixture
def one_sweep_of_few(monkeypatch):
    """Sorts look back, as on CUDA, over tiles of 256 keys, where there are more than 512."""
    monkeypatch.setattr(sorting, "has_groups", lambda: True)
    monkeypatch.setattr(sorting, "runs_side_by_side", lambda: True)
    monkeypatch.setattr(one_sweep, "_MOST", 1)
    monkeypatch.setattr(one_sweep, "_MOST_ALONE", 2)


@pytest.mark.usefixtures("one_sweep_of_few")
@pytest.mark.parametrize(("dtype", "n"), [(sg.i32, 2), (sg.i8, 512), (sg.f32, 520), pytest.param(sg.f64, 5000, marks=pytest.mark.long)])
@pytest.mark.archs(*SIDE_BY_SIDE)  # and counters of 32 subgroups, as on llvmpipe, leave no shared memory
def test_sort_in_one_sweep(dtype, n):
    a = numbers(n, dtype, -(2**31), 2**31 - 1)
    keys, values = made(a, dtype), made(np.arange(n, dtype=np.float32), sg.f32)
    for _ in range(2):  # the second time in scratch memory that is there, with few digits
        order, places = np.argsort(a, kind="stable"), sg.ndarray(sg.i32, n)
        algorithms.argsort(keys, places)
        assert (places.to_numpy() == order).all()
        assert (keys.to_numpy() == a).all()
        algorithms.parallel_sort(keys, values)
        assert (keys.to_numpy() == a[order]).all()
        assert (values.to_numpy() == order).all()
        a = (a % 3).astype(a.dtype)
        keys.from_numpy(a)
        values.from_numpy(np.arange(n, dtype=np.float32))


@pytest.mark.parametrize("dtype", [sg.u1, sg.f16, sg.i8, sg.u16])
@pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")  # wgpu has no narrow types
def test_sort_of_narrow_keys(dtype):
    n = 300
    a = numbers(n, dtype, -1000, 2 if dtype is sg.u1 else 1000)
    if dtype is sg.f16:
        a[:4] = 0.0, -0.0, np.inf, -np.inf
    keys, order = made(a, dtype), sg.ndarray(sg.i32, n)
    algorithms.argsort(keys, order)
    wanted = np.argsort(a, kind="stable")
    assert (order.to_numpy() == wanted).all()
    algorithms.parallel_sort(keys)
    assert (keys.to_numpy() == a[wanted]).all()


@pytest.mark.parametrize("kind", [sg.field, sg.ndarray])
def test_sort_is_stable(kind):
    n = 5000
    a = numbers(n, sg.i32, -5, 5)
    keys, values = made(a, sg.i32, kind), made(np.arange(n, dtype=np.float32), sg.f32, kind)
    algorithms.parallel_sort(keys, values)
    order = np.argsort(a, kind="stable")
    assert (keys.to_numpy() == a[order]).all()
    assert (values.to_numpy() == order).all()


@pytest.mark.archs("vulkan", "wgpu")
def test_sort_with_little_shared_memory(session):
    """16 KiB, the least that WebGPU and Vulkan promise."""
    session.device.caps = replace(session.device.caps, shared_memory=16 << 10)
    n = 1100
    a = numbers(n, sg.f64)
    a[::3] = np.round(a[::3]) + 0.0  # no -0.0, which comes before
    keys, values = made(a, sg.f64), made(np.arange(n, dtype=np.float32), sg.f32)
    algorithms.parallel_sort(keys, values)
    order = np.argsort(a, kind="stable")
    assert (keys.to_numpy() == a[order]).all()
    assert (values.to_numpy() == order).all()


def test_argsort():
    a = numbers(3000, sg.f32)
    keys, out = made(a, sg.f32), sg.ndarray(sg.i32, 3000)
    algorithms.argsort(keys, out)
    assert (out.to_numpy() == np.argsort(a, kind="stable")).all()
    assert (keys.to_numpy() == a).all()


def test_selections():
    n = 3000
    a = numbers(n, sg.i32, 0, 4)
    x, out, counts = made(a, sg.i32), sg.ndarray(sg.i32, n), sg.ndarray(sg.i32, n)
    flags = made((a > 1).astype(np.int32), sg.i32)
    count = algorithms.select(x, flags, out)
    assert (out.to_numpy()[:count] == a[a > 1]).all()
    assert count == (a > 1).sum()
    starts = np.flatnonzero(np.diff(a, prepend=a[0] - 1))
    assert algorithms.unique(x, out) == len(starts)
    assert (out.to_numpy()[: len(starts)] == a[starts]).all()
    assert algorithms.run_length_encode(x, out, counts) == len(starts)
    assert (counts.to_numpy()[: len(starts)] == np.diff(starts, append=n)).all()
    bins = sg.ndarray(sg.i32, 3)
    algorithms.histogram(x, bins)
    assert (bins.to_numpy() == np.bincount(a, minlength=4)[:3]).all()


def test_arrays_that_do_not_fit():
    x = sg.field(sg.i32, (4, 4))
    with pytest.raises(sg.SpirogradTypeError, match="`keys`: expected a one-dimensional field or ndarray of scalars"):
        algorithms.parallel_sort(x)
    with pytest.raises(sg.SpirogradValueError, match="`values` has 3 elements, and 4 are needed"):
        algorithms.parallel_sort(sg.ndarray(sg.i32, 4), sg.ndarray(sg.i32, 3))
    with pytest.raises(sg.SpirogradTypeError, match=r"got an ndarray of f32 of shape \(2, 3\)"):
        algorithms.parallel_sort(sg.ndarray(sg.f32, (2, 3)))
    with pytest.raises(sg.SpirogradValueError, match="there is no operation 'mean'"):
        algorithms.reduce(sg.ndarray(sg.i32, 4), "mean")
    for length in (-1, "a", 2.5, True):
        with pytest.raises(sg.SpirogradValueError, match="takes the length of its arrays, an integer from 0 on"):
            algorithms.PrefixSumExecutor(length)


@pytest.mark.archs("cpu")
@pytest.mark.parametrize(
    ("dtype", "start"), [(sg.i32, 1.5), (sg.i32, 1 << 31), (sg.u8, -1), (sg.i64, float("inf")), (sg.u32, float("nan"))]
)
def test_starts_that_elements_cannot_be(dtype, start):
    with pytest.raises(sg.SpirogradValueError, match=rf"`start`: .* is no {dtype}, the type of the elements"):
        algorithms.exclusive_scan(sg.ndarray(dtype, 4), start=start)


def test_least_and_greatest_skip_nan():
    a = np.array([np.nan, 3, np.nan, -2, np.inf, np.nan], "f4")
    x, y = made(a, sg.f32), sg.ndarray(sg.f32, 6)
    assert algorithms.reduce(x, "min") == -2 and algorithms.reduce(x, "max") == np.inf
    algorithms.inclusive_scan(x, y, "max")
    assert np.array_equal(y.to_numpy(), np.fmax.accumulate(a), equal_nan=True)


SPECIAL = [np.nan, 2.0, -np.inf, 0.0, -0.0, np.inf, -np.nan, -1.0, 0.0, -0.0]


@pytest.mark.parametrize("dtype", [sg.f32, pytest.param(sg.f16, marks=pytest.mark.long)])
def test_order_of_floats(dtype):
    """NaN of either sign comes last, zeros of both signs are equal; equal keys keep their order."""
    a = np.array(SPECIAL * 40, dtype.np)
    keys, values, places = made(a, dtype), made(np.arange(len(a), dtype=np.int32), sg.i32), sg.ndarray(sg.i32, len(a))
    order = np.argsort(a, kind="stable")
    algorithms.argsort(keys, places)
    algorithms.parallel_sort(keys, values)
    assert (places.to_numpy() == order).all() and (values.to_numpy() == order).all()
    got, wanted = keys.to_numpy(), a[order]
    assert ((got == wanted) | np.isnan(wanted)).all() and (np.isnan(got) == np.isnan(wanted)).all()
    assert (np.signbit(got) == np.signbit(wanted))[~np.isnan(wanted)].all()


def test_views():
    """What surrounds them stays as it is."""
    a = numbers(70, sg.i32)
    x, sums = made(a, sg.i32), sg.ndarray(sg.i32, (30, 2))
    algorithms.parallel_sort(x[3:63:2])
    a[3:63:2].sort()
    assert (x.to_numpy() == a).all()
    algorithms.inclusive_scan(x[3:63:2], sums[:, 1])
    assert (sums.to_numpy()[:, 1] == np.cumsum(a[3:63:2])).all() and not sums.to_numpy()[:, 0].any()
    assert algorithms.reduce(x[::-3], "max") == a[::-3].max()
    algorithms.inclusive_scan(x[2:6], x[2:6])
    a[2:6] = np.cumsum(a[2:6])
    assert (x.to_numpy() == a).all()


@pytest.mark.archs("cpu")
def test_arrays_that_overlap():
    x, f = sg.ndarray(sg.i32, 20), sg.field(sg.i32, 20)
    algorithms.parallel_sort(x[::2], x[1::2])
    algorithms.parallel_sort(x[:10], x[10:])
    algorithms.histogram(x[:19], x[19:])
    algorithms.histogram(x, x[3:3])
    for call in (
        lambda: algorithms.parallel_sort(x[:10], x[9:19]),
        lambda: algorithms.parallel_sort(f, f),
        lambda: algorithms.argsort(x, x),
        lambda: algorithms.inclusive_scan(x[:10], x[1:11]),
        lambda: algorithms.select(x, f, x),
        lambda: algorithms.unique(x[::-1], x),
        lambda: algorithms.histogram(x, x[3:5]),
        lambda: algorithms.histogram(x[18:], x[:19]),
    ):
        with pytest.raises(sg.SpirogradValueError, match=r"overlap: pass memory of its own for each"):
            call()


@pytest.mark.archs("cpu")
def test_views_overlap_where_they_have_common_elements():
    """Also of those that lie between each other, or have steps with a common factor."""
    x, random, overlapping = sg.ndarray(sg.i32, 40), np.random.default_rng(0), 0
    number = np.arange(40)
    for _ in range(300):
        first, step = random.integers(0, 40, 2), random.choice([-6, -4, -3, -1, 1, 2, 3, 4, 6, 8], 2)
        views = [slice(int(begin), None, int(by)) for begin, by in zip(first, step)]
        n = min(len(number[view]) for view in views)
        common = np.intersect1d(*(number[view][:n] for view in views)).size > 0
        overlapping += common
        with pytest.raises(sg.SpirogradValueError, match="overlap") if common else nullcontext():
            checks_and_scratch.check_apart(n, a=x[views[0]], b=x[views[1]])
    assert 30 < overlapping < 270


@pytest.mark.archs("cpu")
def test_threads_have_memory_of_their_own():
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(checks_and_scratch.scratch, "keys", sg.i32, 8).result()
    own = checks_and_scratch.scratch("keys", sg.i32, 8)
    assert own is not other
    assert own is checks_and_scratch.scratch("keys", sg.i32, 5)


@pytest.mark.archs("cpu", "vulkan")
def test_two_threads():
    keys = [np.random.default_rng(seed).integers(0, 1 << 30, 5000).astype(np.int32) for seed in (1, 2)]

    def sorted_often(a):
        x = sg.ndarray(sg.i32, a.size)
        for _ in range(5):
            x.from_numpy(a)
            algorithms.parallel_sort(x)
            assert (x.to_numpy() == np.sort(a)).all()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(sorted_often, keys))
