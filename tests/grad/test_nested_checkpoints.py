"""Loops inside kernels with nested checkpoints: the gradients of plain adstacks, bit for bit, in little memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from grad.nests import nest

import spirograd as sg
from spirograd.derivatives.nestings import nestings

N = 5
Kernel = Callable[..., Any]


class Memory:
    """What the kernels use."""

    def __init__(self) -> None:
        self.x, self.y, self.z = (sg.field(sg.f32, shape=N, needs_grad=True) for _ in range(3))
        self.rows = sg.field(sg.f32, shape=(N, 40), needs_grad=True)
        self.total = sg.field(sg.f32, shape=(), needs_grad=True)
        self.count = sg.field(sg.i32, shape=N)
        self.x.from_numpy(np.linspace(0.3, 1.1, N, dtype=np.float32))
        self.z.from_numpy(np.linspace(-0.4, 0.7, N, dtype=np.float32))
        self.rows.from_numpy(np.linspace(0.1, 0.8, N * 40, dtype=np.float32).reshape(N, 40))

    def gradients(self, kernel: Any, *args: Any) -> list[np.ndarray]:
        shadows = [self.x.grad, self.y.grad, self.z.grad, self.rows.grad, self.total.grad]
        for shadow in shadows:
            shadow.fill(0.0)
        self.y.grad.from_numpy(np.linspace(0.5, 2.0, N, dtype=np.float32))
        self.total.grad.fill(0.75)
        kernel.grad(*args)
        return [shadow.to_numpy() for shadow in shadows]


def counted_loop(m: Memory) -> Kernel:
    @sg.kernel
    def run(n: sg.i32):
        for i in m.x:
            v, w = m.x[i], m.z[i]
            for t in range(2, n + 2):
                v, w = sg.sin(v) * 1.1 + 0.02 * sg.cos(w * t), 0.5 * w * v + 0.3
            m.y[i] = v * w

    return run


def ragged(m: Memory) -> Kernel:
    """As many iterations as the data say, some of them none."""

    @sg.kernel
    def run(n: sg.i32):
        for i in m.x:
            v = m.x[i]
            for _ in range(m.count[i] * n // 4):
                v = sg.cos(v * 1.3) + m.z[i] * v
            m.y[i] = v

    return run


def until(m: Memory) -> Kernel:
    """A `while` whose condition depends on the values, with `break` and `continue`."""

    @sg.kernel
    def run(n: sg.i32):
        for i in m.x:
            v, t = m.x[i], 0
            while t < n and v < 6.0:
                t += 1
                if t % 5 == 3:
                    continue
                v = v * 1.02 + 0.01 * sg.sin(v * t)
                if v > 4.5 and i > 2:
                    break
            m.y[i] = v * v

    return run


def loops_in_loops(m: Memory) -> Kernel:
    @sg.kernel
    def run(n: sg.i32):
        for i in m.x:
            v = m.x[i]
            for a in range(n):
                w = v * 0.5
                for b in range(a % 7 + n // 8):
                    w = sg.sin(w + m.z[i]) * 1.05 - 0.01 * b
                    t = 0
                    while t < b % 3:
                        w = w * sg.cos(w)
                        t += 1
                v = 0.7 * v + 0.5 * w
            m.y[i] = v

    return run


def several_types(m: Memory) -> Kernel:
    """Carried integers of 32 and 64 bits, a condition, f64, a vector and a matrix."""

    @sg.kernel
    def run(n: sg.i32):
        for i in m.x:
            p = sg.Vector([m.x[i], m.z[i]])
            q = sg.Matrix([[1.0, 0.1], [m.z[i], 0.9]])
            k, up, s = sg.u32(7 + i), True, m.x[i]
            wide, d = sg.i64(1), sg.cast(m.x[i], sg.f64)
            for _ in range(n):
                k = k * sg.u32(1664525) + sg.u32(1013904223)
                if up:
                    p = sg.sin(q @ p) * 0.7 + 0.2
                else:
                    q = q * 0.9 + 0.05 * p.outer_product(p)
                up = (k >> sg.u32(30)) != sg.u32(0)
                s = sg.sin(s * p.x) + 0.1
                wide += sg.cast(k, sg.i64) * 3
                d = d * 0.99 + 1e-9 * sg.cast(wide % 1000, sg.f64) * sg.cast(p.y, sg.f64)
            m.y[i] = p.dot(p) + q[0, 1] * s + sg.cast(d * d, sg.f32)

    return run


def with_atomics(m: Memory) -> Kernel:
    """The loop adds to memory in each iteration, which running it again must not do."""

    @sg.kernel
    def run(n: sg.i32):
        for i in m.x:
            v = m.x[i]
            for t in range(n):
                v = sg.sin(v) * 1.2
                m.total[None] += v * v * m.z[i]
                m.rows[i, t % 40] += 0.1 * v
            m.y[i] = v

    return run


def at_random(m: Memory) -> Kernel:
    @sg.kernel
    def run(n: sg.i32):
        for i in m.x:
            v = m.x[i]
            for _ in range(n):
                if sg.random() < 0.4:
                    v = sg.sin(v) + sg.random(sg.f32) * m.z[i]
                else:
                    v = 1.05 * v + 0.1 * v * v * m.x[i] / (1.0 + v * v)
            m.y[i] = v

    return run


def reads_arrays(m: Memory) -> Kernel:
    """Values from memory in each iteration, and locals indexed at run time."""

    @sg.kernel
    def run(n: sg.i32):
        for i in m.x:
            v = m.x[i]
            ring = sg.Vector([0.0, 0.1, 0.2, 0.3])
            for t in range(n):
                v = sg.tanh(v * m.rows[i, t % 40] + ring[t % 4])
                ring[(t + 1) % 4] = v * ring[(t + 3) % 4] + 0.2
            m.y[i] = v + ring[1]

    return run


def serial(m: Memory) -> Kernel:
    """A loop outside of parallel ones."""

    @sg.kernel
    def run(n: sg.i32):
        v = m.x[1]
        sg.loop_config(serialize=True)
        for t in range(n):
            v = sg.sin(v) * 1.1 + 0.01 * t * m.z[2]
        m.total[None] += v

    return run


PROGRAMS = [counted_loop, ragged, until, loops_in_loops, several_types, with_atomics, at_random, reads_arrays, serial]
SHAPES = [(2, 8), (4, 4)]


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_gradients_are_those_of_plain_tapes(arch: str, make: Callable[[Memory], Kernel]) -> None:
    """With zero and one iteration, with a multiple of the length of segments, just more, just less, and several levels full."""
    sg.init(arch=arch, fast_math=False)
    m = Memory()
    kernel = make(m)
    m.count.from_numpy(np.array([4, 0, 1, 3, 2], np.int32))
    for n in (0, 1, 8, 31, 65) if make is not loops_in_loops else (17, 0, 1, 9):
        kernel(n)  # the gradients draw the random numbers of this launch
        if kernel.grad._last is not None:
            nest(kernel, 1, 0)
        wanted = m.gradients(kernel, n)
        assert all(np.isfinite(gradient).all() for gradient in wanted)
        assert wanted[0].any() or make is serial or n == 0
        for levels, length in SHAPES if n == 65 else SHAPES[:1]:
            assert nest(kernel, levels, length)
            for a, b in zip(m.gradients(kernel, n), wanted):
                np.testing.assert_array_equal(a, b, err_msg=f"{n} iterations, {levels} levels of {length}")
            assert "has nested checkpoints:" in kernel.grad.explain()


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("make", [until, loops_in_loops, several_types], ids=lambda f: f.__name__)
def test_gradients_by_differences(arch: str, make: Callable[[Memory], Kernel]) -> None:
    """With the fused products of `fast_math`, they are those of differences of the program, which the interpreter runs in f64."""
    sg.init(arch=arch)
    m = Memory()
    kernel = make(m)
    m.count.from_numpy(np.array([4, 0, 1, 3, 2], np.int32))
    n = 11
    kernel(n)
    kernel.grad(n)
    nest(kernel, 2, 4)
    assert sg.ad.gradcheck(kernel, (n,), rtol=5e-3, atol=1e-4)
    assert "has nested checkpoints:" in kernel.grad.explain(), "the check has used other ones"


def long_chain() -> tuple[Any, Any, Any]:
    x, y = (sg.field(sg.f32, shape=3, needs_grad=True) for _ in range(2))

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            v = x[i]
            for t in range(n):
                v += 0.001 * sg.sin(v + t)
            y[i] = v

    x.from_numpy(np.linspace(0.2, 0.9, 3, dtype=np.float32))
    return run, x, y


def slope(run: Any, x: Any, y: Any, n: int) -> np.ndarray:
    run(n)
    x.grad.fill(0.0)
    y.grad.fill(1.0)
    run.grad(n)
    found: np.ndarray = x.grad.to_numpy()
    return found


def expected_slope(n: int) -> np.ndarray:
    v, d = np.linspace(0.2, 0.9, 3, dtype=np.float32).astype(float), np.ones(3)
    for t in range(n):
        d *= 1.0 + 0.001 * np.cos(v + t)
        v += 0.001 * np.sin(v + t)
    return d


def test_decided_at_launch(arch: str) -> None:
    """With enough memory as plain adstacks; with less, nested checkpoints for the launches that need them, however iterations change."""
    long, short = 1500, 30
    sg.init(arch=arch, ad_memory_GB=2000 / 2**30)
    run, x, y = long_chain()
    for n in (short, long, long, short, short, long, 700, short, short):
        np.testing.assert_allclose(slope(run, x, y, n), expected_slope(n), rtol=1e-4)
        text = run.grad.explain()
        if n == long:
            assert "has nested checkpoints:\n  the loop at " in text
            assert "levels, with checkpoints every " in text
        assert run.grad.adstack_bytes <= 2000
    assert "has nested checkpoints" not in text


def second_slope(n: int) -> np.ndarray:
    """The second derivative of the square of what `squared` computes."""
    v, first, second = np.linspace(0.2, 0.9, N, dtype=np.float32).astype(float), np.ones(N), np.zeros(N)
    for t in range(n):
        sine, cosine = np.sin(1.5 * v + t), np.cos(1.5 * v + t)
        second += 0.01 * (1.5 * cosine * second - 2.25 * sine * first**2)
        first *= 1.0 + 0.015 * cosine
        v += 0.01 * sine
    return 2.0 * (first**2 + v * second)


def test_hessian_vector_products(arch: str) -> None:
    """Forward mode over the gradient with nested checkpoints: what plain adstacks give, and what the recurrence says."""
    found, n, v = [], 400, np.linspace(1.0, 2.0, N, dtype=np.float32)
    for nbytes in (0, 3_000):
        sg.init(arch=arch, fast_math=False, ad_memory_GB=nbytes / 2**30)
        x, loss = sg.field(sg.f32, shape=N, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

        @sg.kernel
        def squared(n: sg.i32):
            for i in x:
                v = x[i]
                for t in range(n):
                    v += 0.01 * sg.sin(1.5 * v + t)
                loss[None] += v * v

        def program() -> None:
            loss[None] = 0.0
            squared(n)

        x.from_numpy(np.linspace(0.2, 0.9, N, dtype=np.float32))
        found.append(sg.ad.hvp(program, loss, x, v))
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], second_slope(n) * v, rtol=2e-4)


@pytest.mark.archs("cpu")
def test_a_million_iterations(arch: str) -> None:
    """Of an inner loop, in less than 1 MB for a thread slot."""
    n = 1_000_000
    sg.init(arch=arch, ad_memory_GB=3e6 / 2**30)
    run, x, y = long_chain()
    found = slope(run, x, y, n)
    plan = run.grad.memory_plan(n)
    assert sum(adstack.slot_bytes for adstack in plan.adstacks) < 1_000_000 / 50
    assert plan.slots == 3
    sg.init(arch=arch)
    run, x, y = long_chain()
    np.testing.assert_allclose(found, slope(run, x, y, n), rtol=1e-4)
    assert sum(adstack.slot_bytes for adstack in run.grad.memory_plan(n).adstacks) == 4 * n


def test_a_short_loop_with_large_entries_before_a_long_one() -> None:
    """The short loop takes the most bytes, and would take more as a nest as long as the other one needs."""
    first = next(nestings({0: 16, 1: 1_000_000}, {0: 1e6, 1: 4}, 0.86))
    assert first.levels == ((1, 2),)
    assert first.entries(0, 16) == 16 and first.entries(1, 1_000_000) < 3000
