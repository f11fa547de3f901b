"""Choices for each task on a device whose times arrive late: what is measured, what runs meanwhile, and which executable results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from unit.runtime.test_tuning import MS, Notes

from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.device import MeasuresLaunches
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime import trials
from spirograd.runtime.tuning import Tuner, Tuning

SMALL, LARGE = "groups of 64", "groups of 512"
TASKS = (
    TaskInfo("first", "range_for", "first", 0, alternatives=(SMALL, LARGE)),
    TaskInfo("second", "range_for", "second", 0, alternatives=(SMALL,)),
    TaskInfo("third", "serial", "third", 0),
)
KERNEL = CompiledKernel("k", "cuda", "key", ArgBlock((), "<", 0), TASKS)
COUNTS = (1000, 70_000, 1)
# The times of the tasks of each candidate. The second task has no alternative of large groups, and so the same code there.
TIMES = {"model": (4, 9, 1), SMALL: (6, 5, 1), LARGE: (3, 9, 1)}


class Measured:
    def __init__(self, device: Queue, name: str) -> None:
        self.device, self.number, self.name = device, len(device.launched), name

    def take(self) -> Sequence[int] | None:
        if self.device.refuses:
            raise SpirogradRuntimeError("the device does not say")
        return [t * MS for t in TIMES[self.name]] if self.number <= self.device.done else None


class Queue:
    """A device that does work when it is told to. Executables are names, or tuples of those of their tasks."""

    def __init__(self) -> None:
        self.launched: list[Any] = []
        self.measured: list[str] = []
        self.done = 0  # The number of launches that are done.
        self.measures = True
        self.refuses = False
        self.closed = False

    def load(self, compiled: CompiledKernel) -> str:
        return compiled.key

    def launch(self, executable: Any, block: bytes, counts: Sequence[int | None]) -> None:
        self.launched.append(executable)

    def stopwatch(self) -> Queue:
        return self

    def combine(self, executables: Sequence[str]) -> tuple[str, ...]:
        return tuple(executables)

    def measure(self, executable: Any, block: bytes, counts: Sequence[int | None]) -> Measured | None:
        if not self.measures:
            return None
        self.launched.append(executable)
        self.measured.append(executable)
        return Measured(self, executable)

    def close(self) -> None:
        self.closed = True


class Launcher:
    def __init__(self, device: Queue) -> None:
        self.device = device
        self.plans: dict[int, object] = {}


class Plan:
    def __init__(self, device: Queue) -> None:
        self.compiled = KERNEL
        self.executable = "model"
        self.device = device

    def tune(self, tuning: Tuning) -> None:
        self.tuning = tuning

    def run(self, launches: int, done: bool = True, counts: Sequence[int | None] = COUNTS) -> None:
        for _ in range(launches):
            self.tuning.launch(self.executable, b"", counts)
            if done:
                self.device.done = len(self.device.launched)


def tuned(cache: Any = None) -> tuple[Plan, Tuner, Queue]:
    device = Queue()
    assert isinstance(device, MeasuresLaunches)
    plan = Plan(device)
    tuner = Tuner(Launcher(device), "a device", cache)  # type: ignore[arg-type]
    tuner.tune(plan, lambda name: replace(KERNEL, key=name), 0)  # type: ignore[arg-type]
    return plan, tuner, device


def compiled(cache: Any = None) -> tuple[Plan, Tuner, Queue]:
    """A plan whose candidates are compiled."""
    plan, tuner, device = tuned(cache)
    plan.run(6)
    tuner.wait()
    device.launched.clear()
    device.measured.clear()
    device.done = 0
    return plan, tuner, device


def test_each_task_runs_the_code_that_is_best_for_it() -> None:
    plan, tuner, device = compiled()
    plan.run(13)
    assert plan.tuning.chosen(COUNTS) == (LARGE, SMALL, "model")
    plan.run(1)
    assert device.launched[-1] == (LARGE, SMALL, "model")
    assert tuner.launcher.plans[id(device.launched[-1])] is plan
    assert plan.tuning.lines() == [
        "task first, measured for about 1,000 iterations: groups of 512 chosen; the cost model's code 4.000 ms, groups of 512 3.000 ms, "
        "groups of 64 6.000 ms",
        "task second, measured for about 70,000 iterations: groups of 64 chosen; the cost model's code 9.000 ms, groups of 64 5.000 ms",
    ]


def test_while_times_have_not_arrived_the_code_of_the_model_runs() -> None:
    plan, _, device = compiled()
    plan.run(100, done=False)
    assert sorted(device.measured) == sorted([*["model", SMALL, LARGE] * trials.AHEAD])
    assert device.launched[6:] == ["model"] * 94
    assert plan.tuning.chosen(COUNTS) is None and plan.tuning.current(COUNTS) == "model"
    device.done = 100
    plan.run(20)
    assert plan.tuning.chosen(COUNTS) == (LARGE, SMALL, "model")


def test_a_device_that_is_far_behind_is_sampled() -> None:
    plan, tuner, device = tuned()
    plan.run(1000, done=False)
    assert len(device.measured) == trials.AHEAD
    device.done = 1
    plan.run(1, done=False)
    tuner.wait()  # 1,001 launches of 14 ms
    plan.run(3, done=False)
    assert SMALL in device.measured


def test_launches_that_cannot_be_measured_run_as_before() -> None:
    plan, _, device = compiled()
    device.measures = False
    plan.run(50)
    assert device.launched == ["model"] * 50 and plan.tuning.chosen(COUNTS) is None
    device.measures = True
    plan.run(13)
    assert plan.tuning.chosen(COUNTS) == (LARGE, SMALL, "model")


def test_a_device_that_refuses_to_say_times_runs_as_before() -> None:
    plan, _, device = compiled()
    plan.run(1, done=False)
    device.refuses = True
    plan.run(5)
    assert plan.tuning.chosen(COUNTS) == "model" and plan.tuning.choices() == ()


def test_combinations_are_remembered() -> None:
    cache = Notes()
    plan, _, _ = compiled(cache)
    plan.run(13)
    before = plan.tuning.choices()
    plan, tuner, device = tuned(cache)
    tuner.wait()
    assert plan.tuning.choices() == before
    plan.run(3)
    assert device.launched == [(LARGE, SMALL, "model")] * 3 and device.measured == []


def test_a_task_without_iterations_has_the_code_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, times in TIMES.items():
        monkeypatch.setitem(TIMES, name, (0, *times[1:]))
    plan, _, _ = compiled()
    plan.run(13)
    assert plan.tuning.chosen(COUNTS) == ("model", SMALL, "model")
    (line,) = plan.tuning.lines()
    assert line.startswith("task second, ")


def test_a_closed_tuner_takes_no_times() -> None:
    plan, tuner, device = compiled()
    plan.run(1, done=False)
    tuner.close()
    device.refuses = True
    plan.run(5)
    assert device.closed
