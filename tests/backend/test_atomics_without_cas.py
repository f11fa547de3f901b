"""Atomics on a device without compare-and-swap and without atomics of floats: wgpu, and the Vulkan device with that taken from it.

Thousands of invocations compete for few elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.base.dtypes import DType
from spirograd.llvmgen.toolchain import host_caps

# The Vulkan device lacks here what wgpu lacks, so the modules of both say the same.
pytestmark = [pytest.mark.archs("vulkan", "wgpu"), pytest.mark.vulkan_or_wgpu]
NARROW = (sg.i8, sg.u8, sg.i16, sg.u16)
FLOATS = (sg.f32, sg.f64)
INTS = sg.types.ndarray(sg.i32, 1)
N = 4096
Array = np.ndarray[Any, Any]
_MISSING = dict.fromkeys(("atomic_cas", "atomic_f32_add", "atomic_f64_add", "atomic_f32_minmax"), False)
_NO_NARROW = dict.fromkeys(("int8", "int16", "storage8", "storage16"), False)


@pytest.fixture(autouse=True)
def _keep_from_llvmpipe(request: pytest.FixtureRequest, arch: str) -> None:
    """llvmpipe of LLVM 15 cannot compile some of these kernels of f64 for CPUs without AVX-512, and ends the process; with what is taken
    from the device here it can, and through wgpu, which lacks the same, too."""
    if arch == "vulkan" and request.node.callspec.params.get("t") is sg.f64:
        sg.init(arch=arch)
        driver = sg.lang.context.session().device.info.driver
        if "llvmpipe" in driver and "LLVM 15" in driver and "+avx512f" not in host_caps().cpu_features:
            pytest.skip(f"{needs.PREFIX}AVX-512: {driver} aborts without it")


def init(arch: str, **missing: bool) -> Any:
    sg.init(arch=arch, offline_cache=False)
    session = sg.lang.context.session()
    session.device.caps = replace(session.device.caps, **_MISSING, **missing)
    return session


@pytest.fixture
def device(arch: str) -> Any:
    return init(arch)


@pytest.fixture(params=({}, _NO_NARROW), ids=("narrow types", "words only"))
def any_memory(arch: str, request: pytest.FixtureRequest) -> Any:
    return init(arch, **request.param)


@pytest.fixture(params=(1 << 15, *[pytest.param(1 << k, marks=pytest.mark.long) for k in (17, 20)]))
def many(device: Any, request: pytest.FixtureRequest) -> int:
    """How many invocations meet for sure: on two processors few do, on a graphics card many (and a million that wait for one lock take it
    minutes)."""
    kind = dict(device.device.info.detail).get("kind", "cpu")
    return int(request.param) if kind == "cpu" else 1 << 13


def integers(t: DType, n: int = N, seed: int = 1) -> Array:
    """Numbers whose sums are exact in every type."""
    return np.random.default_rng(seed).integers(-100 if t.is_signed else 0, 100, n).astype(t.np)


def buckets(x: Array, count: int, function: Callable[[Array], Any]) -> list[Any]:
    return [function(x[k::count]) for k in range(count)]


@pytest.mark.parametrize("count", (1, 7))
@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_one_kind_of_floats(device: Any, t: DType, count: int) -> None:
    array = sg.types.ndarray(t, 1)

    @sg.kernel
    def run(x: array, total: array, low: array, high: array):
        for i in x:
            k = i % total.shape[0]
            sg.atomic_add(total[k], x[i])
            sg.atomic_min(low[k], x[i])
            sg.atomic_max(high[k], x[i])

    # The same kinds on one array each: arrays of one type may be the same, so these are apart.
    @sg.kernel
    def add(x: array, total: array):
        for i in x:
            sg.atomic_add(total[i % total.shape[0]], x[i])

    @sg.kernel
    def least(x: array, low: array):
        for i in x:
            sg.atomic_min(low[i % low.shape[0]], x[i])

    @sg.kernel
    def most(x: array, high: array):
        for i in x:
            sg.atomic_max(high[i % high.shape[0]], x[i])

    x = integers(t)
    for _ in range(3):
        total, low, high = np.full(count, 3, t.np), np.full(count, np.inf, t.np), np.full(count, -np.inf, t.np)
        run(x, total, low, high)
        other = [np.full(count, 3, t.np), np.full(count, np.inf, t.np), np.full(count, -np.inf, t.np)]
        for kernel, out in zip((add, least, most), other):
            kernel(x, out)
        for sums, least_, most_ in ((total, low, high), other):
            np.testing.assert_array_equal(sums, buckets(x, count, lambda part: part.sum() + 3))
            np.testing.assert_array_equal(least_, buckets(x, count, np.min))
            np.testing.assert_array_equal(most_, buckets(x, count, np.max))


@pytest.mark.parametrize("t", (sg.i32, sg.u32, sg.i64, sg.f32, sg.f64), ids=str)
def test_products(device: Any, t: DType) -> None:
    array = sg.types.ndarray(t, 1)

    @sg.kernel
    def run(x: array, product: array):
        for i in x:
            sg.atomic_mul(product[i % 3], x[i])

    x = np.where(np.arange(N) % 97 < 2, 2 if t.is_float else 3, 1).astype(t.np)
    x[1::2] *= 1 if not t.is_signed else -1
    product = np.ones(3, t.np)
    run(x, product)
    np.testing.assert_array_equal(product, buckets(x, 3, lambda part: np.prod(part, dtype=t.np)))


SPECIALS = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -2.5)


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_special_values(device: Any, t: DType) -> None:
    """Every pair of what is in memory and what comes, alone and 16 times; placeholders among them, and NaN of another form."""
    array = sg.types.ndarray(t, 1)

    @sg.kernel
    def add(x: array, out: array, times: sg.i32):
        for i in range(x.shape[0] * times):
            sg.atomic_add(out[i // times], x[i // times])

    @sg.kernel
    def least(x: array, out: array, times: sg.i32):
        for i in range(x.shape[0] * times):
            sg.atomic_min(out[i // times], x[i // times])

    @sg.kernel
    def most(x: array, out: array, times: sg.i32):
        for i in range(x.shape[0] * times):
            sg.atomic_max(out[i // times], x[i // times])

    @sg.kernel
    def times_(x: array, out: array, times: sg.i32):
        for i in range(x.shape[0] * times):
            sg.atomic_mul(out[i // times], x[i // times])

    odd = np.array([0x7FC12345], np.uint32).view(np.float32) if t is sg.f32 else np.array([0x7FF8123456789ABC], np.uint64).view(np.float64)
    values = np.concatenate([np.array(SPECIALS, t.np), odd])
    start, x = np.repeat(values, len(values)), np.tile(values, len(values))
    functions = ((add, np.add), (least, np.fmin), (most, np.fmax), (times_, np.multiply))
    for kernel, function in functions:
        for times in (1, 16):
            out, want = start.copy(), start.copy()
            kernel(x, out, times)
            with np.errstate(all="ignore"):
                for _ in range(times):
                    want = function(want, x).astype(t.np)
            np.testing.assert_array_equal(out, want, err_msg=f"{function} {times}")
            if function in (np.add, np.multiply):
                plain = ~np.isnan(want)
                np.testing.assert_array_equal(np.signbit(out[plain]), np.signbit(want[plain]))


@pytest.mark.parametrize("t", (*FLOATS, *NARROW[1:]), ids=str)
def test_old_values_are_tickets(any_memory: Any, t: DType) -> None:
    """Every old value of a counter is seen once; narrow counters wrap."""
    array = sg.types.ndarray(t, 1)

    @sg.kernel
    def run(counter: array, seen: INTS):
        for i in range(seen.shape[0]):
            seen[i] = sg.i32(sg.atomic_add(counter[1], 1))

    counter, seen = np.zeros(3, t.np), np.zeros(N, np.int32)
    run(counter, seen)
    period = N if t.bits >= 32 else 1 << t.bits
    numbers = np.sort(np.arange(N) % period if t.is_float or not t.is_signed else np.arange(N).astype(t.np).astype(np.int32))
    np.testing.assert_array_equal(np.sort(seen), numbers)
    np.testing.assert_array_equal(counter, np.array([0, N, 0]).astype(t.np))


@pytest.mark.parametrize("t", NARROW, ids=str)
def test_narrow_elements(any_memory: Any, t: DType) -> None:
    """Neighbours in one word, under different locks, some written plainly."""
    array = sg.types.ndarray(t, 1)

    @sg.kernel
    def run(x: array, out: array):
        for i in x:
            k = i % 7
            if k < 4:
                sg.atomic_add(out[k], x[i])
            elif k == 4:
                sg.atomic_max(out[k], x[i])
            elif k == 5:
                sg.atomic_xor(out[k], x[i])
            elif i == 6:
                out[k] = x[i]

    x = integers(t)
    out = np.zeros(9, t.np)
    run(x, out)
    want = [*buckets(x, 7, lambda part: part.sum(dtype=t.np))[:4], max(0, x[4::7].max()), np.bitwise_xor.reduce(x[5::7]), x[6], 0, 0]
    np.testing.assert_array_equal(out, np.array(want, t.np))


@pytest.mark.parametrize("t", (sg.i32, sg.u64, sg.f32, sg.f64, *NARROW), ids=str)
def test_compare_and_swap(any_memory: Any, t: DType) -> None:
    """A race that one invocation of each group of eight wins, and a loop of compare-and-swap that adds."""
    array = sg.types.ndarray(t, 1)

    @sg.kernel
    def race(cells: array, wins: INTS):
        for i in range(wins.shape[0] * 8):
            if sg.atomic_cas(cells[i // 8], 5, 6) == 5:
                wins[i // 8] += 1

    @sg.kernel
    def count(cell: array):
        for _ in range(N // 4):
            old = cell[0]
            while True:
                seen = sg.atomic_cas(cell[0], old, old + sg.cast(1, t))
                if seen == old:
                    break
                old = seen

    cells, wins, cell = np.full(100, 5, t.np), np.zeros(100, np.int32), np.zeros(1, t.np)
    cells[::3] = 4
    race(cells, wins)
    np.testing.assert_array_equal(wins, np.where(np.arange(100) % 3 == 0, 0, 1))
    np.testing.assert_array_equal(cells, np.where(np.arange(100) % 3 == 0, 4, 6).astype(t.np))
    count(cell)
    assert cell[0] == np.array(N // 4).astype(t.np)


@pytest.mark.parametrize("t", (sg.i32, sg.f32, sg.f64), ids=str)
def test_several_kinds_on_one_element(many: int, t: DType) -> None:
    """Additions, a compare-and-swap that never fits, and maxima that change nothing: the sum is as if there were additions only."""
    array = sg.types.ndarray(t, 1)

    @sg.kernel
    def run(x: array, out: array):
        for i in x:
            k = i // 4 % 2
            if i % 4 == 0:
                sg.atomic_max(out[k], -1e6)
            elif i % 4 == 1:
                sg.atomic_cas(out[k], 12345678, 0)
            else:
                sg.atomic_add(out[k], x[i])

    n = many
    x = integers(t, n)
    out = np.zeros(2, t.np)
    run(x, out)
    i = np.arange(n)
    np.testing.assert_array_equal(out, [x[(i // 4 % 2 == k) & (i % 4 > 1)].sum() for k in (0, 1)])


def test_the_same_array_twice(many: int) -> None:
    """One element under two names, by two kinds of atomics."""
    n = many

    @sg.kernel
    def run(a: sg.types.ndarray(sg.f32, 1), b: sg.types.ndarray(sg.f32, 1)):
        for i in range(n):
            k = i // n  # 0, which the compiler must not know: it would sum up first
            sg.atomic_add(a[k], 1.0)
            sg.atomic_max(b[k], 1.0)

    x = sg.ndarray(sg.f32, 1)
    x.fill(1)
    run(x, x)
    assert x[0] == n + 1


def test_reading_beside_adding(many: int) -> None:
    """Who reads the element meanwhile sees no placeholder: the minimum of positive numbers never seems to be NaN or below."""
    n = many

    @sg.kernel
    def run(low: sg.types.ndarray(sg.f32, 1), bad: INTS):
        for i in range(n):
            sg.atomic_min(low[0], sg.f32(n - i))
            if not (low[0] >= 1.0):
                bad[0] += 1

    low, bad = np.full(1, 1e9, np.float32), np.zeros(1, np.int32)
    run(low, bad)
    assert low[0] == 1 and bad[0] == 0


def test_reductions_and_fields(device: Any) -> None:
    """What `reductions` leaves for each workgroup, and fields of one tree, of which one is exchanged and one is locked."""
    total, tickets = sg.field(sg.f32, shape=()), sg.field(sg.f32, shape=4)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), seen: INTS) -> sg.f32:
        s = 0.0
        for i in x:
            s += x[i]
            total[None] += x[i]
            seen[i] = sg.i32(sg.atomic_add(tickets[i % 4], 1.0))
        return s

    x, seen = integers(sg.f32), np.zeros(N, np.int32)
    assert run(x, seen) == x.sum() == total[None]
    for k in range(4):
        np.testing.assert_array_equal(np.sort(seen[k::4]), np.arange(N // 4))


def test_locks_are_open_afterwards(device: Any) -> None:
    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), out: sg.types.ndarray(sg.f32, 1)):
        for i in x:
            out[i] = sg.atomic_add(x[i % 100], 1.0)

    run(np.zeros(N, np.float32), np.zeros(N, np.float32))
    words = np.zeros(4096, np.uint32)
    device.launcher._locks.read_into(0, memoryview(words).cast("B"))
    assert not words.any()


def test_loops_around_waiting_are_checked(device: Any) -> None:
    """Each wait is short and so is the loop around them, but together they are more than llvmpipe's limit: nothing is lost in silence."""

    @sg.kernel
    def run(out: sg.types.ndarray(sg.f32, 1), last: sg.types.ndarray(sg.f32, 1)):
        for i in range(16):
            for _ in range(10_000):
                last[i] = sg.atomic_add(out[0], 1.0)

    out, last = np.zeros(1, np.float32), np.zeros(16, np.float32)
    if device.device.caps.loop_limit:
        with pytest.raises(sg.SpirogradRuntimeError, match="ends loops after 65,535 iterations"):
            run(out, last)
            sg.sync()
    else:
        run(out, last)
        assert out[0] == 16 * 10_000
    test_locks_are_open_afterwards(device)


def test_waiting_that_a_driver_ends_is_an_error(device: Any) -> None:
    """Locks that are never opened: the wait ends, nothing is updated, and there is an error."""
    if not device.device.caps.loop_limit:
        pytest.skip("this driver lets loops run for as long as they like")

    @sg.kernel
    def run(out: sg.types.ndarray(sg.f32, 1), last: sg.types.ndarray(sg.f32, 1)):
        for i in last:
            last[i] = sg.atomic_add(out[0], 1.0)

    out, last = np.zeros(1, np.float32), np.zeros(8, np.float32)
    run(out, last)
    assert out[0] == 8
    locks = device.launcher._locks
    locks.write(0, memoryview(np.ones(4096, np.uint32)).cast("B"))
    with pytest.raises(sg.SpirogradRuntimeError, match="before an atomic was complete") as error:
        run(out, last)
        sg.sync()
    assert "sg.atomic_add(out[0], 1.0)" in str(error.value)
    locks.write(0, memoryview(np.zeros(4096, np.uint32)).cast("B"))
    run(out, last)
    assert out[0] == 16
