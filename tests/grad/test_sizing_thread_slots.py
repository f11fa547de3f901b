"""Adstacks have thread slots for as many iterations as run at a time: no more than there are, and fewer where memory is scarce."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grad.chains import AMPLIFIED, advance, advanced, chains, compare, starts

import spirograd as sg
from spirograd.lang import context

THREADS = 24  # more than most counts below need, on any machine
TRIPS = 150  # so many that several threads take part


def lockstep(n: int, t: Any) -> Any:
    """Loops that make the same number of iterations for all elements."""
    x, y = chains(n, t)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(k):
                v = advance(v)
            y[i] = AMPLIFIED * v

    return run, x, y, np.ones(n)


def apart(n: int, t: Any) -> Any:
    """Loops that do not: each thread runs one iteration at a time."""
    x, y = chains(n, t)
    scale = sg.field(sg.i32, n)
    parts = np.arange(n) % 3
    scale.from_numpy(parts.astype(np.int32))

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(scale[i] * k):
                v = advance(v)
            y[i] = AMPLIFIED * v

    return run, x, y, parts


def slots_of(run: Any, *args: Any) -> int:
    (task,) = run.grad.memory_plan(*args).tasks
    assert run.grad.adstack_bytes == task.nbytes
    return int(task.slots)


def start(threads: int = THREADS, **options: Any) -> Any:
    sg.init(arch=sg.cpu, cpu_max_num_threads=threads, **options)
    return context.session().launcher.adstacks


@pytest.mark.archs("cpu")  # elsewhere thread slots have always followed the iterations
@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
@pytest.mark.parametrize("make", [lockstep, apart], ids=lambda make: make.__name__)
def test_as_many_as_iterations(arch: str, make: Any, t: Any) -> None:
    """None, one, fewer than lanes, some more than a multiple of them, more than threads have lanes; with little and with much work."""
    for n in (1, 7, 17, 400, 3000):
        start()
        run, x, y, parts = make(n, t)
        for trips in (3, TRIPS):
            compare(run, (trips,), x, y, trips * parts, f"{n} iterations")
            slots = slots_of(run, trips)
            assert slots == min(n, slots)
            assert slots >= min(n, THREADS)
            assert run.grad.adstack_bytes <= slots * (trips * max(parts) * 8 + 8)


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("slots", [1, 2, 5, 16, 21, 100])
@pytest.mark.parametrize("make", [lockstep, apart], ids=lambda make: make.__name__)
def test_fewer_before_a_launch_is_refused(arch: str, make: Any, slots: int) -> None:
    """Down to few, with the same gradients; then loops get nested checkpoints."""
    heap = start(ad_memory_GB=slots * 4 * 2 * TRIPS / 2**30)
    run, x, y, parts = make(130, sg.f32)
    compare(run, (TRIPS,), x, y, TRIPS * parts)
    nested = "has nested checkpoints" in run.grad.explain()
    assert nested <= (slots == 1)
    assert nested or 1 <= slots_of(run, TRIPS) <= 2 * slots
    assert run.grad.adstack_bytes <= heap.nbytes <= heap.byte_limit


@pytest.mark.archs("cpu")
def test_very_long_loops_of_few_iterations(arch: str) -> None:
    """Where a thread slot for each lane of each thread would not fit."""
    start(64)
    run, _, _, _ = lockstep(2, sg.f32)
    plan = run.grad.memory_plan(200_000)
    assert plan.nbytes == 2 * 4 * 200_000
    assert run.grad.memory_plan(1_100_000).nbytes == 2 * 4 * 1_100_000
    run, _, _, _ = lockstep(3000, sg.f32)
    assert run.grad.memory_plan(200_000).slots == min(3000, 64 * plan_lanes())
    assert run.grad.memory_plan(50_000_000).slots >= 1


def plan_lanes() -> int:
    run, _, _, _ = lockstep(3000, sg.f32)
    slots = run.grad.memory_plan(3).slots
    return int(slots) // 64 if slots < 3000 else 3000


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("slots", [0, 3, 20])
def test_lanes_to_spare_read_nothing_of_others(arch: str, slots: int) -> None:
    """Integers from adstacks are indices: of lanes without an iteration these must not be what happens to lie behind the thread slot."""
    n, trips, size = 37, 90, 64
    heap = start(ad_memory_GB=slots * 8 * trips / 2**30)
    x, y = chains(n)
    table = sg.field(sg.f32, size, needs_grad=True)
    total = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v, m = x[i], i
            for _ in range(k):
                m = (m * 7 + 3) % size
                v = 0.9 * v + sg.sin(v) * table[m]
            y[i] = v
            total[None] += v

    values = np.linspace(0.0, 0.1, size).astype(np.float32)
    table.from_numpy(values)
    x.from_numpy(starts(n))
    run(trips)
    run.grad(trips)  # the heap is there
    before = heap._heap
    before.fill(0, before.nbytes // 4 * 4, 0x7FFFFFF0)
    for memory in (x, table):
        memory.grad.fill(0.0)
    y.grad.fill(0.5)
    total.grad[None] = 1.5
    run.grad(trips)
    v, slope, m = starts(n).astype(np.float64), np.ones(n), np.arange(n)
    path = []
    for _ in range(trips):
        m = (m * 7 + 3) % size
        path.append((m, v))
        v, slope = 0.9 * v + np.sin(v) * values[m], slope * (0.9 + np.cos(v) * values[m])
    np.testing.assert_allclose(x.grad.to_numpy(), 2.0 * slope, rtol=1e-3)
    wanted, adjoint = np.zeros(size), np.full(n, 2.0)
    for m, v in reversed(path):
        np.add.at(wanted, m, adjoint * np.sin(v))
        adjoint = adjoint * (0.9 + np.cos(v) * values[m])
    np.testing.assert_allclose(table.grad.to_numpy(), wanted, rtol=1e-3, atol=1e-4)
    assert slots_of(run, trips) <= (slots or n)
    assert slots_of(run, trips) == n or slots, "the iterations do not run in lockstep: this tests nothing"


# --- loops of which only memory tells how many iterations they have ----------------------------------------------------------

SPACE = 700
DEVICES = ("vulkan", "wgpu")


class Open:
    """``y[i]`` is so many iterations of ``x[i]`` for i below a number in memory."""

    def __init__(self, kind: str, inner: str) -> None:
        self.x, self.y = x, y = chains(SPACE)
        self.bounds = bounds = sg.field(sg.i32, 2)
        self.trips = trips = sg.field(sg.i32, ())
        self.array = sg.ndarray(sg.i32, 3)
        self.kind, self.inner = kind, inner

        @sg.kernel
        def field_known(k: sg.i32):
            for i in range(bounds[1]):
                v = x[i]
                for _ in range(k):
                    v = advance(v)
                y[i] = AMPLIFIED * v

        @sg.kernel
        def field_memory(k: sg.i32):
            for i in range(bounds[1]):
                v = x[i]
                for _ in range(trips[None]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

        @sg.kernel
        def array_known(k: sg.i32, b: sg.types.ndarray(sg.i32, 1)):
            for i in range(b[0], b[2]):
                v = x[i]
                for _ in range(k):
                    v = advance(v)
                y[i] = AMPLIFIED * v

        @sg.kernel
        def array_memory(k: sg.i32, b: sg.types.ndarray(sg.i32, 1)):
            for i in range(b[0], b[2]):
                v = x[i]
                for _ in range(trips[None] + b[1]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

        @sg.kernel
        def computed_known(k: sg.i32):
            n = 0
            while n * n < bounds[1]:
                n += 1
            for i in range(bounds[0], bounds[0] + n):
                v = x[i]
                for _ in range(k):
                    v = advance(v)
                y[i] = AMPLIFIED * v

        @sg.kernel
        def computed_memory(k: sg.i32):
            n = 0
            while n * n < bounds[1]:
                n += 1
            for i in range(bounds[0], bounds[0] + n):
                v = x[i]
                for _ in range(trips[None]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

        self.run = locals()[f"{kind}_{inner}"]

    def launch(self, begin: int, end: int, k: int) -> tuple[Any, ...]:
        """Of iterations from ``begin`` to ``end``; gives the arguments."""
        self.end = end
        if self.kind == "array":
            self.array.from_numpy(np.array([begin, 0, end], np.int32))
            args: tuple[Any, ...] = (k, self.array)
        else:
            self.bounds.from_numpy(np.array([begin, end if self.kind == "field" else (end - begin) ** 2], np.int32))
            args = (k,)
        self.begin = 0 if self.kind == "field" else begin
        self.trips[None] = k
        self.x.from_numpy(starts(SPACE))
        self.x.grad.fill(0.0)
        self.y.grad.fill(0.5)
        self.run.grad(*args)
        return args

    def check(self, k: int) -> None:
        slopes = AMPLIFIED * 0.5 * advanced(starts(SPACE), k)[1]
        inside = (np.arange(SPACE) >= self.begin) & (np.arange(SPACE) < self.end)
        np.testing.assert_allclose(self.x.grad.to_numpy(), np.where(inside, slopes, 0.0), rtol=3e-3, atol=1e-3)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.archs("cpu", *DEVICES)
@pytest.mark.parametrize("inner", ["known", "memory"])
@pytest.mark.parametrize("kind", ["field", "array", "computed"])
def test_iterations_that_only_memory_tells(arch: str, kind: str, inner: str) -> None:
    """Rows are those of the iterations; bounds may change by far from launch to launch, also where the host hears of it later."""
    sg.init(arch=arch)
    made = Open(kind, inner)
    k = 64
    for begin, end in ((0, 8), (3, 4), (0, SPACE), (5, 5), (10, 50), (0, 8)):
        args = made.launch(begin, end, k)
        made.check(k)
        (task,) = made.run.grad.memory_plan(*args).tasks
        assert task.slots <= max(made.end - made.begin, 1) + (kind == "computed" and arch == "cpu") * (end // 4 + 16)
        if arch != "cpu":
            assert task.slots == max(made.end - made.begin, 1)
        assert made.run.grad.adstack_bytes == task.nbytes


@pytest.mark.archs(*DEVICES)
@pytest.mark.parametrize("kind", ["field", "array"])
def test_the_host_does_not_wait_to_hear_how_many_there_are(arch: str, kind: str) -> None:
    """Where it knows how long the adstacks are: not even before the first launch."""
    sg.init(arch=arch)
    made, device = Open(kind, "known"), context.session().device
    sg.ad.sizings(reset=True)
    waits = device.waits
    for k, end in ((3, 8), (200, 8), (200, 600), (4, 90)):
        made.launch(0, end, k)
    assert device.waits == waits
    assert sg.ad.sizings().waited == 0
    made.check(4)


@pytest.mark.archs("cpu", *DEVICES)
def test_small_tapes_are_not_counted(arch: str) -> None:
    """A task that takes little memory however many iterations it has is launched at once."""
    sg.init(arch=arch)
    x, y = chains(SPACE)
    n = sg.field(sg.i32, ())

    @sg.kernel
    def run():
        for i in range(n[None]):
            v = x[i]
            for _ in range(3):
                for _ in range(2):
                    v = advance(v)
            y[i] = AMPLIFIED * v

    n[None] = SPACE
    sg.ad.sizings(reset=True)
    compare(run, (), x, y, 6)
    assert sg.ad.sizings().known == 1
