"""Atomics of 64-bit elements on a device without 64-bit atomics, such as Apple's: they run under locks, on both words of an element."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.dtypes import DType

# Other targets have 64-bit atomics wherever they have 64-bit integers, or cannot view a buffer as words.
pytestmark = pytest.mark.archs("vulkan")
N = 4096
INTEGERS = (sg.i64, sg.u64)
LONG = (*INTEGERS, sg.f64)
_MISSING = dict.fromkeys(("atomic_int64", "atomic_f64_add", "atomic_f64_minmax"), False)


@pytest.fixture(autouse=True, params=(True, False), ids=("compare-and-swap", "no compare-and-swap"))
def without_long_atomics(request: pytest.FixtureRequest, arch: str) -> None:
    sg.init(arch=arch, offline_cache=False)
    device = sg.lang.context.session().device
    device.caps = replace(device.caps, **_MISSING, atomic_cas=request.param)


def numbers(t: DType, seed: int = 1) -> np.ndarray[Any, Any]:
    """Numbers whose sums carry from one word to the other, and are exact in f64."""
    low = -(1 << 36) if t is not sg.u64 else 0
    return np.random.default_rng(seed).integers(low, 1 << 36, N).astype(t.np)


@pytest.mark.parametrize("t", LONG, ids=str)
@pytest.mark.parametrize("count", (1, 7))
def test_sums(t: DType, count: int) -> None:
    array = sg.types.ndarray(t, 1)

    @sg.kernel
    def run(x: array, out: array):
        for i in x:
            sg.atomic_add(out[i % count], x[i])

    x, out = numbers(t), np.zeros(count + 1, t.np)
    run(x, out)
    np.testing.assert_array_equal(out, [*[x[k::count].sum(dtype=t.np) for k in range(count)], 0])


@pytest.mark.parametrize("t", LONG, ids=str)
def test_extrema_and_a_scalar_that_a_loop_updates(t: DType) -> None:
    array = sg.types.ndarray(t, 1)

    @sg.kernel
    def run(x: array, low: array, high: array) -> t:
        total = sg.cast(0, t)
        for i in x:
            sg.atomic_min(low[i % 3], x[i])
            sg.atomic_max(high[i % 3], x[i])
            total += x[i]
        return total

    x = numbers(t)
    low, high = x[:3].copy(), x[:3].copy()
    assert run(x, low, high) == x.sum(dtype=t.np)
    np.testing.assert_array_equal(low, [x[k::3].min() for k in range(3)])
    np.testing.assert_array_equal(high, [x[k::3].max() for k in range(3)])


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_bits(t: DType) -> None:
    array = sg.types.ndarray(t, 1)

    @sg.kernel
    def run(x: array, out: array):
        for i in x:
            sg.atomic_or(out[0], x[i])
            sg.atomic_and(out[1], x[i])
            sg.atomic_xor(out[2], x[i])

    x = numbers(t, 2) & ((1 << 33) + 17) | (1 << 34)
    out = np.array([0, -1, 0], np.int64).astype(t.np)
    run(x, out)
    np.testing.assert_array_equal(out, [np.bitwise_or.reduce(x), np.bitwise_and.reduce(x), np.bitwise_xor.reduce(x)])


@pytest.mark.parametrize("t", LONG, ids=str)
def test_every_old_value_is_seen_once(t: DType) -> None:
    array = sg.types.ndarray(t, 1)

    @sg.kernel
    def run(counter: array, seen: array):
        for i in seen:
            seen[i] = sg.atomic_add(counter[1], sg.cast(3, t))

    start = (1 << 32) - 3 * N // 2  # The counter carries half-way.
    counter, seen = np.array([0, start, 0]).astype(t.np), np.zeros(N, t.np)
    run(counter, seen)
    np.testing.assert_array_equal(np.sort(seen), np.arange(start, start + 3 * N, 3).astype(t.np))
    np.testing.assert_array_equal(counter, np.array([0, start + 3 * N, 0]).astype(t.np))


@pytest.mark.parametrize("t", LONG, ids=str)
def test_compare_and_swap(t: DType) -> None:
    """A race that one of each eight invocations wins; expected values differ in one word only."""
    array = sg.types.ndarray(t, 1)
    five, other = 5 + (1 << 33), 5 + (1 << 34)

    @sg.kernel
    def race(cells: array, wins: sg.types.ndarray(sg.i32, 1)):
        for i in range(wins.shape[0] * 8):
            if sg.atomic_cas(cells[i // 8], sg.cast(five, t), sg.cast(6, t)) == sg.cast(five, t):
                wins[i // 8] += 1

    cells, wins = np.full(100, five).astype(t.np), np.zeros(100, np.int32)
    cells[::3] = other
    race(cells, wins)
    mine = np.arange(100) % 3 != 0
    np.testing.assert_array_equal(wins, mine.astype(np.int32))
    np.testing.assert_array_equal(cells, np.where(mine, 6, other).astype(t.np))


def test_gradients_that_meet() -> None:
    x, y = sg.field(sg.f64, shape=3, needs_grad=True), sg.field(sg.f64, shape=N, needs_grad=True)

    @sg.kernel
    def run():
        for i in y:
            y[i] = x[i % 3] * sg.cast(i, sg.f64)

    run()
    y.grad.fill(1.0)
    run.grad()
    np.testing.assert_array_equal(x.grad.to_numpy(), [np.arange(k, N, 3).sum() for k in range(3)])


def test_a_device_without_64_bit_integers_refuses() -> None:
    device = sg.lang.context.session().device
    device.caps = replace(device.caps, int64=False)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f64, 1)):
        for i in x:
            sg.atomic_add(x[0], x[i])

    with pytest.raises(sg.SpirogradUnsupportedError, match="64-bit"):
        run(np.zeros(3))
