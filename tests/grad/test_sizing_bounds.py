"""Adstacks of loops whose bounds are hard to know: read through other reads, ragged to depth four, carried, of floats, below conditions.

Gradients against Jacobians by finite differences (`check.py`), or chains whose iterations are counted here with NumPy (`chains.py`).
"""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest
from grad.chains import AMPLIFIED, advance, chains, compare
from grad.check import Program, check

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session")]

N = 6
GARBAGE = 2**31 - 1


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def filled(values: np.ndarray, t: Any = sg.i32) -> Any:
    memory = sg.field(t, values.shape)
    memory.from_numpy(values)
    return memory


def read_through_a_read(t: Any) -> Program:
    x, y = chains(N, t)
    where, count = sg.field(sg.i32, N), sg.ndarray(sg.i32, 4)

    @sg.kernel
    def run(count: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            v = x[i]
            for j in range(count[where[i]]):
                v = sg.sin(v) * t(1.3) + v * x[(i + j) % N]
            y[i] = v

    def prepare(at: int) -> None:
        where.from_numpy(np.roll(ints(3, 0, 2, 2, 0, 1), at))
        count.from_numpy(ints(0, 5, 2, 7 - at))

    return Program(run, [x, y], [count], prepare)


def read_through_three(t: Any) -> Program:
    """Reads of reads of reads, inside a loop whose bound is one of them."""
    x, y = chains(N, t)
    a, b = sg.field(sg.i32, N), sg.field(sg.i32, N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(a[b[i]]):
                for k in range(b[a[b[j]]]):
                    v = v * x[k] * t(0.7) + sg.sin(v)
            y[i] = v

    def prepare(at: int) -> None:
        a.from_numpy(np.roll(ints(1, 4, 2, 0, 3, 5), at))
        b.from_numpy(np.roll(ints(2, 0, 5, 1, 3, 2), -at))

    return Program(run, [x, y], prepare=prepare)


def rows_of_a_sparse_matrix(t: Any) -> Program:
    """CSR: from ``begin[i]`` to ``begin[i + 1]``; some rows are empty."""
    x, y = chains(N, t)
    begin, column = sg.field(sg.i32, N + 1), sg.field(sg.i32, 12)
    value = sg.field(t, 12, needs_grad=True)
    column.from_numpy(ints(0, 3, 5, 1, 1, 2, 4, 0, 5, 3, 2, 1))

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(begin[i], begin[i + 1]):
                v = sg.sin(v) + value[j] * x[column[j]] * v
            w = v
            for j in range(begin[i + 1] - begin[i]):
                w = w * v * t(0.4) + value[begin[i] + j]
            y[i] = w

    def prepare(at: int) -> None:
        begin.from_numpy([ints(0, 3, 3, 4, 9, 12, 12), ints(0, 0, 0, 1, 1, 1, 12)][at])

    return Program(run, [x, y, value], prepare=prepare)


def ragged_to_depth_four(t: Any) -> Program:
    """Each level reads its bound at an index that depends on the levels around it."""
    x, y = chains(N, t)
    one, two, three = sg.field(sg.i32, N), sg.field(sg.i32, (N, 3)), sg.field(sg.i32, 9)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for a in range(one[i]):
                v = sg.sin(v) + x[a]
                for b in range(two[i, a]):
                    v = v * t(0.7) + x[b] * v
                    for c in range(three[a + b]):
                        v = sg.cos(v * x[c])
                        for d in range(three[(a + b + c) % 9] - c):
                            v += v * x[d] * t(0.2)
                    v *= t(1.1)
                v += t(0.1) * v * v
            y[i] = v

    def prepare(at: int) -> None:
        one.from_numpy(np.roll(ints(0, 3, 1, 2, 0, 1), at))
        two.from_numpy(np.random.default_rng(at).integers(0, 3, (N, 3)).astype(np.int32))
        three.from_numpy(np.roll(ints(2, 0, 3, 1, 0, 4, 1, 0, 2), at))

    return Program(run, [x, y], prepare=prepare)


def bound_of_what_is_carried(t: Any) -> Program:
    """The inner bound follows from integers that the outer loop carries, one of them read from memory on the way."""
    x, y = chains(N, t)
    follow = filled(ints(3, 5, 1, 0, 2, 4))

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            v, at, m = x[i], i, 2
            for j in range(n):
                for k in range(m):
                    v = sg.sin(v) + x[at] * v * t(0.3)
                m = (m * 3 + at + j) % 5
                at = follow[(at + k_of(m)) % N]
            for k in range(at):
                v = v * x[k] + t(0.1) * v * v
            y[i] = v

    return Program(run, [x, y], [5])


@sg.func
def k_of(m):
    return m // 2


def while_of_carried_values(t: Any) -> Program:
    """Two loops that end on what they compute, one in the other; the inner one's adstack is sized by values on the outer one's."""
    x, y = chains(N, t)

    @sg.kernel
    def run():
        for i in x:
            v, k, steps = x[i], 3 + i, 0
            while k != 1 and steps < 12:
                w = v
                m = k
                while m > 0:
                    w = sg.sin(w) + v * t(0.25)
                    m //= 3
                v = v * t(0.5) + w * x[k % N]
                if k % 2 == 0:
                    k //= 2
                else:
                    k = k * 3 + 1
                steps += 1
            y[i] = v

    return Program(run, [x, y])


def while_of_floats(t: Any) -> Program:
    x, y = chains(N, t)

    @sg.kernel
    def run():
        for i in x:
            v, w = x[i], t(1.0)
            while v < t(6.05):
                w = w * sg.cos(v) + v * x[i]
                v = v + v * t(0.37) + t(0.21)
            y[i] = w

    # Where no step of a finite difference changes the number of iterations.
    return Program(run, [x, y], data={0: lambda rng, shape: rng.choice([0.41, 0.63, 0.88, 1.27], shape)})


def tapes_sized_by_tapes(t: Any) -> Program:
    """Three loops in a row, each as long as what the one before ended with."""
    x, y = chains(N, t)
    table = filled(ints(2, 6, 1, 7, 0, 3, 5, 4))

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            v = x[i]
            a = 1 + i
            for j in range(n):
                a = table[(a + j) % 8]
                v = v * x[a % N] + sg.sin(v)
            b = a
            for j in range(a):
                b = table[(b * 3 + j) % 8]
                v = v * t(0.5) + sg.cos(v * b)
            for j in range(b):
                v = v * v * t(0.2) + x[j % N]
            y[i] = v

    return Program(run, [x, y], [4])


CASES = [
    read_through_a_read,
    read_through_three,
    rows_of_a_sparse_matrix,
    ragged_to_depth_four,
    bound_of_what_is_carried,
    while_of_carried_values,
    while_of_floats,
    tapes_sized_by_tapes,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_bounds(case: Any) -> None:
    check(case, sg.f32)


@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
def test_bounds_computed_from_floats(t: Any) -> None:
    """Of memory and of arguments, rounded down, up, and through a square root."""
    needs.of_type(t)
    x, y = chains(N, sg.f32)
    extent = sg.field(t, N)

    @sg.kernel
    def run(most: t):
        for i in x:
            v = x[i]
            for _ in range(sg.cast(sg.floor(extent[i]), sg.i32)):
                v = advance(v)
            for _ in range(sg.cast(sg.ceil(sg.sqrt(extent[i] * most)), sg.i32)):
                v = advance(v)
            for _ in range(sg.cast(most * t(0.5), sg.i32)):
                v = advance(v)
            y[i] = AMPLIFIED * v

    for most, extents in ((9.0, [0.1, 3.7, 12.2, 0.0, 40.9, 2.5]), (2.0, [200.3, 0.0, 1.3, 7.1, 0.6, 3.3]), (0.5, [0.3] * N)):
        e = np.array(extents, np.float32 if t is sg.f32 else np.float64)
        extent.from_numpy(e)
        compare(run, (most,), x, y, np.floor(e) + np.ceil(np.sqrt(e * e.dtype.type(most))) + int(most * 0.5))


def test_bounds_in_f64_that_f32_cannot_tell() -> None:
    needs.of_type(sg.f64)
    x, y = chains(N)
    extent = sg.field(sg.f64, N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(sg.cast((extent[i] - 16777216.0) * 8.0, sg.i32)):
                v = advance(v)
            y[i] = AMPLIFIED * v

    counts = np.array([1, 0, 100, 3, 2, 64])
    extent.from_numpy(16777216.0 + counts / 8)
    compare(run, (), x, y, counts)


def test_garbage_below_a_condition() -> None:
    """Elements that the condition shuts out would be adstacks of 8 GB, or negative."""
    n = 300
    x, y = chains(n)
    switch, count = sg.field(sg.i32, n), sg.field(sg.i32, n)

    @sg.kernel
    def run(least: sg.i32):
        for i in x:
            v = x[i]
            if switch[i] > least and switch[i] % 2 == 0:
                for _ in range(count[i]):
                    v = advance(v)
            y[i] = AMPLIFIED * v

    switches = np.random.default_rng(2).integers(0, 10, n).astype(np.int32)
    switch.from_numpy(switches)
    for least in (3, 7, 8, 9, -1):
        passes = (switches > least) & (switches % 2 == 0)
        counts = np.where(passes, np.arange(n) % 37, np.where(np.arange(n) % 2, GARBAGE, -GARBAGE)).astype(np.int32)
        count.from_numpy(counts)
        compare(run, (least,), x, y, np.where(passes, counts, 0))


@pytest.mark.parametrize("debug", [False, True], ids=["release", "debug"])
def test_indices_below_a_condition_that_are_out_of_range(arch: str, debug: bool) -> None:
    """The bound is read at ``where[i]``, which is anything where the condition is false."""
    sg.init(arch=arch, debug=debug)
    n = 100
    x, y = chains(n)
    where, count = sg.field(sg.i32, n), filled(ints(0, 11, 5, 120))

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            if where[i] >= 0 and where[i] < 4:
                for _ in range(count[where[i]]):
                    v = advance(v)
            y[i] = AMPLIFIED * v

    for at in range(3):
        indices = np.random.default_rng(at).choice(ints(0, 1, 2, 3 - at, GARBAGE, -GARBAGE, 1 << 28, -1), n)
        where.from_numpy(indices.astype(np.int32))
        passes = (indices >= 0) & (indices < 4)
        compare(run, (), x, y, np.where(passes, ints(0, 11, 5, 120)[np.where(passes, indices, 0)], 0))
    sg.sync()


def test_garbage_below_a_loop_that_is_short() -> None:
    """What lies behind the last element that a loop visits does not count, nor what lies behind the last of the task."""
    x, y = chains(N)
    outer, inner = sg.field(sg.i32, N), sg.field(sg.i32, 16)

    @sg.kernel
    def run(n: sg.i32):
        for i in range(n):
            v = x[i]
            for j in range(outer[i]):
                for _ in range(inner[j]):
                    v = advance(v)
            y[i] = AMPLIFIED * v
        for i in range(n, N):
            y[i] = AMPLIFIED * x[i]

    counts = np.full(16, GARBAGE, np.int32)
    counts[:5] = 3, 0, 12, 1, 9
    inner.from_numpy(counts)
    total = np.concatenate([[0], np.cumsum(counts[:5])])
    for n, outers in ((6, (5, 0, 1, 3, 2, 4)), (2, (5, 3, 99, 16, GARBAGE, 9)), (0, (7,) * N), (5, (0, 0, 0, 0, 0, GARBAGE))):
        outer.from_numpy(ints(*outers))
        trips = [total[k] if i < n else 0 for i, k in enumerate(outers)]
        compare(run, (n,), x, y, trips)


def test_negative_steps_and_empty_ranges_of_memory() -> None:
    x, y = chains(N)
    low, high = sg.field(sg.i32, N), sg.field(sg.i32, N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(high[i], low[i], -3):
                v = advance(v)
            for _ in range(low[i], high[i], 2):
                v = advance(v)
            for _ in range(sg.min(low[i], 2), sg.max(high[i], 4)):
                v = advance(v)
            y[i] = AMPLIFIED * v

    for at in range(3):
        lows, highs = (np.random.default_rng(at).integers(-9, 10 + 40 * at, N).astype(np.int32) for _ in range(2))
        lows = np.roll(lows, at + 1)
        low.from_numpy(lows)
        high.from_numpy(highs)
        trips = [
            len(range(h, a, -3)) + len(range(a, h, 2)) + len(range(min(a, 2), max(h, 4))) for a, h in zip(lows.tolist(), highs.tolist())
        ]
        compare(run, (), x, y, trips)


@pytest.mark.parametrize("t", [sg.u8, sg.i16, sg.u16, sg.u32, sg.i64, sg.u64], ids=str)
def test_bounds_of_other_integers(t: Any) -> None:
    x, y = chains(N)
    count = sg.field(t, N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(sg.cast(count[i], sg.i32)):
                v = advance(v)
            y[i] = AMPLIFIED * v

    counts = np.array([0, 200, 3, 1, 7, 120])
    kind = count.to_numpy().dtype
    count.from_numpy(counts.astype(kind))
    compare(run, (), x, y, counts)
    count.from_numpy(counts[::-1].astype(kind) // 2)
    compare(run, (), x, y, counts[::-1] // 2)


def test_arguments_of_loops_that_are_not_reached() -> None:
    """A flag that is off guards a number of iterations for which no device has memory."""
    x, y = chains(7)
    flag, trips = sg.field(sg.i32, ()), sg.field(sg.i32, ())

    @sg.kernel
    def by_arguments(on: sg.i32, m: sg.i32):
        for i in x:
            v = x[i]
            if on > 0:
                for _ in range(m):
                    v = advance(v)
            y[i] = AMPLIFIED * v

    @sg.kernel
    def by_fields():
        for i in x:
            v = x[i]
            if flag[None] > 0:
                for _ in range(trips[None]):
                    v = advance(v)
            y[i] = AMPLIFIED * v

    for on, m in ((0, 2**30), (1, 5), (0, 2**31 - 1), (1, 0)):
        flag[None], trips[None] = on, m
        compare(by_arguments, (on, m), x, y, on * min(m, 9))
        compare(by_fields, (), x, y, on * min(m, 9))


def test_bounds_that_lie_far_apart_the_other_way_round() -> None:
    """Their difference has no place in 32 bits; the loop runs not at all."""
    x, y = chains(5)

    @sg.kernel
    def run(a: sg.i32, b: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(a, b):
                v = advance(v)
            y[i] = AMPLIFIED * v

    for a, b, count in ((2**31 - 1, -(2**31), 0), (5, 9, 4), (2**31 - 2, -3, 0), (2**31 - 3, 2**31 - 1, 2)):
        compare(run, (a, b), x, y, count)
