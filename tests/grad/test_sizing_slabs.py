"""Adstacks of several kinds, loops and tasks in one launch: none sees what another holds. Results are amplified: aliasing is 200 against
0."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest
from grad.chains import AMPLIFIED, advance, advanced, chains, compare, launch, starts

import spirograd as sg

# The interpreter has no sizes: its adstacks grow as they are written.
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("cpu", "vulkan", "wgpu")]


@pytest.mark.vulkan_or_wgpu
def test_an_integer_tape_beside_a_float_tape_under_a_bound_of_an_array() -> None:
    """The integer decides which way the float goes; its adstack is full of numbers that are denormal as floats, the other's of ones that
    are huge as integers. The two loops differ in length."""
    n = 70
    x, y = chains(n)

    @sg.kernel
    def run(many: sg.types.ndarray(sg.i32, 1), few: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            v, k = x[i], 1 + i
            for _ in range(many[i]):
                if k % 2 == 0:
                    v = advance(v)
                k = (k * 7 + 3) % 1013
            for _ in range(few[i]):
                k = (k * k + 1) % 1009
                if k % 3 == 0:
                    v = advance(v)
            y[i] = AMPLIFIED * v

    for at, longest in enumerate((1, 20, 50, 512, 0, 3)):
        rng = np.random.default_rng(at)
        many, few = (rng.integers(0, m + 1, n).astype(np.int32) for m in (longest, longest // 8 + at))
        trips = np.zeros(n, np.int32)
        for i in range(n):
            k = 1 + i
            for _ in range(many[i]):
                trips[i] += k % 2 == 0
                k = (k * 7 + 3) % 1013
            for _ in range(few[i]):
                k = (k * k + 1) % 1009
                trips[i] += k % 3 == 0
        compare(run, (many, few), x, y, trips)


KINDS = [(sg.f32, sg.i64), (sg.f32, sg.u8), (sg.f64, sg.u64), (sg.f64, sg.i16)]


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("t,integer", KINDS, ids=str)
def test_tapes_of_words_and_of_double_words(t: Any, integer: Any) -> None:
    """Carried f32, f64, i32, another integer and a bool in one task; loops of odd lengths, so that nothing is aligned by luck."""
    needs.of_type(sg.f64)
    n = 33
    x, y = chains(n, t)
    scale = sg.field(sg.f64, n, needs_grad=True)
    count = sg.field(sg.i32, n)

    @sg.kernel
    def run():
        for i in x:
            v, w, k, big, odd = x[i], scale[i], i, sg.cast(i % 5, integer), False
            for _ in range(count[i]):
                if odd:
                    v = advance(v)
                else:
                    w = advance(w)
                k = (k * 5 + 1) % 97
                big = sg.cast((big * sg.cast(3, integer) + sg.cast(k, integer)) % sg.cast(113, integer), integer)
                odd = (sg.cast(big, sg.i32) + k) % 3 != 0
            for _ in range(k % 4):
                w = advance(w)
            y[i] = sg.cast(AMPLIFIED * v, t) + sg.cast(AMPLIFIED * w, t)

    for at, longest in enumerate((7, 1, 0, 61, 3)):
        counts = np.random.default_rng(at).integers(0, longest + 1, n).astype(np.int32)
        count.from_numpy(counts)
        trips = np.zeros((2, n), np.int32)
        for i in range(n):
            k, big, odd = i, i % 5, False
            for _ in range(counts[i]):
                trips[0 if odd else 1, i] += 1
                k = (k * 5 + 1) % 97
                big = (big * 3 % kind_size(integer) + k) % kind_size(integer) % 113
                odd = (big + k) % 3 != 0
            trips[1, i] += k % 4
        begin = starts(n, np.float64)[::-1].copy()
        scale.from_numpy(begin)
        scale.grad.fill(0.0)
        seeds = launch(run, (), x, y)
        (v, by_x), (w, by_scale) = advanced(starts(n, seeds.dtype), trips[0]), advanced(begin, trips[1])
        np.testing.assert_allclose(y.to_numpy(), AMPLIFIED * (v + w), rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(x.grad.to_numpy(), AMPLIFIED * by_x * seeds, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(scale.grad.to_numpy(), AMPLIFIED * by_scale * seeds, rtol=1e-6 if t is sg.f64 else 1e-3)


def kind_size(integer: Any) -> int:
    """What products wrap at; large enough for none to where they are of 16 bits and more."""
    return 2**8 if integer is sg.u8 else 2**62


@pytest.mark.vulkan_or_wgpu
def test_several_tasks_with_and_without_tapes() -> None:
    """Parallel tasks of other lengths, a serial one between them, one that has no adstack; capacities of 0 on and off."""
    n, m = 300, 17
    x, y = chains(n)
    u, w = chains(m)
    s, total = chains(1)
    count = sg.field(sg.i32, n)

    @sg.kernel
    def run(few: sg.i32, serial: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(count[i]):
                v = advance(v)
            y[i] = AMPLIFIED * v
        sg.loop_config(serialize=True)
        for j in range(1):
            v = s[j]
            for _ in range(serial):
                v = advance(v)
            total[j] = AMPLIFIED * v
        for i in x:
            y[i] += 3.0 * x[i]
        for i in u:
            v = u[i]
            for _ in range(few * i):
                v = advance(v)
            w[i] = AMPLIFIED * v

    for longest, few, serial in ((5, 3, 100), (0, 0, 0), (0, 9, 0), (200, 0, 1), (1, 1, 700)):
        counts = np.random.default_rng(longest).integers(0, longest + 1, n).astype(np.int32)
        count.from_numpy(counts)
        parts = [(x, y, counts, 3.0), (u, w, few * np.arange(m), 0.0), (s, total, serial, 0.0)]
        for start, end, _, _ in parts:
            start.from_numpy(starts(start.shape[0]))
            start.grad.fill(0.0)
            end.grad.fill(1.0)
        run(few, serial)
        run.grad(few, serial)
        for start, end, trips, linear in parts:
            v, slope = advanced(starts(start.shape[0]), trips)
            np.testing.assert_allclose(end.to_numpy(), AMPLIFIED * v + linear * starts(start.shape[0]), rtol=3e-3, atol=1e-3)
            np.testing.assert_allclose(start.grad.to_numpy(), AMPLIFIED * slope + linear, rtol=3e-3)


@pytest.mark.vulkan_or_wgpu
def test_loops_side_by_side_and_one_in_another() -> None:
    """Four adstacks of one task: two loops in a row in an outer loop, and one after it; each is longest in another iteration."""
    n = 40
    x, y = chains(n)
    counts = sg.field(sg.i32, (4, n))

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(counts[0, i]):
                for _ in range(counts[1, (i + j) % n]):
                    v = advance(v)
                v = advance(v)
                for _ in range(counts[2, (i * j) % n]):
                    v = advance(v)
            for _ in range(counts[3, i]):
                v = advance(v)
            y[i] = AMPLIFIED * v

    for at in range(4):
        c = np.random.default_rng(at).integers(0, 4, (4, n)).astype(np.int32)
        c[at, 5 * at] = 50
        counts.from_numpy(c)
        trips = [c[3, i] + sum(c[1, (i + j) % n] + 1 + c[2, i * j % n] for j in range(c[0, i])) for i in range(n)]
        compare(run, (), x, y, trips)


@pytest.mark.parametrize("block", [192, 64, 1])
def test_workgroups_that_do_not_divide_the_iterations(block: int) -> None:
    """65,700 iterations in workgroups of 192 are 342.2: rounded up, and to the rows of a heap of 65,536, they would run past its end."""
    n = 65_700 if block > 1 else 700
    x, y = chains(n)
    count = sg.field(sg.i32, n)

    @sg.kernel
    def run():
        sg.loop_config(block_dim=block)
        for i in x:
            v, k = x[i], i % 7
            for _ in range(count[i]):
                if k % 2 == 1:
                    v = advance(v)
                k = (k * 3 + 1) % 7
            y[i] = AMPLIFIED * v

    for longest in (9, 2, 40):
        counts = np.arange(n) % (longest + 1)
        counts[-1] = longest + 30
        count.from_numpy(counts.astype(np.int32))
        trips, k = np.zeros(n, np.int32), np.arange(n) % 7
        for j in range(longest + 30):
            trips += (j < counts) & (k % 2 == 1)
            k = (k * 3 + 1) % 7
        compare(run, (), x, y, trips)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("few,many", [(4, 9), (9, 4), (1, 130), (130, 1), (7, 7), (0, 5)])
def test_two_arrays_of_other_lengths_in_one_loop(few: int, many: int) -> None:
    """One task over the longer; each is read where it has elements. Behind both, in the same memory, are numbers that are no bounds."""
    torch = needs.package("torch")
    n = max(few, many)
    x, y = chains(n)

    @sg.kernel
    def run(a: sg.types.ndarray(sg.i32, 1), b: sg.types.ndarray(sg.i32, 1)):
        for i in range(sg.max(a.shape[0], b.shape[0])):
            v = x[i]
            if i < a.shape[0]:
                for _ in range(a[i]):
                    v = advance(v)
            if i < b.shape[0]:
                for _ in range(b[i]):
                    v = advance(v)
            if i < sg.min(a.shape[0], b.shape[0]):
                for _ in range(sg.min(a[i], b[i])):
                    v = advance(v)
            y[i] = AMPLIFIED * v

    memory = torch.full((4096,), 2**31 - 1, dtype=torch.int32)
    a, b = memory[100 : 100 + few], memory[1000 : 1000 + many]
    for at in range(3):
        counts = [np.random.default_rng(at + k).integers(0, 9 + 20 * at, size).astype(np.int32) for k, size in enumerate((few, many))]
        for tensor, values in zip((a, b), counts):
            tensor.copy_(torch.from_numpy(values))
        long = [np.concatenate([c, np.zeros(n - len(c), np.int32)]) for c in counts]
        compare(run, (a, b), x, y, long[0] + long[1] + np.minimum(*long))
    assert (memory == 2**31 - 1).sum() >= 4096 - few - many


@pytest.mark.vulkan_or_wgpu
def test_two_fields_of_other_lengths_in_one_loop() -> None:
    """As with arrays: here in the memory of one tree, where the longer one's elements follow the shorter's."""
    few, many = 5, 40
    a, guard, b = sg.field(sg.i32, few), sg.field(sg.i32, 64), sg.field(sg.i32, many)
    x, y = chains(many)

    @sg.kernel
    def run():
        for i in range(many):
            v = x[i]
            if i < few:
                for _ in range(a[i]):
                    v = advance(v)
            for _ in range(b[i] if i >= few else a[i] + b[i]):
                v = advance(v)
            y[i] = AMPLIFIED * v

    guard.fill(2**31 - 1)
    for at in range(3):
        left, right = (np.random.default_rng(at).integers(0, 9 + 20 * at, size).astype(np.int32) for size in (few, many))
        a.from_numpy(left)
        b.from_numpy(right)
        long = np.concatenate([left, np.zeros(many - few, np.int32)])
        compare(run, (), x, y, 2 * long + right)
