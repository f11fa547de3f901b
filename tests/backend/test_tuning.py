"""Choices by measurement in sessions of the CPU: the same bits with each alternative, the cache, and what can be seen of choices."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.analysis import loop_costs
from spirograd.base.options import LANES, NO_LANES
from spirograd.base.records import replace
from spirograd.lang import context
from spirograd.runtime import trials, tuning

pytestmark = [pytest.mark.archs("cpu"), pytest.mark.usefixtures("session", "tuned"), pytest.mark.optimized]
floats, ints = sg.types.ndarray(sg.f32, 1), sg.types.ndarray(sg.i32, 1)
Program = Callable[[], tuple[Any, list[np.ndarray]]]


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tune whatever is launched three times, however sure the cost model is."""
    monkeypatch.delenv("SG_TUNE")
    monkeypatch.setenv("SG_OFFLINE_CACHE", "1")
    monkeypatch.setenv("SG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(loop_costs, "_UNSURE", 1 << 30)
    monkeypatch.setattr(trials, "SHORTEST", 0)
    monkeypatch.setattr(tuning, "worth_of", lambda compilation, alternatives: 0)
    monkeypatch.setattr(trials, "LONGEST_EXTENSION", 1)
    monkeypatch.setattr(trials, "BETTER", 1000)
    monkeypatch.setattr(trials.Trial, "_best", lambda trial, part: trial.parts[part][-1])  # not the code of the cost model
    monkeypatch.setattr(trials.Trial, "_quartile", lambda trial, part, name: 0)
    monkeypatch.setattr(trials, "DROPPED", {})
    start()


def start(**options: Any) -> None:
    sg.init(arch=sg.cpu, **options)


def random_floats(n: int) -> np.ndarray:
    return np.random.default_rng(n).random(n, np.float32) * 4 + 0.5


def neighbours() -> tuple[Any, list[np.ndarray]]:
    """Sums over neighbours whose number differs, with a branch, roots and elementary functions."""

    @sg.kernel
    def run(x: floats, first: ints, other: ints, y: floats):
        for i in range(x.shape[0]):
            total, k = 0.0, first[i]
            while k < first[i + 1]:
                d = x[i] - x[other[k]]
                if d * d < 4.0:
                    total += d / sg.sqrt(d * d + 0.1) * sg.exp(-d) + sg.sin(d * 3.0)
                k += 1
            y[i] = total

    random = np.random.default_rng(0)
    first = np.concatenate([[0], np.cumsum(random.integers(0, 12, 700))]).astype(np.int32)
    other = random.integers(0, 700, first[-1] + 1).astype(np.int32)
    return run, [random_floats(700), first, other, np.zeros(700, np.float32)]


def marched() -> tuple[Any, list[np.ndarray]]:
    """A search that ends at different times for neighbours, and reads a table."""

    @sg.kernel
    def run(x: floats, table: floats, y: floats):
        for i in range(x.shape[0]):
            t, steps = 0.0, 0
            while steps < 40 and t < x[i]:
                t += table[int(t * 7.0) & 63] * 0.1 + 0.01
                steps += 1
            y[i] = t * steps

    return run, [random_floats(500), random_floats(64), np.zeros(500, np.float32)]


def counted() -> tuple[Any, list[np.ndarray]]:
    """Integers that are added up, in a counter and in a histogram."""

    @sg.kernel
    def run(x: ints, bins: ints) -> int:
        total = 0
        for i in range(x.shape[0]):
            n, steps = x[i], 0
            while n > 1 and steps < 50:
                n = n // 2 if n % 2 == 0 else 3 * n + 1
                steps += 1
            bins[steps & 15] += 1
            total += steps
        return total

    return run, [np.arange(900, dtype=np.int32), np.zeros(16, np.int32)]


@pytest.mark.parametrize("program", [neighbours, marched, counted])
def test_alternatives_give_the_same_bits(program: Program) -> None:
    results = []
    for alternative in ("", LANES, NO_LANES):
        start(cpu_max_num_threads=2, tune=False)
        running = context.session()
        running.compile_options = replace(running.compile_options, alternative=alternative)  # type: ignore[attr-defined]
        run, arrays = program()
        returned = run(*arrays)
        lanes = "<16 x " in run.llvm()
        results.append((returned, [array.tobytes() for array in arrays], lanes))
    assert results[0][:2] == results[1][:2] == results[2][:2]
    assert len({lanes for *_, lanes in results}) == 2, "no alternative changes the code"


def tune(run: Any, arrays: list[np.ndarray]) -> Any:
    """Launch until the choice is made, and return what the launches returned."""
    returned = [run(*arrays) for _ in range(3)]
    sg.wait_for_tuning()
    return returned + [run(*arrays) for _ in range(4 * trials.MANY_ROUNDS)]


def test_launches_choose_and_explain() -> None:
    run, arrays = counted()
    returned = tune(run, arrays)
    assert len(set(returned)) == 1
    assert arrays[1].sum() == 900 * len(returned)  # each launch ran once
    choice = run.explain().splitlines()[-1]
    assert re.fullmatch(
        r"measured for about 900 iterations: (no )?lanes chosen; the cost model's code [\d.]+ ms, (no )?lanes [\d.]+ ms", choice
    )


def test_the_profile_says_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    start(kernel_profiler=True)
    run, arrays = counted()
    tune(run, arrays)
    sg.profiler.print_kernel_profiler_info()
    assert re.search(r"^run, measured for about 900 iterations: ", capsys.readouterr().out, re.MULTILINE)


def test_no_tuning() -> None:
    start(tune=False)
    run, arrays = counted()
    tune(run, arrays)
    assert "chosen;" not in run.explain()


def test_debug_sessions_do_not_tune() -> None:
    start(debug=True)
    run, arrays = counted()
    tune(run, arrays)
    assert "chosen;" not in run.explain()


def test_another_session_remembers() -> None:
    run, arrays = counted()
    tune(run, arrays)
    chosen = run.explain().splitlines()[-1]
    start()
    run, arrays = counted()
    first = run(*arrays)
    sg.wait_for_tuning()
    assert run(*arrays) == first
    assert run.explain().splitlines()[-1] == chosen


def test_chosen_code_is_launched_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    run, arrays = counted()
    x, bins = [sg.ndarray(sg.i32, array.shape) for array in arrays]
    x.from_numpy(arrays[0])
    tune(run, [x, bins])
    for _ in range(200):
        run(x, bins)
    monkeypatch.setattr(tuning.Tuning, "launch", None)
    before = bins.to_numpy().sum()
    run(x, bins)
    assert bins.to_numpy().sum() == before + 900


def test_threads_launch_while_candidates_are_measured() -> None:
    run, arrays = neighbours()
    want = arrays[-1].copy()
    run(*arrays[:-1], want)
    outputs = [np.zeros_like(want) for _ in range(4)]
    failed: list[BaseException] = []

    def launch(out: np.ndarray) -> None:
        try:
            for _ in range(60):
                out[:] = 0
                run(*arrays[:-1], out)
                np.testing.assert_array_equal(out, want)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=launch, args=(out,)) for out in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    sg.wait_for_tuning()
    tune(run, [*arrays[:-1], want])
    assert "chosen;" in run.explain()


def test_gradients_and_graphs_while_candidates_are_measured() -> None:
    n = 300
    x, y, loss = sg.field(sg.f32, n, needs_grad=True), sg.field(sg.f32, n, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def step():
        for i in x:
            v, k = x[i], 0
            while k < i % 7 + 3:
                v = v * 0.9 + 0.1 / (v + 1.0)
                k += 1
            y[i] = v

    @sg.kernel
    def total():
        for i in y:
            loss[None] += y[i]

    x.from_numpy(random_floats(n))
    gradients = []
    for _ in range(40):
        with sg.ad.Tape(loss=loss):
            step()
            total()
        gradients.append(x.grad.to_numpy())
        sg.wait_for_tuning()
    assert all((gradient == gradients[0]).all() for gradient in gradients)
    v, slope = x.to_numpy().astype(np.float64), np.ones(n)
    for k in range(9):
        running = k < np.arange(n) % 7 + 3
        slope = np.where(running, slope * (0.9 - 0.1 / (v + 1) ** 2), slope)
        v = np.where(running, v * 0.9 + 0.1 / (v + 1), v)
    np.testing.assert_allclose(gradients[0], slope, rtol=1e-4)
    np.testing.assert_allclose(y.to_numpy(), v, rtol=1e-5)
