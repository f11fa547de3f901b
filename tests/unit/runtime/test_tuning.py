"""The choice between candidates by the times of launches, on a device whose clock is a number: which candidate runs when, which stays."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.runtime import choices, trials, tuning
from spirograd.runtime.tuning import Tuner

MS = 1_000_000
TASK = TaskInfo("k_0", "range_for", "k_0", 0, alternatives=("lanes", "no lanes"))
KERNEL = CompiledKernel("k", "cpu", "key", ArgBlock((), "<", 0), (TASK,))


class Clock:
    """A device whose launches take the time of the executable: a name, and the time in nanoseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.launched: list[str] = []
        self.times: dict[str, int] = {}
        monkeypatch.setattr(tuning, "perf_counter_ns", lambda: self.now)

    def load(self, compiled: CompiledKernel) -> str:
        return compiled.key

    def launch(self, executable: str, block: bytes, counts: tuple[int | None, ...]) -> None:
        self.launched.append(executable)
        self.now += self.times[executable]


class Launcher:
    def __init__(self, device: Clock) -> None:
        self.device = device
        self.plans: dict[int, object] = {}


class Plan:
    """A launch plan of `KERNEL`."""

    def __init__(self, device: Clock) -> None:
        self.compiled = KERNEL
        self.executable = "model"
        self.launch: Callable[..., None] = device.launch

    def tune(self, tuned: tuning.Tuning) -> None:
        self.tuning = tuned
        self.launch = tuned.launch

    def run(self, launches: int, *counts: int | None) -> None:
        for _ in range(launches):
            self.launch(self.executable, b"", counts or (1000,))


class Notes:
    """A cache of notes."""

    def __init__(self) -> None:
        self.notes: dict[str, bytes] = {}

    def note(self, name: str) -> bytes | None:
        return self.notes.get(name)

    def keep_note(self, name: str, data: bytes) -> None:
        self.notes[name] = data


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def alternative(name: str) -> CompiledKernel:
    return replace(KERNEL, key=name)


def tuned(clock: Clock, compile: Callable[[str], CompiledKernel] = alternative, cache: Any = None, **times: int) -> tuple[Plan, Tuner]:
    """A plan whose candidates take these times; ``no_lanes`` is "no lanes"."""
    clock.times = {name.replace("_", " "): time for name, time in times.items()}
    clock.launched.clear()
    plan = Plan(clock)
    tuner = Tuner(Launcher(clock), "a device", cache)  # type: ignore[arg-type]
    tuner.tune(plan, compile, 0)  # type: ignore[arg-type]
    return plan, tuner


def test_the_fastest_stays(clock: Clock) -> None:
    plan, tuner = tuned(clock, model=20 * MS, lanes=30 * MS, no_lanes=15 * MS)
    plan.run(3)
    tuner.wait()
    assert plan.tuning.chosen((1000,)) is None
    plan.run(12)
    in_turn = ["model", "lanes", "no lanes"]
    assert clock.launched[3:] == [*in_turn, *reversed(in_turn), *in_turn, "no lanes", "model", "no lanes"]
    assert plan.tuning.chosen((1000,)) == "no lanes"
    assert plan.tuning.lines() == [
        "measured for about 1,000 iterations: no lanes chosen; the cost model's code 20.000 ms, lanes 30.000 ms, no lanes 15.000 ms"
    ]


def test_much_slower_candidates_run_twice(clock: Clock) -> None:
    plan, tuner = tuned(clock, model=20 * MS, lanes=90 * MS, no_lanes=81 * MS)
    plan.run(3)
    tuner.wait()
    plan.run(20)
    in_turn = ["model", "lanes", "no lanes"]
    assert clock.launched[3:] == [*in_turn, *reversed(in_turn), *["model"] * 14]


def test_the_model_stays_if_others_gain_little(clock: Clock) -> None:
    plan, tuner = tuned(clock, model=20 * MS, lanes=20 * MS - MS // 2, no_lanes=20 * MS)
    plan.run(3)
    tuner.wait()
    plan.run(12)
    assert plan.tuning.chosen((1000,)) == "model"


def test_a_choice_that_times_do_not_decide_takes_more_rounds(clock: Clock) -> None:
    """If other work slows down the code of the model in the first half of the rounds only."""
    plan, tuner = tuned(clock, model=60 * MS, lanes=80 * MS, no_lanes=25 * MS)
    plan.run(3)
    tuner.wait()
    plan.run(6)
    clock.times["model"] = 20 * MS
    plan.run(6)
    assert plan.tuning.chosen((1000,)) is None
    plan.run(4 * trials.LONGEST_EXTENSION * trials.ROUNDS)
    assert plan.tuning.chosen((1000,)) == "model"
    assert clock.launched[3:].count("no lanes") > trials.ROUNDS


def test_quartiles() -> None:
    assert [trials.quartile(times) for times in ([3], [2, 1], [5, 1, 9, 3], [4, 2, 8, 1, 9, 7, 6, 5, 3])] == [3, 1, 3, 3]


@pytest.mark.parametrize("first", [1, 3])
def test_a_kernel_that_is_launched_in_turn_with_other_data(clock: Clock, first: int) -> None:
    """Each candidate gets both kinds of launches, of which one takes three times as long."""
    plan, tuner = tuned(clock, model=20 * MS, lanes=60 * MS, no_lanes=16 * MS)
    plan.run(3)
    tuner.wait()
    for k in range(4 * trials.LONGEST_EXTENSION * trials.ROUNDS):
        factor = first if k % 2 else 4 - first
        clock.times = {"model": 20 * MS * factor, "lanes": 60 * MS * factor, "no lanes": 16 * MS * factor}
        plan.run(1)
    assert plan.tuning.chosen((1000,)) == "no lanes"
    assert dict(plan.tuning.choices()[0].times)[""] == (20 * MS,)


def test_one_short_time_is_not_enough(clock: Clock) -> None:
    """If other work disturbs all launches but one."""
    plan, tuner = tuned(clock, model=20 * MS, lanes=25 * MS, no_lanes=25 * MS)
    plan.run(3)
    tuner.wait()
    plan.run(2)
    clock.times["no lanes"] = 15 * MS
    plan.run(1)
    clock.times["no lanes"] = 25 * MS
    plan.run(4 * trials.LONGEST_EXTENSION * trials.ROUNDS)
    assert plan.tuning.chosen((1000,)) == "model"


def test_one_long_time_of_the_model_is_no_reason(clock: Clock) -> None:
    plan, tuner = tuned(clock, model=20 * MS, lanes=25 * MS, no_lanes=25 * MS)
    plan.run(3)
    tuner.wait()
    clock.times["model"] = 500 * MS
    plan.run(1)
    clock.times["model"] = 20 * MS
    plan.run(12)
    assert plan.tuning.chosen((1000,)) == "model"


def test_short_kernels_are_not_tuned(clock: Clock) -> None:
    plan, _ = tuned(clock, model=trials.SHORTEST - 1)
    plan.run(trials.FEW - 1)
    assert plan.tuning.chosen((1000,)) is None
    plan.run(1)
    assert plan.tuning.chosen((1000,)) == "model"
    plan.run(10_000)
    assert plan.tuning.choices() == ()


def test_few_launches_are_not_tuned(clock: Clock) -> None:
    """However long they take; and alternatives are not compiled before the kernel has taken as long as that is worth."""
    asked: list[str] = []

    def compile(name: str) -> CompiledKernel:
        asked.append(name)
        return alternative(name)

    plan, tuner = tuned(clock, compile, model=1000 * MS)
    plan.run(2)
    tuner.wait()
    plan, tuner = tuned(clock, compile, model=MS)
    plan.run(49)
    tuner.wait()
    assert not asked
    clock.times |= {"lanes": MS, "no lanes": MS}
    plan.run(1)
    tuner.wait()
    assert asked == ["lanes", "no lanes"]


def test_short_launches_are_measured_more_often(clock: Clock) -> None:
    plan, tuner = tuned(clock, model=MS // 2, lanes=MS // 2 + 1, no_lanes=MS // 4)
    plan.run(100)
    tuner.wait()
    plan.run(20)
    in_turn = ["model", "lanes", "no lanes"]
    assert clock.launched[100:] == [*in_turn, *reversed(in_turn), *in_turn, *["no lanes"] * 11]
    assert plan.tuning.chosen((1000,)) == "no lanes"


def test_classes_of_extents_choose_by_themselves(clock: Clock) -> None:
    plan, tuner = tuned(clock, model=20 * MS, lanes=30 * MS, no_lanes=15 * MS)
    plan.run(3)
    tuner.wait()
    plan.run(12)
    assert plan.tuning.chosen((1023,)) == "no lanes"  # The same class.
    assert plan.tuning.chosen((4096,)) is None
    clock.times["no lanes"] = 25 * MS
    plan.run(12, 4096)
    assert plan.tuning.chosen((4096,)) == "model"
    assert plan.tuning.chosen((1000,)) == "no lanes"
    assert len(plan.tuning.choices()) == 2


def test_too_many_classes_run_as_the_model_has_it(clock: Clock) -> None:
    plan, _ = tuned(clock, model=MS)
    for k in range(tuning.MOST_CLASSES + 1):
        plan.run(1, 4**k, None)
    assert plan.tuning.chosen((4 ** (tuning.MOST_CLASSES - 1), None)) is None
    assert plan.tuning.chosen((4**tuning.MOST_CLASSES, None)) == "model"


def test_a_failing_or_different_alternative_is_no_candidate(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def compile(name: str) -> CompiledKernel:
        if name == "lanes":
            raise ValueError("a defect")
        return replace(alternative(name), temps_size=8)

    plan, tuner = tuned(clock, compile, model=20 * MS)
    plan.run(3)
    tuner.wait()
    plan.run(1)
    assert plan.tuning.chosen((1000,)) == "model"
    assert "'lanes' cannot be compiled" in caplog.text


def test_choices_are_remembered(clock: Clock) -> None:
    cache = Notes()
    plan, tuner = tuned(clock, cache=cache, model=20 * MS, lanes=30 * MS, no_lanes=15 * MS)
    plan.run(3)
    tuner.wait()
    plan.run(12)
    before = plan.tuning.choices()
    plan, tuner = tuned(clock, cache=cache, model=20 * MS, lanes=30 * MS, no_lanes=15 * MS)
    tuner.wait()
    plan.run(2)
    assert clock.launched == ["no lanes"] * 2
    assert plan.tuning.choices() == before


def test_the_model_is_remembered_without_compiling(clock: Clock) -> None:
    cache = Notes()
    plan, tuner = tuned(clock, cache=cache, model=2 * MS, lanes=30 * MS, no_lanes=15 * MS)
    plan.run(30)
    tuner.wait()
    plan.run(12)

    def compile(name: str) -> CompiledKernel:
        raise AssertionError

    plan, tuner = tuned(clock, compile, cache=cache, model=2 * MS)
    assert plan.tuning.chosen((1000,)) == "model"
    tuner.wait()


def again(clock: Clock, cache: Notes, monkeypatch: pytest.MonkeyPatch, hours: float, **times: int) -> tuple[Plan, Tuner]:
    """The plan of a process that begins ``hours`` after 1970."""
    monkeypatch.setattr(tuning.time, "time", lambda: hours * 3600)
    plan, tuner = tuned(clock, cache=cache, **times)
    tuner.wait()
    return plan, tuner


def made(cache: Notes) -> choices.Choice:
    (note,) = cache.notes.values()
    (choice,) = choices.decoded(note)
    return choice


def test_choices_are_measured_again_now_and_then(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, times = Notes(), {"model": 20 * MS, "lanes": 60 * MS, "no_lanes": 15 * MS}
    plan, tuner = again(clock, cache, monkeypatch, 10, **times)
    plan.run(3)
    tuner.wait()
    plan.run(12)
    assert made(cache) == choices.Choice((1000,), ("no lanes",), made(cache).times, 36000)
    plan, _ = again(clock, cache, monkeypatch, 10.9, **times)
    plan.run(12)
    assert set(clock.launched) == {"no lanes"}
    plan, _ = again(clock, cache, monkeypatch, 11, **times)
    plan.run(12)
    assert set(clock.launched[:8]) == {"model", "no lanes"}  # The other alternative was much slower.
    assert clock.launched[-1] == "no lanes" and made(cache).confirmed == 1
    plan, _ = again(clock, cache, monkeypatch, 14.9, **times)
    assert plan.tuning.chosen((1000,)) == "no lanes"
    plan, _ = again(clock, cache, monkeypatch, 15, model=10 * MS, no_lanes=15 * MS)
    assert plan.tuning.chosen((1000,)) is None
    plan.run(12)
    assert plan.tuning.chosen((1000,)) == "model"
    assert (made(cache).names, made(cache).confirmed) == (("",), 0)


def test_a_choice_by_the_model_is_measured_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Notes()
    plan, tuner = again(clock, cache, monkeypatch, 10, model=20 * MS, lanes=60 * MS, no_lanes=26 * MS)
    plan.run(3)
    tuner.wait()
    plan.run(12)
    assert made(cache).names == ("",)
    plan, tuner = again(clock, cache, monkeypatch, 12, model=20 * MS, lanes=60 * MS, no_lanes=15 * MS)
    plan.run(3)
    tuner.wait()
    plan.run(12)
    assert made(cache).names == ("no lanes",)
    assert "lanes" not in clock.launched


def test_a_choice_from_unsteady_times_is_measured_by_the_next_process(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Notes()
    for hours, confirmed in ((10, 0), (10.1, 1)):
        plan, tuner = again(clock, cache, monkeypatch, hours, model=20 * MS, lanes=60 * MS, no_lanes=20 * MS)
        plan.run(3)
        tuner.wait()
        for k in range(4 * trials.LONGEST_EXTENSION * trials.ROUNDS):
            clock.times |= dict.fromkeys(("model", "no lanes"), (20 if k % 8 == 0 else 40) * MS)
            plan.run(1)
        assert plan.tuning.chosen((1000,)) is not None
        assert made(cache).confirmed == confirmed
    assert made(cache).made == 36360


def test_a_closed_tuner_compiles_nothing(clock: Clock) -> None:
    plan, tuner = tuned(clock, model=20 * MS)
    tuner.close()
    plan.run(20)
    tuner.wait()
    assert set(clock.launched) == {"model"}


def test_a_device_is_not_closed_while_it_loads(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end, loaded = threading.Event(), threading.Event(), []

    def load(compiled: CompiledKernel) -> str:
        begun.set()
        assert end.wait(60)
        loaded.append(compiled.key)
        return compiled.key

    monkeypatch.setattr(clock, "load", load)
    plan, tuner = tuned(clock, model=20 * MS)
    plan.run(3)
    assert begun.wait(60)
    closing = threading.Thread(target=tuner.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    end.set()
    closing.join(60)
    tuner.wait()
    assert len(loaded) == 1, "the other alternative is not loaded any more"


def test_notes_of_another_form_are_ignored(clock: Clock) -> None:
    cache = Notes()
    whole = '{"class": "Choice", "counts": [1], "names": %s, "times": %s, "made": 0, "confirmed": 0}'
    texts = [whole % names for names in (('["both"]', "[]"), ('["lanes", ""]', "[]"), ('["lanes"]', "[]"), ('[""]', '[["", [1, 2]]]'))]
    for data in (b"[", b"[1]", *[f"[{text}]".encode() for text in texts]):
        cache.notes = dict.fromkeys([f"{choices.NOTE}\0key\0a device"], data)
        plan, _ = tuned(clock, cache=cache, model=MS)
        assert plan.tuning.choices() == ()


def test_thresholds_of_the_page_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tuning.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)\.(\w+)` \| ([\d.]+) \|", page, re.M)
    assert len(rows) == 13
    for module, name, value in rows:
        assert getattr(importlib.import_module(f"spirograd.{module}"), name) == float(value), name
