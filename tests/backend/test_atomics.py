"""Atomics of every kind and type, with contention; reductions of long arrays; variables that parallel loops update."""

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.dtypes import DType

INTS = sg.types.ndarray(sg.i32, 1)
TYPES = [sg.i32, sg.u32, sg.i64, sg.u64, sg.f32, sg.f64]
N = 3000


@pytest.mark.parametrize("t", TYPES, ids=str)
def test_contended_atomics(arch: str, t: DType) -> None:
    """Many iterations update one element, and a few elements, by operators and by functions."""
    sg.init(arch=arch)
    one = sg.field(t, shape=6)
    few = sg.ndarray(t, shape=7)
    bits = sg.field(t, shape=3)
    integer = t.is_int

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), few: sg.types.ndarray(t, 1)):
        for i in x:
            one[0] += x[i]
            one[1] -= x[i]
            sg.atomic_min(one[2], x[i])
            sg.atomic_max(one[3], x[i])
            sg.atomic_add(one[4], 1)
            sg.atomic_sub(one[5], 2)
            few[i % 7] += x[i]
            if sg.static(integer):
                bits[0] |= x[i]
                bits[1] &= x[i]
                bits[2] ^= x[i]

    rng = np.random.default_rng(1)
    x = rng.integers(0, 1000, N).astype(t.np) if not t.is_signed else rng.integers(-1000, 1000, N).astype(t.np)
    if t.bits == 64 and integer:
        x = (x.astype(np.int64) * 2**33 + 12345).astype(t.np)
    start = np.array([0, 0, 10, 10, 0, 0], t.np)
    one.from_numpy(start)
    bits.from_numpy(np.array([0, -1 if t.is_signed else int(t.max) if integer else 0, 0], t.np))
    run(x, few)
    got = one.to_numpy()
    # Sums of these integers are exact in f64, and in f32 up to 2**24.
    total = x.sum(dtype=t.np)
    np.testing.assert_array_equal(got[:2], np.array([total, np.negative(total)], t.np))
    np.testing.assert_array_equal(got[2:4], [min(t.np.type(10), x.min()), max(t.np.type(10), x.max())])
    np.testing.assert_array_equal(got[4:], np.array([N, 0], t.np) - np.array([0, 2 * N]).astype(t.np))
    np.testing.assert_array_equal(few.to_numpy(), [x[k::7].sum(dtype=t.np) for k in range(7)])
    if integer:
        want = [np.bitwise_or.reduce(x), np.bitwise_and.reduce(x), np.bitwise_xor.reduce(x)]
        np.testing.assert_array_equal(bits.to_numpy(), want)


@pytest.mark.parametrize("t", TYPES, ids=str)
def test_atomics_return_the_old_value(arch: str, t: DType) -> None:
    """In one thread each step is known; in parallel every old value of a counter is seen once."""
    sg.init(arch=arch)
    cell = sg.field(t, shape=())
    integer = t.is_int

    @sg.kernel
    def steps(out: sg.types.ndarray(t, 1)):
        out[0] = sg.atomic_add(cell[None], 5)
        out[1] = sg.atomic_sub(cell[None], 2)
        out[2] = sg.atomic_min(cell[None], 4)
        out[3] = sg.atomic_max(cell[None], 9)
        out[4] = sg.atomic_mul(cell[None], 3)
        out[5] = sg.atomic_exchange(cell[None], 6)
        out[6] = sg.atomic_cas(cell[None], 5, 100)
        out[7] = sg.atomic_cas(cell[None], 6, 12)
        if sg.static(integer):
            out[8] = sg.atomic_and(cell[None], 10)
            out[9] = sg.atomic_or(cell[None], 5)
            out[10] = sg.atomic_xor(cell[None], 3)
        out[11] = cell[None]

    @sg.kernel
    def tickets(out: sg.types.ndarray(t, 1)):
        for i in out:
            out[i] = sg.atomic_add(cell[None], 1)

    out = np.zeros(12, t.np)
    cell[None] = 10
    steps(out)
    want = [10, 15, 13, 4, 9, 27, 6, 6, *([12, 8, 13] if integer else [0, 0, 0]), 14 if integer else 12]
    np.testing.assert_array_equal(out, np.array(want, t.np))
    cell[None] = 0
    out = np.zeros(N, t.np)
    tickets(out)
    np.testing.assert_array_equal(np.sort(out), np.arange(N).astype(t.np))
    assert cell[None] == N


def test_multiplication_and_exchange_under_contention(arch: str) -> None:
    sg.init(arch=arch)
    product = sg.field(sg.f64, shape=())
    powers = sg.field(sg.u32, shape=())
    slot = sg.field(sg.i32, shape=())

    @sg.kernel
    def run(seen: INTS):
        for i in range(200):
            product[None] *= 1.01
            sg.atomic_mul(powers[None], 3)
            old = sg.atomic_exchange(slot[None], i + 1)
            seen[old] += 1

    product[None], powers[None] = 1.0, 1
    seen = np.zeros(201, np.int32)
    run(seen)
    assert product[None] == pytest.approx(1.01**200)
    assert powers[None] == pow(3, 200, 2**32)
    seen[slot[None]] += 1  # the last one is still in the slot
    assert seen.tolist() == [1] * 201


def test_cas_loop(arch: str) -> None:
    """A lock-free maximum of squares."""
    sg.init(arch=arch)
    cell = sg.field(sg.u32, shape=())

    @sg.kernel
    def run(x: sg.types.ndarray(sg.u32, 1)):
        for i in x:
            v = x[i] * x[i]
            done = False
            while not done:
                old = cell[None]
                if old >= v or sg.atomic_cas(cell[None], old, v) == old:
                    done = True

    x = np.random.default_rng(2).integers(0, 60000, 2000).astype(np.uint32)
    run(x)
    assert cell[None] == int((x.astype(np.uint64) ** 2).max())


def test_float_extrema_with_signs_and_nan(arch: str) -> None:
    sg.init(arch=arch)
    for t in (sg.f32, sg.f64):
        cell = sg.field(t, shape=4)

        @sg.kernel
        def run(x: sg.types.ndarray(t, 1)):
            for i in x:
                sg.atomic_min(cell[i % 2], x[i])
                sg.atomic_max(cell[2 + i % 2], x[i])

        cell.from_numpy(np.array([np.inf, 1, -np.inf, -1], t.np))
        x = np.array([-3.5, 2, -1e-30, 0.5, 7.25, -100, 1e30, 4], t.np)
        run(x)
        np.testing.assert_array_equal(cell.to_numpy(), np.array([x[::2].min(), x[1::2].min(), x[::2].max(), x[1::2].max()], t.np))


@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
def test_float_extrema_of_everything(arch: str, t) -> None:
    """Each of these in memory, against each of these as the value: NaN gives way to numbers. What was there before comes back."""
    sg.init(arch=arch)
    # wgpu does not say what becomes of subnormal numbers.
    tiny = float(np.finfo(t.np).tiny if arch == "wgpu" else np.finfo(t.np).smallest_subnormal)
    specials = np.array([0.0, -0.0, 1.5, -1.5, 3e30, -3e30, tiny, -tiny, np.inf, -np.inf, np.nan, -np.nan], t.np)
    n = len(specials)
    low, high = sg.field(t, shape=n * n), sg.field(t, shape=n * n)
    before, silent = sg.field(t, shape=n * n), sg.field(t, shape=n * n)
    values = sg.field(t, shape=n)

    @sg.kernel
    def run():
        for i in before:
            sg.atomic_min(low[i], values[i % n])
            before[i] = sg.atomic_max(high[i], values[i % n])
            sg.atomic_max(silent[i], values[i % n])

    memory = np.repeat(specials, n)
    values.from_numpy(specials)
    for field in (low, high, silent):
        field.from_numpy(memory)
    run()
    others = np.tile(specials, n)
    np.testing.assert_array_equal(low.to_numpy(), np.fmin(memory, others))
    np.testing.assert_array_equal(high.to_numpy(), np.fmax(memory, others))
    np.testing.assert_array_equal(silent.to_numpy(), np.fmax(memory, others))
    np.testing.assert_array_equal(before.to_numpy(), memory)


def test_contended_float_extrema(arch: str) -> None:
    sg.init(arch=arch)
    n = 30_000
    x, cells = sg.field(sg.f32, shape=n), sg.field(sg.f32, shape=(2, 7))

    @sg.kernel
    def run():
        for i in x:
            sg.atomic_min(cells[0, i % 7], x[i])
            sg.atomic_max(cells[1, i % 7], x[i])

    values = (np.random.default_rng(9).standard_normal(n) * 10.0).astype(np.float32)
    values[::11] = np.nan
    x.from_numpy(values)
    cells.fill(float("nan"))
    run()
    for k in range(7):
        assert list(cells.to_numpy()[:, k]) == [np.nanmin(values[k::7]), np.nanmax(values[k::7])]


def test_narrow_types(arch: str) -> None:
    """8- and 16-bit integers and f16 have atomics too, one element beside the other."""
    sg.init(arch=arch)
    for t in (sg.i8, sg.u8, sg.i16, sg.u16, sg.f16):
        cells = sg.field(t, shape=5)

        @sg.kernel
        def run():
            for i in range(200):
                cells[i % 5] += 1
                sg.atomic_max(cells[1], i % 20)

        run()
        want = np.array([40, 40, 40, 40, 40], t.np)
        got = cells.to_numpy()
        np.testing.assert_array_equal(got[[0, 2, 3, 4]], want[1:], err_msg=str(t))
        assert 40 <= got[1] <= 59


def test_atomics_on_vectors_and_structs(arch: str) -> None:
    sg.init(arch=arch)
    v = sg.Vector.field(3, sg.f32, shape=2)
    s = sg.Struct.field({"count": sg.i32, "pos": sg.types.vector(2, sg.f32)}, shape=())

    @sg.kernel
    def run():
        for i in range(100):
            v[i % 2] += [1, 2, i]
            v[0][1] += 0.5
            s[None].count += 1
            s[None].pos += sg.Vector([i, -1])

    run()
    even, odd = sum(range(0, 100, 2)), sum(range(1, 100, 2))
    np.testing.assert_array_equal(v.to_numpy(), [[50, 150, even], [50, 100, odd]])
    assert s[None].count == 100 and list(s[None].pos) == [4950, -100]


def test_augmented_assignments_that_are_not_atomic(arch: str) -> None:
    """`/=`, `//=`, `%=`, `**=`, shifts on memory: read, compute, write."""
    sg.init(arch=arch)
    x = sg.field(sg.i32, shape=8)
    y = sg.field(sg.f32, shape=8)

    @sg.kernel
    def run():
        for i in x:
            x[i] //= 3
            x[i] %= 7
            x[i] <<= 2
            x[i] >>= 1
            x[i] **= 2
            y[i] /= 4
            y[i] **= 2

    data = np.arange(-20, 60, 10, dtype=np.int32)
    x.from_numpy(data)
    y.from_numpy(data.astype(np.float32))
    run()
    np.testing.assert_array_equal(x.to_numpy(), ((((data // 3) % 7) << 2) >> 1) ** 2)
    np.testing.assert_allclose(y.to_numpy(), (data / 4) ** 2)


def test_variables_that_parallel_loops_update(arch: str) -> None:
    """A local that iterations update together is shared by them; one that they assign first is private."""
    sg.init(arch=arch)

    @sg.kernel
    def run(x: INTS, out: sg.types.ndarray(sg.f64, 1)) -> sg.f64:
        s = 0.0
        count = 0
        low = 1000
        high = sg.i64(-1000)
        v = sg.Vector([0, 0])
        private = 5
        for i in x:
            private = x[i] * 2
            s += x[i]
            if private > 0:
                count += 1
            low = min(low, 1000)
            sg.atomic_min(low, x[i])
            sg.atomic_max(high, x[i])
            v += sg.Vector([1, x[i]])
            v[0] += 1
        out[0] = s
        out[1] = count
        out[2] = low
        out[3] = high
        out[4] = v[0]
        out[5] = v[1]
        for i in x:
            s += 1
        return s

    x = np.random.default_rng(3).integers(-500, 500, 777).astype(np.int32)
    out = np.zeros(6)
    assert run(x, out) == x.sum() + 777
    assert out[[0, 1]].tolist() == [x.sum(), (x > 0).sum()]
    assert out[3:].tolist() == [x.max(), 2 * 777, x.sum()]
    assert out[2] in (x.min(), 1000) or out[2] >= x.min()


def test_old_values_of_local_atomics(arch: str) -> None:
    sg.init(arch=arch)

    @sg.kernel
    def run(out: INTS):
        n = 0
        for i in range(40):
            if i % 2 == 0:
                at = sg.atomic_add(n, 1)
                out[at] = i
        out[39] = n
        for _ in range(1):
            m = 3
            old = sg.atomic_add(m, 4)
            out[38] = old * 100 + m

    out = np.zeros(40, np.int32)
    run(out)
    assert sorted(out[:20].tolist()) == list(range(0, 40, 2)) and out[39] == 20 and out[38] == 307


@pytest.mark.archs("cpu", "vulkan")
@pytest.mark.parametrize("t", [sg.f32, sg.i32], ids=str)
def test_long_reductions(arch: str, t: DType) -> None:
    """16M elements: sums right to the rounding of f32, extrema exact."""
    sg.init(arch=arch)
    n = 1 << 24
    x = sg.field(t, shape=n)
    out = sg.field(t, shape=3)

    @sg.kernel
    def run():
        for i in x:
            out[0] += x[i]
            sg.atomic_min(out[1], x[i])
            sg.atomic_max(out[2], x[i])

    @sg.kernel
    def total() -> t:
        s = sg.cast(0, t)
        for i in range(n):
            s += x[i]
        return s

    rng = np.random.default_rng(4)
    data = rng.random(n, np.float32) if t.is_float else rng.integers(-100, 100, n, dtype=np.int32)
    x.from_numpy(data)
    run()
    want = data.sum(dtype=np.float64) if t.is_float else data.sum(dtype=np.int32)
    got = out.to_numpy()
    np.testing.assert_allclose([got[0], total()], want, rtol=2e-6 if t.is_float else 0)
    np.testing.assert_array_equal(got[1:], [min(data.min(), 0), max(data.max(), 0)])
