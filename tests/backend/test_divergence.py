"""Parallel loops whose iterations go different ways: `while`, `break`, bounds and branches that depend on data.

The CPU runs several of them in lockstep, under masks; iterations that have ended, or have not begun, must do no harm.
"""

import ctypes
import mmap
from collections.abc import Callable

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session"), pytest.mark.optimized]
SIZES = [1, 15, 16, 37, 300]
vec = sg.types.ndarray(sg.f32, 1)
ints = sg.types.ndarray(sg.i32, 1)


def each(n: int, step: Callable[[int], object], t: type = np.int64) -> np.ndarray:
    return np.array([step(i) for i in range(n)], t)


def collatz(n: int) -> tuple[int, int]:
    steps = top = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps, top = steps + 1, max(top, n)
    return steps, top


@pytest.mark.parametrize("t", [sg.i32, sg.u32, sg.i64], ids=str)
def test_while(t) -> None:
    """Loops of very different length, with branches and divisions in them."""

    @sg.kernel
    def run(steps: ints, tops: sg.types.ndarray(t, 1)):
        for i in range(steps.shape[0]):
            n = sg.cast(i + 1, t)
            count, top = 0, sg.cast(0, t)
            while n != 1:
                if n % 2 == 0:
                    n = n // 2
                else:
                    n = 3 * n + 1
                count += 1
                top = sg.max(top, n)
            steps[i], tops[i] = count, top

    for n in SIZES:
        steps, tops = np.zeros(n, np.int32), np.zeros(n, t.np)
        run(steps, tops)
        want = each(n, lambda i: collatz(i + 1))
        np.testing.assert_array_equal(steps, want[:, 0])
        np.testing.assert_array_equal(tops, want[:, 1])


def test_sums_of_all() -> None:
    """Accumulators of the parallel loop, and one element that all iterations update inside of loops of their own."""

    @sg.kernel
    def run(total: ints, n: sg.i32) -> sg.i32:
        longest = 0
        for i in range(n):
            v, count = i + 1, 0
            while v != 1:
                v = v // 2 if v % 2 == 0 else 3 * v + 1
                count += 1
            for k in range(count):
                v = (v * 5 + k) % 17
                if v % 2 == 1:
                    total[0] += 1
                    total[1] += v
            sg.atomic_max(longest, count)
        return longest

    for n in SIZES:
        total, want = np.zeros(2, np.int32), np.zeros(2, np.int32)
        counts = [collatz(i + 1)[0] for i in range(n)]
        for count in counts:
            v = 1
            for k in range(count):
                v = (v * 5 + k) % 17
                if v % 2 == 1:
                    want += (1, v)
        assert run(total, n) == max(counts)
        np.testing.assert_array_equal(total, want)


@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
def test_nan_ends_comparisons(t) -> None:
    """Comparisons with NaN are false, so NaN leaves a loop at once, or with `not` never before its bound."""

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), below: ints, above: ints):
        for i in range(x.shape[0]):
            v, n = x[i], 0
            while v < 100.0:
                v = v * 2.0
                n += 1
            below[i] = n
            v, n = x[i], 0
            while not (v >= 100.0) and n < 9:
                v = v * 2.0
                n += 1
            above[i] = n

    for n in SIZES:
        x = (1.0 + np.arange(n) % 200).astype(t.np)
        x[::3] = np.nan
        below, above = np.zeros(n, np.int32), np.zeros(n, np.int32)
        run(x, below, above)
        steps = np.where(np.isnan(x), 0, np.ceil(np.maximum(np.log2(100.0 / np.where(np.isnan(x), 1, x)), 0)))
        np.testing.assert_array_equal(below, steps)
        np.testing.assert_array_equal(above, np.where(np.isnan(x), 9, steps))


def test_prints_in_branches(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Iterations that print are lanes as well, if few of them take the branch: each prints once, with its own numbers."""

    @sg.kernel
    def run(x: vec, y: vec):
        for i in range(x.shape[0]):
            v = x[i]
            steps = 0
            while v > 1.0:
                v = v * 0.5 + 0.01 * sg.sin(v)
                steps += 1
                if steps > 9:
                    print("iteration", i, "is at", steps)
                    break
            y[i] = steps

    for n in SIZES:
        x = (1.5 + np.arange(n) * 137 % 1500).astype(np.float32)
        y = np.zeros(n, np.float32)
        run(x, y)
        sg.sync()
        slow = [i for i in range(n) if y[i] == 10]
        assert sorted(capfd.readouterr().out.splitlines()) == sorted(f"iteration {i} is at 10" for i in slow)
        assert np.all(y[x < 500.0] < 10) and np.all(y[x > 1000.0] == 10)
    if arch == "cpu":
        assert "lanes<" in run.ir("loops")


def test_ended_iterations_touch_nothing() -> None:
    """Each walks along a list of its own, whose last link points far outside, and divides by what it finds, which ends with 0."""

    @sg.kernel
    def run(following: ints, by: ints, out: ints, seen: ints):
        for i in range(out.shape[0]):
            at, total = i, 0
            while at >= 0 and at < following.shape[0]:
                if by[at] != 0:
                    total += 1000 // by[at] + 1000 % by[at]
                    seen[at] = i + 1
                at = following[at]
            out[i] = total

    for n in SIZES:
        rng = np.random.default_rng(n)
        length = 5 * n
        following, by = np.arange(length, dtype=np.int32) + n, rng.integers(0, 9, length).astype(np.int32)
        ends = rng.random(length) < 0.3
        following[ends] = rng.choice(np.array([-1, -(2**31), 2**31 - 1, 2**30]), ends.sum())
        out, seen = np.full(n, -1, np.int32), np.zeros(length, np.int32)
        want, marks = np.zeros(n, np.int64), np.zeros(length, np.int32)
        for i in range(n):
            at = i
            while 0 <= at < length:
                if by[at]:
                    want[i] += 1000 // by[at] + 1000 % by[at]
                    marks[at] = i + 1
                at = following[at]
        run(following, by, out, seen)
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(seen, marks)


@pytest.mark.parametrize("t", [sg.i32, sg.u32, sg.i64], ids=str)
def test_bounds_from_memory(t) -> None:
    """Both bounds, the end, the beginning; empty ranges, and ranges that are the wrong way round; the index and the count in use."""

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), b: sg.types.ndarray(t, 1), out: sg.types.ndarray(sg.i64, 2)):
        for i in range(a.shape[0]):
            n = sg.cast(7, sg.i64)
            for k in range(a[i], b[i]):
                n = n * 3 % 1001 + sg.cast(k, sg.i64) - sg.cast(a[i], sg.i64)
            out[i, 0] = n
            for k in range(b[i]):
                n = n * 5 % 1003 + sg.cast(k, sg.i64)
            out[i, 1] = n
            for k in range(a[i], sg.cast(12, t)):
                n = n * 7 % 1007 + sg.cast(k, sg.i64)
                for m in range(a[i], k):
                    n = n * 3 % 1009 + sg.cast(k - m, sg.i64)
            out[i, 2] = n

    for n in SIZES:
        rng = np.random.default_rng(n)
        a, b = (rng.integers(0 if t is sg.u32 else -5, 30, n).astype(t.np) for _ in range(2))
        out, want = np.zeros((n, 3), np.int64), np.zeros((n, 3), np.int64)
        for i in range(n):
            v, first, end = 7, int(a[i]), int(b[i])
            for k in range(first, end):
                v = v * 3 % 1001 + k - first
            want[i, 0] = v
            for k in range(end):
                v = v * 5 % 1003 + k
            want[i, 1] = v
            for k in range(first, 12):
                v = v * 7 % 1007 + k
                for m in range(first, k):
                    v = v * 3 % 1009 + k - m
            want[i, 2] = v
        run(a, b, out)
        np.testing.assert_array_equal(out, want)


def test_break_and_continue() -> None:
    """In nests, with flags that are carried, and stores in between."""

    @sg.kernel
    def run(x: ints, out: ints, last: ints, trips: sg.i32):
        for i in range(x.shape[0]):
            v = x[i]
            for k in range(trips):
                if v > 900:
                    break
                if (v + k) % 3 == 0:
                    v += 5
                    continue
                last[i] = k
                for m in range(k % 4 + 1):
                    v = v * 3 + m
                    if v % 7 == 0:
                        break
                    if v > 500:
                        v = v % 13
                        continue
                    v += 1
            out[i] = v

    for n in SIZES:
        x = (np.arange(n) * 7 % 300).astype(np.int32)
        out, last, want, ends = (np.full(n, -1, np.int32) for _ in range(4))
        for i in range(n):
            v = int(x[i])
            for k in range(20):
                if v > 900:
                    break
                if (v + k) % 3 == 0:
                    v += 5
                    continue
                ends[i] = k
                for m in range(k % 4 + 1):
                    v = v * 3 + m
                    if v % 7 == 0:
                        break
                    if v > 500:
                        v = v % 13
                        continue
                    v += 1
            want[i] = v
        run(x, out, last, 20)
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(last, ends)


@pytest.mark.parametrize("share", [0.0, 0.04, 0.5, 1.0])
@pytest.mark.parametrize("t", [sg.i32, sg.f32], ids=str)
def test_guarded_loops(arch: str, share: float, t) -> None:
    """Few iterations do much; the sum of what they do; what others have stays."""

    @sg.kernel
    def run(active: ints, x: sg.types.ndarray(t, 1), y: sg.types.ndarray(t, 1)) -> sg.i32:
        total = 0
        for i in range(active.shape[0]):
            if active[i] > i % 3:
                v = x[i]
                for k in range(20):
                    v = v * 3 + sg.cast(k, t)
                    v = v - sg.cast(sg.floor(sg.cast(v, sg.f32) / 7), t) * 7
                    if v == 5:
                        v = v + 1
                y[i] = v
                total += sg.cast(v, sg.i32)
        return total

    for n in [*SIZES, 5000, 20_000] if arch != "interpreter" else SIZES:  # which runs one iteration after the other, and slowly
        rng = np.random.default_rng(n)
        active = np.where(rng.random(n) < share, np.arange(n) % 3 + 1, rng.integers(-1, 1, n)).astype(np.int32)
        x, y = (np.arange(n) % 7).astype(t.np), np.full(n, -1, t.np)
        want = x.astype(np.int64)
        for k in range(20):
            want = (want * 3 + k) % 7
            want += want == 5
        passes = active > np.arange(n) % 3
        assert run(active, x, y) == want[passes].sum()
        np.testing.assert_array_equal(y, np.where(passes, want, -1))


def test_branches_with_effects() -> None:
    """Both arms store and update, some in loops; the value afterwards is that of the arm taken."""

    @sg.kernel
    def run(x: ints, out: ints, where: ints, counts: ints):
        for i in range(where.shape[0]):
            v = x[i]
            for k in range(12):
                if v % 2 == 0:
                    for m in range(v % 5):
                        v = v // 2 + m
                    out[i] += 1
                    counts[v % 4] += 1
                elif v % 3 == 0:
                    v = v * 2 + k
                    out[where[i]] += 100
                else:
                    v = v + x[where[i]] % 50
                v = (v + 1) % 10007
            x[i] = v

    for n in SIZES:
        rng = np.random.default_rng(n)
        x, where = rng.integers(0, 900, n).astype(np.int32), rng.permutation(n).astype(np.int32)
        out, counts = np.zeros(2 * n, np.int32), np.zeros(4, np.int32)
        where += n
        x = np.concatenate([x, rng.integers(0, 900, n).astype(np.int32)])
        want, sums, told = x.astype(np.int64), np.zeros(2 * n, np.int64), np.zeros(4, np.int64)
        for i in range(n):
            v = int(want[i])
            for k in range(12):
                if v % 2 == 0:
                    for m in range(v % 5):
                        v = v // 2 + m
                    sums[i] += 1
                    told[v % 4] += 1
                elif v % 3 == 0:
                    v = v * 2 + k
                    sums[where[i]] += 100
                else:
                    v = v + int(want[where[i]]) % 50
                v = (v + 1) % 10007
            want[i] = v
        run(x, out, where, counts)
        np.testing.assert_array_equal(x, want)
        np.testing.assert_array_equal(out, sums)
        np.testing.assert_array_equal(counts, told)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("guarded", [False, True])
def test_gradients(n: int, guarded: bool) -> None:
    """Of loops with bounds in a field, a `while`, and behind a guard: each lane has its own tapes."""
    x, y = (sg.field(sg.f64, n, needs_grad=True) for _ in range(2))
    first, last, active = (sg.field(sg.i32, n) for _ in range(3))

    @sg.kernel
    def run():
        for i in x:
            if active[i] > 0:
                v = x[i]
                for k in range(first[i], last[i]):
                    v = sg.sin(v) * 1.125 + 0.015625 * k
                    if v > 0.875:
                        v = v * 0.5
                n = 0
                while v < 3.0 and n < 40:
                    v = v * v * 0.5 + 0.75
                    n += 1
                y[i] = v

    rng = np.random.default_rng(n)
    start, a, b = rng.uniform(-1, 1, n), rng.integers(0, 9, n), rng.integers(0, 20, n)
    runs = rng.random(n) < 0.3 if guarded else np.ones(n, bool)
    for f, values in ((x, start), (first, a.astype(np.int32)), (last, b.astype(np.int32)), (active, runs.astype(np.int32))):
        f.from_numpy(values)
    for _ in range(2):
        y.fill(0)
        run()
        y.grad.fill(1.0)
        x.grad.fill(0.0)
        run.grad()
    v, dv = start.copy(), np.ones(n)
    for k in range(20):
        on = (a <= k) & (k < b)
        dv, v = np.where(on, np.cos(v) * 1.125 * dv, dv), np.where(on, np.sin(v) * 1.125 + 0.015625 * k, v)
        high = on & (v > 0.875)
        dv, v = np.where(high, dv * 0.5, dv), np.where(high, v * 0.5, v)
    for _ in range(40):
        on = v < 3.0
        dv, v = np.where(on, v * dv, dv), np.where(on, v * v * 0.5 + 0.75, v)
    np.testing.assert_allclose(y.to_numpy(), np.where(runs, v, 0), rtol=1e-7)
    np.testing.assert_allclose(x.grad.to_numpy(), np.where(runs, dv, 0), rtol=1e-7)


@pytest.mark.archs("cpu")  # the only back end with lanes
@pytest.mark.parametrize("shape", [(1,), (333,), (5, 77)], ids=str)
def test_bit_for_bit(shape: tuple[int, ...], arch: str) -> None:
    """In lockstep and one by one the results are the same bits, without fused products."""
    found = []
    for level in (3, 1):
        sg.init(arch=sg.cpu, fast_math=False, opt_level=level)
        x, steps = sg.field(sg.f32, shape), sg.field(sg.i32, shape)

        @sg.kernel
        def run():
            for i in sg.grouped(x):
                c = x[i]
                v, n = c, 0
                while n < 60 and v * v < 4.0:
                    w = sg.sin(v) + v / (1.5 + c * c)
                    v = v * v + c * 0.7 + w * 0.01
                    n += 1
                for k in range(n % 7, n):
                    v = sg.exp(-v * v) * 1.5 - sg.sqrt(sg.abs(v)) + 0.1 * k
                x[i] = v
                steps[i] = n

        x.from_numpy(np.linspace(-2, 1, int(np.prod(shape))).astype(np.float32).reshape(shape))
        run()
        found.append((x.to_numpy().view(np.int32), steps.to_numpy()))
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("t", [sg.f32, sg.i32], ids=str)
@pytest.mark.parametrize("width", [2, 3, 4])
def test_entries_of_vectors_in_branches(width: int, t) -> None:
    """Bodies without loops: neighbours on both sides are loaded entry by entry where a condition holds, and only there."""
    vectors = sg.types.ndarray(sg.types.vector(width, t), 1)

    @sg.kernel
    def run(x: vectors, y: vectors, on: ints):
        for i in range(y.shape[0]):
            total = 0 * y[i]
            for side in sg.static((0, 1, 2)):
                if on[i + side] > 0:
                    v = x[i] - x[i + side] + side
                    for k in sg.static(range(6)):
                        v = v * (k + 1) - x[i + side] * v
                    total += v
            if on[i] != 1:
                y[i] = total

    rng = np.random.default_rng(width)
    for n in (1, 15, 16, 37):
        on = rng.integers(0, 3, n + 2).astype(np.int32)
        x = rng.integers(-2, 3, (n + 2, width)).astype(t.np)
        y = np.full((n, width), 7, t.np)
        run(x, y, on)
        want = np.full((n, width), 7, np.int64 if t is sg.i32 else np.float64)
        for i in range(n):
            total = np.zeros(width, want.dtype)
            for side in range(3):
                if on[i + side] > 0:
                    v = x[i].astype(want.dtype) - x[i + side] + side
                    for k in range(6):
                        v = v * (k + 1) - x[i + side] * v
                    total += v
            if on[i] != 1:
                want[i] = total
        np.testing.assert_allclose(y, want, rtol=1e-5)


@pytest.mark.archs("cpu")
def test_entries_of_vectors_at_the_end_of_memory() -> None:
    """Loads of entries touch nothing else: after the last element there is no memory."""
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    if not hasattr(libc, "mprotect") or libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0):
        pytest.skip("pages cannot be protected here")
    vectors = sg.types.ndarray(sg.types.vector(3, sg.f32), 1)

    @sg.kernel
    def run(x: vectors, y: vec):
        for i in range(y.shape[0]):
            if i % 3 != 1:
                v = x[i]
                for _ in sg.static(range(25)):
                    v = v * 0.5 + x[i] * v[0]
                y[i] = v[1]

    n = 37
    x = np.frombuffer(pages, np.float32, 3 * n, mmap.PAGESIZE - 12 * n).reshape(n, 3)
    x[...] = np.linspace(0, 0.5, 3 * n, dtype=np.float32).reshape(n, 3)
    y = np.full(n, -1, np.float32)
    run(x, y)
    want = x.copy()
    for _ in range(25):
        want = want * np.float32(0.5) + x * want[:, :1]
    np.testing.assert_allclose(y, np.where(np.arange(n) % 3 == 1, -1, want[:, 1]), rtol=1e-5)
    assert any(f"llvm.masked.load.v{n}f32" in run.llvm() for n in (8, 16))
