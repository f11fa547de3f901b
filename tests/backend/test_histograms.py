"""Many atomics on few elements: GPUs make them on copies in shared memory first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import spirograd as sg
from spirograd.transforms.tasks import private_copies

pytestmark = pytest.mark.vulkan_or_wgpu

KINDS = {
    "add": (sg.atomic_add, np.add, 0),
    "min": (sg.atomic_min, np.minimum, 5),
    "max": (sg.atomic_max, np.maximum, -5),
    "and": (sg.atomic_and, np.bitwise_and, -1),
    "or": (sg.atomic_or, np.bitwise_or, 0),
    "xor": (sg.atomic_xor, np.bitwise_xor, 7),
}


@pytest.fixture(autouse=True)
def with_copies(session) -> None:
    """On llvmpipe, too."""
    session.device.caps = replace(session.device.caps, cpu_driver=False)


@pytest.fixture
def n(arch: str) -> int:
    """Enough iterations for copies of 20 elements, where there are copies, and no multiple of anything."""
    return 1021 if arch == "interpreter" else 50_021


def data(seed: int, bins: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, bins, n).astype(np.int32), rng.integers(-1000, 1000, n).astype(np.int32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("t", [sg.i32, sg.u32, sg.i8, sg.u16], ids=str)
def test_kinds(session, n: int, kind: str, t) -> None:
    atomic, ufunc, start = KINDS[kind]
    where, what = sg.field(sg.i32, n), sg.field(t, n)
    bins = sg.field(t, 20)

    @sg.kernel
    def update():
        for i in where:
            atomic(bins[where[i]], what[i])

    expected = np.full(20, start).astype(bins.to_numpy().dtype)
    bins.from_numpy(expected)
    for seed in range(2):
        index, values = data(seed, 20, n)
        values = values.astype(expected.dtype)
        where.from_numpy(index)
        what.from_numpy(values)
        update()
        ufunc.at(expected, index, values)
        assert (bins.to_numpy() == expected).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bins", [96, 150, 200])
def test_ranges(session, monkeypatch, kind: str, bins: int) -> None:
    """More elements than a copy has: each workgroup has those of a range. Indices out of range change nothing."""
    device = session.device
    ranged = []
    plan = private_copies._ranged
    monkeypatch.setattr(private_copies, "_ranged", lambda *args: ranged.append(plan(*args)) or ranged[-1])
    monkeypatch.setattr(private_copies, "_LEAST_GROUPS", 4)
    monkeypatch.setattr(private_copies, "_RANGED_SIZE", 64)
    device.caps = replace(device.caps, shared_memory=4 * 33)
    atomic, ufunc, start = KINDS[kind]
    n = 100_003 if device.caps.target.invocations else 1021
    where, what, counts = sg.field(sg.i32, n), sg.field(sg.i32, n), sg.field(sg.i32, bins)

    @sg.kernel(fuse=False)
    def update():
        for i in where:
            atomic(counts[where[i]], what[i])

    expected = np.full(bins, start, np.int32)
    counts.from_numpy(expected)
    for seed in range(2):
        index, values = data(seed, bins, n)
        inside = np.ones(n, bool)
        if device.caps.target.invocations:
            inside[::50] = False
            index[::100], index[50::100] = -1 - seed, bins + seed
        where.from_numpy(index)
        what.from_numpy(values)
        update()
        ufunc.at(expected, index[inside], values[inside])
        assert (counts.to_numpy() == expected).all()
    if device.caps.target.invocations:
        assert [ranges and ranges.count for *_, ranges in ranged] == [-(-bins // 32)]


@pytest.mark.parametrize("bins", [20, 3000])
def test_bounds_of_the_launch(session, bins: int) -> None:
    """How many iterations there are is known when the kernel is launched, if then: small copies."""
    counts, bound = sg.field(sg.i32, bins), sg.field(sg.i32, ())

    @sg.kernel
    def of_an_array(a: sg.types.ndarray(sg.i32, 1)):
        for i in a:
            counts[a[i]] += 1

    @sg.kernel
    def of_a_field(a: sg.types.ndarray(sg.i32, 1)):
        for i in range(bound[None]):
            counts[a[i]] += 1

    expected = np.zeros(bins, np.int32)
    for n in (1, 0, 1000, 40_001):
        index, _ = data(n, bins, n)
        a = sg.ndarray(sg.i32, max(n, 1))
        if n:
            a.from_numpy(index)
            of_an_array(a)
            np.add.at(expected, index, 1)
        bound[None] = n
        of_a_field(a)
        np.add.at(expected, index, 1)
        assert (counts.to_numpy() == expected).all()
    if session.device.caps.target.invocations:
        for kernel in (of_an_array, of_a_field):
            assert ("PrivateCopy" in kernel.ir("offload")) == (bins == 20)


@pytest.mark.parametrize(("t", "kind"), [*((sg.i32, kind) for kind in KINDS), (sg.u16, "add")], ids=str)
def test_arrays(session, n: int, kind: str, t) -> None:
    """How many elements there are is known when the kernel is launched: few are on copies, in the same kernel."""
    atomic, ufunc, start = KINDS[kind]

    @sg.kernel
    def update(where: sg.types.ndarray(sg.i32, 1), what: sg.types.ndarray(t, 1), bins: sg.types.ndarray(t, 1)):
        for i in where:
            atomic(bins[where[i]], what[i])

    for bins in (20, 1, 1023, 1024, 3000):
        index, values = data(bins, bins, n)
        where, what, counts = sg.ndarray(sg.i32, n), sg.ndarray(t, n), sg.ndarray(t, bins)
        expected = np.full(bins, start).astype(counts.to_numpy().dtype)
        values = values.astype(expected.dtype)
        for array, given in ((where, index), (what, values), (counts, expected)):
            array.from_numpy(given)
        update(where, what, counts)
        ufunc.at(expected, index, values)
        assert (counts.to_numpy() == expected).all()
    if session.device.caps.target.invocations:
        assert "PrivateCopy" in update.ir("offload")


def test_arrays_of_vectors_in_two_dimensions_and_a_field(session, n: int) -> None:
    table, total = sg.Vector.ndarray(2, sg.i32, (3, 5)), sg.field(sg.i32, 4)

    @sg.kernel
    def update(where: sg.types.ndarray(sg.i32, 1), table: sg.types.ndarray(sg.math.ivec2, 2)):
        for i in where:
            k = where[i]
            table[k // 5, k % 5][0] += 1
            table[k // 5, k % 5][1] += i % 3
            total[k % 4] += 1

    index, _ = data(4, 15, n)
    where = sg.ndarray(sg.i32, n)
    where.from_numpy(index)
    update(where, table)
    found, part = table.to_numpy().reshape(15, 2), np.arange(n) % 3
    assert (found[:, 0] == np.bincount(index, minlength=15)).all() and (found[:, 1] == np.bincount(index, part, 15)).all()
    assert (total.to_numpy() == np.bincount(index % 4, minlength=4)).all()
    if session.device.caps.target.invocations:
        assert update.ir("offload").count("PrivateCopy") == 2


def test_gradients_of_few_weights(session, n: int) -> None:
    """The reverse of reads of an array adds to its gradient."""
    where = sg.ndarray(sg.i32, n)
    weights, out = (sg.ndarray(sg.f32, k, needs_grad=True) for k in (7, n))

    @sg.kernel
    def weigh(where: sg.types.ndarray(sg.i32, 1), weights: sg.types.ndarray(sg.f32, 1), out: sg.types.ndarray(sg.f32, 1)):
        for i in where:
            out[i] = 2.0 * weights[where[i]]

    index, _ = data(5, 7, n)
    where.from_numpy(index)
    out.grad.fill(1.0)
    weigh.grad(where, weights, out)
    assert (weights.grad.to_numpy() == 2.0 * np.bincount(index, minlength=7)).all()


@pytest.mark.parametrize("kind", ["min", "max"])
@pytest.mark.parametrize("t", [sg.f32, sg.f16], ids=str)
def test_extrema_of_floats(session, n: int, kind: str, t) -> None:
    """NaN gives way to numbers, on both sides; -0.0 is less than 0.0."""
    atomic, ufunc = (sg.atomic_min, np.fmin) if kind == "min" else (sg.atomic_max, np.fmax)
    where, what, bins = sg.field(sg.i32, n), sg.field(t, n), sg.field(t, 20)

    @sg.kernel
    def update():
        for i in where:
            atomic(bins[where[i]], what[i])

    rng = np.random.default_rng(1)
    index, values = rng.integers(0, 18, n).astype(np.int32), rng.standard_normal(n).astype(t.np)
    values[rng.random(n) < 0.1] = np.nan
    values[index == 3] = np.nan
    values[index == 4] = np.nan
    values[index == 5] = -np.abs(values[index == 5])
    values[index == 6] = np.where(rng.random((index == 6).sum()) < 0.5, 0.0, -0.0)
    values[np.flatnonzero(index == 7)[:2]] = np.inf, -np.inf
    expected = np.zeros(20, t.np)
    expected[[2, 3, 8, 9]] = np.nan, np.nan, 3.5, -3.5
    bins.from_numpy(expected)
    where.from_numpy(index)
    what.from_numpy(values)
    update()
    with np.errstate(invalid="ignore"):
        ufunc.at(expected, index, values)
    np.testing.assert_array_equal(bins.to_numpy(), expected)


@pytest.mark.parametrize("t", [sg.f32, sg.f16], ids=str)
def test_sums_of_floats(session, n: int, t) -> None:
    """Of numbers whose sums are exact in f16, in whatever order."""
    where, what, bins = sg.field(sg.i32, n), sg.field(t, n), sg.field(t, 20)

    @sg.kernel
    def update():
        for i in where:
            bins[where[i]] += what[i]

    index, _ = data(2, 20, n)
    values = (np.arange(n) % 3 == 0).astype(t.np)
    where.from_numpy(index)
    what.from_numpy(values)
    update()
    np.testing.assert_array_equal(bins.to_numpy(), np.bincount(index, values, 20))


def test_axes_components_and_a_sum_besides(session, n: int) -> None:
    where, what = sg.field(sg.i32, n), sg.field(sg.i32, n)
    table = sg.Vector.field(2, sg.i32, shape=(2, 4), offset=(-1, 3))
    total = sg.field(sg.i64, ())
    weights = sg.field(sg.f32, 8)

    @sg.kernel
    def update():
        for i in where:
            k = where[i]
            table[k // 4 - 1, k % 4 + 3][0] += 1
            if what[i] > 0:
                table[k // 4 - 1, k % 4 + 3][1] += what[i]
            total[None] += what[i]
            weights[k] += 0.5

    index, values = data(3, 8, n)
    where.from_numpy(index)
    what.from_numpy(values)
    update()
    count = np.bincount(index, minlength=8)
    assert (table.to_numpy()[..., 0].reshape(-1) == count).all()
    assert (table.to_numpy()[..., 1].reshape(-1) == np.bincount(index, np.maximum(values, 0), 8)).all()
    assert total[None] == values.sum()
    assert (weights.to_numpy() == 0.5 * count).all()


def test_what_is_read_or_returned_is_exact(session, n: int) -> None:
    where, before, bins = sg.field(sg.i32, n), sg.field(sg.i32, n), sg.field(sg.i32, 5)

    @sg.kernel
    def number():
        for i in where:
            before[i] = sg.atomic_add(bins[where[i]], 1)

    index, _ = data(4, 5, n)
    where.from_numpy(index)
    number()
    for k in range(5):
        assert (np.sort(before.to_numpy()[index == k]) == np.arange((index == k).sum())).all()


def test_sizes_of_workgroups(session, n: int) -> None:
    """Two tasks of one kernel, each with copies and sums in workgroups of another size."""
    values = sg.field(sg.i32, n)
    few, some = sg.field(sg.i32, 3), sg.field(sg.i32, 20)
    totals = sg.field(sg.i32, 2)

    @sg.kernel
    def count():
        sg.loop_config(block_dim=32)
        for i in values:
            few[values[i] % 3] += 1
            totals[0] += values[i]
        sg.loop_config(block_dim=128)
        for i in values:
            some[values[i]] += 1
            totals[1] += 2 * values[i]

    index, _ = data(5, 20, n)
    values.from_numpy(index)
    count()
    assert (few.to_numpy() == np.bincount(index % 3, minlength=3)).all()
    assert (some.to_numpy() == np.bincount(index, minlength=20)).all()
    assert list(totals.to_numpy()) == [index.sum(), 2 * index.sum()]


def test_gradients_of_lookups(session, n: int) -> None:
    """The derivative of reading a small table is such a loop."""
    where, table, loss = sg.field(sg.i32, n), sg.field(sg.f32, 16, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def look_up():
        for i in where:
            loss[None] += table[where[i]] * 2.0

    index, _ = data(6, 16, n)
    where.from_numpy(index)
    loss.grad[None] = 1.0
    look_up.grad()
    assert (table.grad.to_numpy() == 2.0 * np.bincount(index, minlength=16)).all()


def test_bounds_are_checked(arch, n: int) -> None:
    sg.init(arch=arch, debug=True)
    where, bins = sg.field(sg.i32, n), sg.field(sg.i32, 4)

    @sg.kernel
    def update():
        for i in where:
            bins[where[i]] += 1

    where[n - 1] = 4
    with pytest.raises(sg.SpirogradRuntimeError, match="bins"):
        update()
        sg.sync()


@pytest.mark.archs("vulkan")
def test_copies_where_memory_lacks_the_atomic(session, n: int) -> None:
    """Shared memory may have atomics that memory lacks: only the updates of memory are loops of exchanges, or take locks."""
    missing = dict.fromkeys(("atomic_cas", "atomic_f32_add", "atomic_f32_minmax"), False)
    session.device.caps = replace(session.device.caps, **missing)
    where, what = sg.field(sg.i32, n), sg.field(sg.f32, n)
    sums, least = sg.field(sg.f32, 20), sg.field(sg.f32, 20)

    @sg.kernel
    def update():
        for i in where:
            sums[where[i]] += what[i]
            sg.atomic_min(least[where[i]], what[i])

    index, values = data(1, 20, n)
    where.from_numpy(index)
    what.from_numpy(values.astype(np.float32))
    update()
    expected = np.zeros((2, 20), np.float32)
    np.add.at(expected[0], index, values)
    np.minimum.at(expected[1], index, values)
    np.testing.assert_array_equal(np.array([sums.to_numpy(), least.to_numpy()]), expected)  # of integers below 2^24: exact
    assert "copy_" in update.ir("device")


def test_signs_of_zeros(session, n: int) -> None:
    """As where each update is one of memory: -0.0 + 0.0 is 0.0, and -0.0 stays what it is if nothing or only -0.0 is added."""
    where, what, bins = sg.field(sg.i32, n), sg.field(sg.f32, n), sg.field(sg.f32, 8)

    @sg.kernel
    def update():
        for i in where:
            bins[where[i]] += what[i]

    k = np.arange(n)
    index, values = k % 6, np.where(k % 6 < 3, 0.0, -0.0)
    values[k % 6 == 5] = 0.25
    where.from_numpy(index.astype(np.int32))
    what.from_numpy(values.astype(np.float32))
    start = np.array([-0.0, 0.0, 2.0, -0.0, 0.0, -0.0, -0.0, 0.0], np.float32)
    bins.from_numpy(start)
    update()
    expected = start.copy()
    np.add.at(expected, index, values.astype(np.float32))
    found = bins.to_numpy()
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
