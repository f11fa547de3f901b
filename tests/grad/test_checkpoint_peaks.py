"""Memory that the copies of a tape with checkpoints take, as it is allocated: at no time more than `memory_GB`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cases import rounding_of_sums

import spirograd as sg
from spirograd.runtime.allocations import Allocation, Memory

pytestmark = pytest.mark.vulkan_or_wgpu

N = 16  # 64 bytes of a field
GB = 1e9


class Watch:
    """Bytes that are allocated, now and at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def count(self, allocation: Allocation) -> None:
        self.now += allocation.nbytes
        self.most = max(self.most, self.now)
        weakref.finalize(allocation, self._freed, allocation.nbytes)

    def _freed(self, nbytes: int) -> None:
        self.now -= nbytes


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Watch]]:
    """Begins to measure what is allocated from then on."""
    watches: list[Watch] = []
    allocate, duplicate = Memory.allocate, Allocation.duplicate

    def counted(make: Any) -> Any:
        def made(*args: Any, **options: Any) -> Allocation:
            allocation: Allocation = make(*args, **options)
            for watch in watches:
                watch.count(allocation)
            return allocation

        return made

    monkeypatch.setattr(Memory, "allocate", counted(allocate))
    monkeypatch.setattr(Allocation, "duplicate", counted(duplicate))

    def begin() -> Watch:
        watches[:] = [Watch()]
        return watches[0]

    yield begin


class Program:
    """Steps that write little and much, values that launches overwrite and save, and writes of Python."""

    def __init__(self) -> None:
        self.a, self.b = (sg.field(sg.f32, shape=N, needs_grad=True) for _ in range(2))
        self.large = sg.field(sg.f32, shape=4 * N, needs_grad=True)
        self.loss = sg.field(sg.f32, shape=(), needs_grad=True)
        self.trips = sg.field(sg.i32, shape=N)

        @sg.kernel
        def step(t: sg.i32):
            for i in self.a:
                self.a[i] += 0.1 * sg.sin(self.b[i] * self.a[i] + t) * self.b[(i + 1) % N]
            for i in self.b:
                self.b[i] = sg.cos(self.b[i] * self.a[i])

        @sg.kernel
        def grow():
            for i in self.large:
                self.large[i] = self.large[i] * self.large[i] * 0.5 + self.a[i % N]

        @sg.kernel
        def counted():
            for i in self.a:
                for j in range(self.trips[i]):
                    k = 4 * i + (i + j) % 4
                    self.large[k] = 0.9 * self.large[k] * self.large[4 * i + (i + 3 * j) % 4]  # saved

        @sg.kernel
        def total():
            for i in self.a:
                self.loss[None] += self.a[i] ** 2 + self.b[i] + self.large[4 * i]

        self.step, self.grow, self.counted, self.total = step, grow, counted, total

    def run(self, steps: int = 24, each: int = 7, trips: int = 0, writes: bool = False, **options: Any) -> tuple[list[np.ndarray], Any]:
        """Gradients and the report. ``each``: every so many steps a large field is written; ``trips``: of the loop that saves values."""
        self.a.from_numpy(np.linspace(0.1, 0.9, N, dtype=np.float32))
        self.b.from_numpy(np.linspace(0.9, 0.2, N, dtype=np.float32))
        self.large.fill(0.4)
        self.trips.from_numpy((np.arange(N) % (trips + 1)).astype(np.int32))
        with sg.ad.Tape(self.loss, **options) as tape:
            for t in range(steps):
                self.step(t)
                if t > steps // 2 and t % each == 0:
                    self.grow()
                    if trips:
                        self.counted()
                if writes and t % 5 == 1:
                    self.b.from_numpy(np.full(N, 0.1 * t, np.float32))
                    self.a.fill(0.3)
            self.total()
        return [x.grad.to_numpy() for x in (self.a, self.b, self.large)], tape.memory_report()


@pytest.mark.parametrize("kind", ["even", "large", "saved", "writes"])
def test_the_budget_is_never_exceeded(arch: str, kind: str, measured: Callable[[], Watch]) -> None:
    sg.init(arch=arch, fast_math=False)
    program = Program()
    options: dict[str, Any] = {"even": {"each": 100}, "large": {}, "saved": {"trips": 5}, "writes": {"writes": True}}[kind]
    wanted, _ = program.run(**options)
    ran = 0
    for budget in (1_000, 1_750, 2_500) if kind == "even" else (1_000, 2_500, 3_300):
        for lower in ({}, {"host_GB": 5_000 / GB}):
            watch = measured()
            try:
                found, report = program.run(**options, memory_GB=budget / GB, **lower)
            except sg.SpirogradRuntimeError as error:
                assert "too little memory" in str(error)
                assert budget < 2_500
            else:
                ran += 1
                tolerance = rounding_of_sums()
                for x, y in zip(wanted, found):
                    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance / 10)
                assert 0 < watch.most <= report.repetitions.peak
            assert watch.most <= budget
    assert ran >= 4


def test_values_that_a_launch_saves_are_in_the_budget(arch: str, measured: Callable[[], Watch]) -> None:
    """How many they are is known in the reverse pass: it gives up checkpoints for them, or says which launch needs what."""
    sg.init(arch=arch, fast_math=False)
    program = Program()
    wanted, _ = program.run(trips=14)
    saved = 16 * 15 // 2 * 4  # bytes at least: of `large`, in each iteration
    watch = measured()
    found, report = program.run(trips=14, memory_GB=6_000 / GB)
    for x, y in zip(wanted, found):
        np.testing.assert_allclose(x, y, rtol=rounding_of_sums())
    assert saved < watch.most <= report.repetitions.peak <= 6_000
    before = [x.to_numpy() for x in (program.a, program.b, program.large)]
    with pytest.raises(sg.SpirogradRuntimeError) as caught:
        program.run(trips=14, memory_GB=2_500 / GB)
    for part in ("what one launch of kernel `counted` saves", "# saved", "raise `memory_GB`, or run fewer iterations in one launch"):
        assert part in str(caught.value)
    for x, y in zip(before, (program.a, program.b, program.large)):
        np.testing.assert_array_equal(x, y.to_numpy())


@pytest.mark.archs("cpu")
def test_values_whose_number_is_known_are_counted_before_the_reverse(arch: str) -> None:
    sg.init(arch=arch)
    x, loss = sg.field(sg.f32, shape=N, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def twice():
        for i in x:
            x[i] = 0.5 * x[i] * x[i]
        for i in x:
            x[i] = x[i] * sg.sin(x[i])

    with (
        pytest.raises(sg.SpirogradRuntimeError, match="one launch of kernel `twice`, which saves values that it overwrites"),
        sg.ad.Tape(loss, memory_GB=3 * 64 / GB),
    ):
        for _ in range(9):
            twice()


def failing(budget: dict[str, float], fail: list[int]) -> tuple[sg.ad.Tape, Any, Any]:
    """A tape whose reverse pass fails, or not, and what memory held at the end of its block. ``fail``: empty, or how many launches run."""
    x = sg.field(sg.f32, N, needs_grad=True)
    pairs = sg.field(sg.i32, (N, 2))
    loss = sg.field(sg.f32, (), needs_grad=True)
    x.from_numpy(np.linspace(0.5, 1.2, N, dtype=np.float32))
    pairs.from_numpy(np.stack([np.arange(N)] * 2, 1).astype(np.int32))

    @sg.kernel
    def step(k: sg.i32):
        for i in range(N):
            for j in range(k):
                x[pairs[i, j % 2]] = sg.sin(x[pairs[i, j % 2]]) * 1.1

    @sg.kernel
    def total():
        for i in range(N):
            loss[None] += x[i] * x[i]

    tape = sg.ad.Tape(loss, **budget)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError) if fail else contextlib.nullcontext(), tape:
        for _ in range(10):
            step(3)
        total()
        end = x.to_numpy(), loss[None]
        steps = tape._steps
        if fail:
            after(steps, fail[0])
    return tape, steps, (end, (x.to_numpy(), loss[None]), x.grad.to_numpy())


def after(steps: Any, launches: int) -> None:
    """Have the reverse pass end with an error after so many copies."""
    allocate, left = steps._memory.allocate, [launches]

    def failing_allocate(*args: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise ZeroDivisionError
        return allocate(*args)

    steps._memory.allocate = failing_allocate


@pytest.mark.parametrize("budget", [{"checkpoints": 4}, {"memory_GB": 1500 / GB}, {"memory_GB": 900 / GB, "host_GB": 4000 / GB}])
def test_errors_of_the_reverse_pass_restore_memory_and_free_copies(session: Any, budget: dict[str, float]) -> None:
    _, _, (end, now, gradient) = failing(budget, [])
    np.testing.assert_array_equal(end[0], now[0])
    assert gradient.any()
    for launches in (0, 1, 2, 3, 4, 5, 8, 9, 13):
        tape, steps, (end, now, _) = failing(budget, [launches])
        np.testing.assert_array_equal(end[0], now[0])
        assert end[1] == now[1] and steps._memory.used == 0, launches
        with pytest.raises(sg.SpirogradRuntimeError, match="the reverse pass of this tape ended with an error"):
            tape.grad()


def test_a_tape_whose_block_failed_says_so(session: Any) -> None:
    loss = sg.field(sg.f32, (), needs_grad=True)
    for options in ({}, {"checkpoints": 2}):
        tape = sg.ad.Tape(loss, **options)
        with pytest.raises(ZeroDivisionError), tape:
            raise ZeroDivisionError
        with pytest.raises(sg.SpirogradRuntimeError, match="the block of this tape ended with an error"):
            tape.grad()
