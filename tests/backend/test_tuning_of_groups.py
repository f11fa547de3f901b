"""Choices by measurement on GPUs: the same bits with each size of workgroups, times by the device's timers, graphs, tapes, streams."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.device import MeasuresLaunches
from spirograd.base.options import ALTERNATIVES, GROUP_SIZES, LANES, NO_LANES
from spirograd.base.records import replace
from spirograd.lang import context
from spirograd.runtime import trials, tuning

pytestmark = [pytest.mark.archs("vulkan", "wgpu", "cuda", "amdgpu"), pytest.mark.usefixtures("session", "tuned"), pytest.mark.optimized]
floats, ints = sg.types.ndarray(sg.f32, 1), sg.types.ndarray(sg.i32, 1)
N = 50_000
Program = Callable[[], tuple[Any, list[Any]]]


@pytest.fixture
def tuned(session: Any, arch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Tune whatever is launched three times, and choose other code than that of the cost model."""
    monkeypatch.delenv("SG_TUNE")
    monkeypatch.setenv("SG_OFFLINE_CACHE", "1")
    monkeypatch.setenv("SG_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(trials, "SHORTEST", 0)
    monkeypatch.setattr(trials, "ROUNDS", 2)
    monkeypatch.setattr(trials, "MANY_ROUNDS", 2)
    monkeypatch.setattr(trials, "LONGEST_EXTENSION", 1)
    monkeypatch.setattr(trials, "DROPPED", {})
    monkeypatch.setattr(tuning, "worth_of", lambda compilation, alternatives: 0)
    monkeypatch.setattr(trials.Trial, "_is_faster", lambda trial, part, name: True)
    # Each task has other code than the one before it.
    monkeypatch.setattr(trials.Trial, "_best", lambda trial, part: [*trial._rivals(part), ""][part % (len(trial._rivals(part)) + 1)])

    def start(**options: Any) -> None:
        sg.init(arch=arch, **{"tune_gpu": True, **options})

    start()
    if not isinstance(context.session().device, MeasuresLaunches):
        pytest.skip("the device has no timers")
    return start


def floats_of(n: int) -> np.ndarray:
    return np.random.default_rng(n).random(n, np.float32) * 4 + 0.5


def array(values: np.ndarray) -> Any:
    made = sg.ndarray(sg.f32 if values.dtype == np.float32 else sg.i32, values.shape)
    made.from_numpy(values)
    return made


def smoothed() -> tuple[Any, list[Any]]:
    """Elementwise code, a stencil, and a loop of different lengths, one task each."""

    @sg.kernel
    def run(x: floats, y: floats, z: floats):
        for i in range(x.shape[0]):
            y[i] = sg.sin(x[i]) * sg.exp(-x[i])
        for i in range(1, x.shape[0] - 1):
            z[i] = 0.25 * y[i - 1] + 0.5 * y[i] + 0.25 * y[i + 1]
        for i in range(1, x.shape[0]):
            total = 0.0
            for k in range(6):  # known bounds: llvmpipe gets a check of others
                if k < i % 7:
                    total += z[i - 1] * 0.5 + y[(i + k) % 100]
            x[i] = 0.5 * x[i] + sg.sqrt(total * total + 0.1)

    return run, [array(floats_of(N)), array(np.zeros(N, np.float32)), array(np.zeros(N, np.float32))]


def counted() -> tuple[Any, list[Any]]:
    """A sum of integers, and twice the counts of bins, with a bit for those that count something: updates of two kinds, so groups have no
    copies of the bins."""

    @sg.kernel
    def run(x: ints, bins: ints) -> int:
        total = 0
        for i in range(x.shape[0]):
            bins[x[i] * 37 % bins.shape[0]] += 2
            bins[x[i] * 37 % bins.shape[0]] |= 1
            total += x[i] % 3
        return total

    return run, [array(np.arange(N, dtype=np.int32)), array(np.zeros(20_000, np.int32))]


@pytest.mark.parametrize("program", [smoothed, counted])
def test_alternatives_give_the_same_bits(tuned: Any, program: Program) -> None:
    results, sizes = {}, set()
    for alternative in ("", *sorted(set(ALTERNATIVES) - {LANES, NO_LANES})):
        tuned(tune_gpu=False)
        running = context.session()
        running.compile_options = replace(running.compile_options, alternative=alternative)  # type: ignore[attr-defined]
        run, arrays = program()
        returned = [run(*arrays) for _ in range(3)]
        plans = [plan for plan in running.launcher.plans.values() if plan.compiled.name == "run"]  # type: ignore[attr-defined]
        (tasks,) = {tuple((task.group_size, task.max_groups) for task in plan.compiled.tasks if task.kind != "serial") for plan in plans}
        sizes.add(tasks)
        results[alternative] = returned, [a.to_numpy().tobytes() for a in arrays]
    assert all(result == results[""] for result in results.values())
    assert len(sizes) >= len(GROUP_SIZES), "alternatives do not change the code"


def tune(run: Any, arrays: list[Any]) -> list[Any]:
    """Launch until the choice is made, and return what the launches returned."""
    returned = []
    for _ in range(4):
        returned.append(run(*arrays))
        sg.sync()
    sg.wait_for_tuning()
    for _ in range(2 * len(ALTERNATIVES)):
        returned.append(run(*arrays))
        sg.sync()
    returned.append(run(*arrays))
    return returned


def reference(values: np.ndarray, launches: int) -> list[np.ndarray]:
    x, y, z = values.astype(np.float64), np.zeros(N), np.zeros(N)
    i = np.arange(1, N)
    for _ in range(launches):
        y = np.sin(x) * np.exp(-x)
        z[1:-1] = 0.25 * y[:-2] + 0.5 * y[1:-1] + 0.25 * y[2:]
        total = np.zeros(N - 1)
        for k in range(6):
            total += np.where(k < i % 7, z[i - 1] * 0.5 + y[(i + k) % 100], 0)
        x[1:] = 0.5 * x[1:] + np.sqrt(total * total + 0.1)
    return [x, y, z]


def test_each_task_chooses_and_explains() -> None:
    run, arrays = smoothed()
    values = arrays[0].to_numpy()
    launches = len(tune(run, arrays))
    for found, want in zip(arrays, reference(values, launches)):
        np.testing.assert_allclose(found.to_numpy(), want, rtol=2e-4, atol=1e-5)
    lines = [line for line in run.explain().splitlines() if "chosen;" in line]
    assert len(lines) == 3
    for line in lines:
        assert re.fullmatch(
            r"task \S+, measured for about [\d,]+ iterations: .* chosen; the cost model's code [\d.]+ ms(, .* [\d.]+ ms)+", line
        )
    assert len({line.split(": ")[1].split(" chosen")[0] for line in lines}) > 1
    assert all(name in lines[-1] for name in GROUP_SIZES if name != "groups of 256")
    assert sum("run, task " in line for line in context.session().measured_choices()) == 3  # type: ignore[attr-defined]


def test_results_of_integers_while_candidates_are_measured() -> None:
    run, arrays = counted()
    returned = tune(run, arrays)
    assert set(returned) == {int((np.arange(N) % 3).sum())}
    counts = np.bincount(np.arange(N) * 37 % 20_000, minlength=20_000) * len(returned)
    want = 2 * counts + (counts > 0)
    np.testing.assert_array_equal(arrays[1].to_numpy(), want)
    assert "chosen;" in run.explain()


def test_no_tuning_and_debug(tuned: Any) -> None:
    for options in ({"tune_gpu": False}, {"debug": True}):
        tuned(**options)
        run, arrays = counted()
        tune(run, arrays)
        assert "chosen;" not in run.explain()


def test_another_session_remembers(tuned: Any) -> None:
    run, arrays = smoothed()
    tune(run, arrays)
    chosen = [line for line in run.explain().splitlines() if "chosen;" in line]
    tuned()
    run, arrays = smoothed()
    values = arrays[0].to_numpy()
    run(*arrays)
    sg.wait_for_tuning()
    run(*arrays)
    assert [line for line in run.explain().splitlines() if "chosen;" in line] == chosen
    np.testing.assert_allclose(arrays[0].to_numpy(), reference(values, 2)[0], rtol=2e-4)


def test_user_sizes_and_orders_of_floats_are_kept() -> None:
    x, y, total = sg.field(sg.f32, N), sg.field(sg.f32, N), sg.field(sg.f32, ())

    @sg.kernel
    def own_size():
        sg.loop_config(block_dim=128)
        for i in x:
            y[i] = x[i] + 1.0

    @sg.kernel
    def summed():
        for i in x:
            total[None] += x[i]

    @sg.kernel
    def scattered():
        for i in x:
            y[i * 7 % 1000] += x[i]

    @sg.kernel
    def grouped():
        sg.loop_config(block_dim=64)
        for i in x:
            shared = sg.simt.block.SharedArray((64,), sg.f32)
            shared[i % 64] = x[i]
            sg.simt.block.sync()
            y[i] = shared[63 - i % 64]

    for kernel in (own_size, summed, scattered, grouped):
        tune(kernel, [])
        assert "chosen;" not in kernel.explain(), kernel


def test_graphs_keep_the_code_that_is_current() -> None:
    run, arrays = smoothed()
    values, launches = arrays[0].to_numpy(), 0
    graphs = []
    for k in range(30):
        if k % 6 == 0:
            with sg.Graph() as graph:
                run(*arrays)
            launches += 1
            graphs.append(graph)
        run(*arrays)
        graphs[k // 9].launch()
        launches += 2
        sg.sync()
        sg.wait_for_tuning()
        if k == 9:  # Values settle, so that errors of rounding do not grow.
            np.testing.assert_allclose(arrays[0].to_numpy(), reference(values, launches)[0], rtol=2e-4)
    assert "chosen;" in run.explain()
    np.testing.assert_allclose(arrays[0].to_numpy(), reference(values, launches)[0], rtol=2e-4)


def test_gradients_while_candidates_are_measured() -> None:
    n = 3000
    x, y, loss = sg.field(sg.f32, n, needs_grad=True), sg.field(sg.f32, n, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def step():
        for i in x:
            y[i] = x[i] * sg.sqrt(x[i] + i % 5)

    @sg.kernel
    def total():
        for i in y:
            loss[None] += y[i]

    values = floats_of(n)
    x.from_numpy(values)
    gradients = []
    for _ in range(25):
        with sg.ad.Tape(loss=loss):
            step()
            total()
        gradients.append(x.grad.to_numpy())
        sg.wait_for_tuning()
    assert all((gradient == gradients[0]).all() for gradient in gradients)
    v = values.astype(np.float64)
    root = np.sqrt(v + np.arange(n) % 5)
    np.testing.assert_allclose(gradients[0], root + v / (2 * root), rtol=1e-5)
    assert "chosen;" in step.explain()


@pytest.mark.parametrize("several", [False, True])
def test_threads_and_streams_while_candidates_are_measured(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = context.session()
    if several and session.arch == "vulkan":
        monkeypatch.setattr(session.device, "several_queues", True)

    @sg.kernel
    def run(x: floats):
        for i in range(x.shape[0]):
            x[i] = x[i] * 0.5 + 1.0

    own = [array(np.full(N, k, np.float32)) for k in range(4)]
    failed: list[BaseException] = []

    def launch(k: int) -> None:
        try:
            stream = sg.create_stream() if several else None
            for _ in range(40):
                run(own[k], stream=stream)
            sg.sync()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=launch, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    sg.wait_for_tuning()
    for k, x in enumerate(own):
        for _ in range(10):
            run(x)
        np.testing.assert_allclose(x.to_numpy(), 2 + (k - 2) * 0.5**50, rtol=1e-6)
