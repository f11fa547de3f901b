"""The profiler: counts, names and sums are exact, times are those of the device. No absolute times."""

from __future__ import annotations

import logging
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from backend.trace_reading import Trace

import spirograd as sg
from spirograd.lang import context
from spirograd.simt import block

N = 40


@pytest.fixture
def measured(arch):
    """A session that measures."""
    sg.init(arch=arch, kernel_profiler=True)
    return arch


def records():
    profile = context.session().profile()
    profile.collect()
    return profile.records


def two_loops():
    """A kernel of two tasks that no pass fuses, and its fields."""
    x, total = sg.field(sg.f32, shape=N, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def double():
        for i in x:
            x[i] = 2.0 * i

    @sg.kernel
    def square():
        for i in x:
            total[None] += x[i] ** 2

    return x, total, double, square


def test_each_launch_counts(measured, capsys):
    _, total, double, square = two_loops()
    for _ in range(20):  # most of them by compiled code, where nobody measures
        double()
    square()
    with sg.Graph() as graph:
        double()
        square()
    for _ in range(3):
        graph.launch()
    assert total[None] == 5 * (4.0 * np.arange(N) ** 2).sum()
    info = sg.profiler.query_kernel_profiler_info("double")
    assert info.counter == 24
    assert 0 < info.min <= info.avg <= info.max
    assert sg.profiler.query_kernel_profiler_info("square").counter == 5
    assert sg.profiler.query_kernel_profiler_info("doubl").counter == 0
    seconds = [r.duration / 1e9 for r in records()]
    assert sg.profiler.get_kernel_profiler_total_time() == pytest.approx(sum(seconds))
    both = info.avg * 24 + sg.profiler.query_kernel_profiler_info("square").avg * 5
    assert both / 1e3 == pytest.approx(sum(seconds))
    sg.profiler.print_kernel_profiler_info()
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].endswith("in 29 runs of 2 tasks") and "test_profiler.py:" in printed
    sg.profiler.clear_kernel_profiler_info()
    assert sg.profiler.query_kernel_profiler_info("double").counter == 0
    assert sg.profiler.get_kernel_profiler_total_time() == 0


def test_tasks_come_one_after_the_other(measured):
    _, _, double, square = two_loops()
    for _ in range(5):
        double()
        square()
    found = records()
    assert [r.key.kernel for r in found] == ["double", "square"] * 5
    assert all(r.duration > 0 for r in found)
    assert all(a.end <= b.begin for a, b in pairwise(found))
    assert {r.key.loc.line for r in found} == {line_of("for i in x:", 0), line_of("for i in x:", 1)} or measured == "interpreter"


def line_of(text: str, which: int) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if line.strip() == text][which]


def test_gradients_have_names(measured):
    x, total, _, square = two_loops()
    x.fill(3.0)
    square()
    total.grad.fill(1.0)
    square.grad()
    assert (x.grad.to_numpy() == 6.0).all()
    assert sg.profiler.query_kernel_profiler_info("square").counter == 1
    assert sg.profiler.query_kernel_profiler_info("square_grad").counter == 1


@pytest.mark.parametrize("n", [0, 1, 7])
def test_bytes_and_operations(measured, n):
    @sg.kernel
    def axpy(y: sg.types.ndarray(dtype=sg.f32, ndim=1), x: sg.types.ndarray(dtype=sg.f32, ndim=1), count: sg.i32, a: sg.f32):
        for i in range(count):
            y[i] += a * x[i]

    x, y = sg.ndarray(sg.f32, shape=8), sg.ndarray(sg.f32, shape=8)
    axpy(y, x, n, 2.0)
    found = records()
    if measured == "interpreter":
        assert [(r.iterations, r.nbytes) for r in found] == [(None, None)]
    else:
        assert [(r.iterations, r.nbytes, r.operations, r.exact) for r in found] == [(n, 12 * n, 2 * n, True)] * (n > 0)


def test_nothing_is_in_the_way_once_the_block_is_left(arch, tmp_path, caplog):
    sg.init(arch=arch)
    x, _, double, _ = two_loops()
    double()
    device = context.session().device
    with sg.profiler.trace(tmp_path / "trace.json"):
        double()
        assert "launch" in vars(device)
    assert not {"launch", "upload", "download"} & vars(device).keys()
    double()
    assert (x.to_numpy() == 2.0 * np.arange(N)).all()
    assert sum(e["cat"] == "task" for e in Trace(tmp_path / "trace.json").slices) == 1
    with caplog.at_level(logging.WARNING, "spirograd"):
        assert sg.profiler.query_kernel_profiler_info("double").counter == 0
    assert "init(kernel_profiler=True)" in caplog.text


def test_a_trace_of_a_program(arch, tmp_path):
    with sg.profiler.trace(tmp_path / "trace.json"):
        sg.init(arch=arch, offline_cache=False)
        x, _, double, square = two_loops()

        @sg.kernel
        def unlike_others():  # so that its machine code is not known from another test
            for i in x:
                x[i] = x[i] * 3.0078125 - x[i] * 2.0078125

        unlike_others()
        with sg.profiler.scope("steps"):
            for _ in range(3):
                double()
                square()
        square.grad()
        x.from_numpy(x.to_numpy())
    found = Trace(tmp_path / "trace.json")
    categories = ("task", "launch", "compile", "pass", "llvm", "transfer", "scope")
    by_category = {c: [e for e in found.slices if e["cat"] == c] for c in categories}
    names = [e["args"]["kernel"] for e in by_category["task"]]
    assert names.count("double") == names.count("square") == 3 and "square_grad" in names
    assert {"compile double", "trace double", "differentiate square"} <= {e["name"] for e in by_category["compile"]}
    assert "drop_stop_grad" in {e["name"] for e in by_category["pass"]}
    if arch in ("cpu", "cuda", "hip"):
        assert {"parse", "emit machine code"} <= {e["name"] for e in by_category["llvm"]}
    assert any(e["name"] == "upload" and e["args"]["bytes"] == 4 * N for e in by_category["transfer"])
    (steps,) = by_category["scope"]
    inside = [e for e in by_category["launch"] if steps["ts"] <= e["ts"] <= steps["ts"] + steps["dur"]]
    assert [e["name"] for e in inside] == ["launch double", "launch square"] * 3
    assert len(found.arrows) == len(by_category["task"])
    for launch, task in found.arrows:
        assert launch["name"] == f"launch {task['args']['kernel']}" and launch["args"]["launch"] == task["args"]["launch"]
        assert launch["ts"] <= task["ts"]
    assert all(Path(__file__).name in e["args"]["source"] for e in by_category["task"])
    assert sorted(found.processes.values()) == sorted(["host", arch])


@pytest.mark.archs("cpu")
def test_what_each_thread_ran(arch, tmp_path):
    """Rows of threads, whose ranges are all iterations of a task, each once. Also of atomic updates, which other code runs. (Updates of few
    integers run in blocks: the iterations of their task are the blocks.)"""
    sg.init(arch=arch, cpu_max_num_threads=2)
    n = 300_007
    x, hits = sg.ndarray(sg.f32, n), sg.ndarray(sg.f32, 7)

    @sg.kernel
    def fill(x: sg.types.NDArray[sg.f32, 1]):
        for i in range(n):
            x[i] = sg.sin(sg.sin(x[i] + i))

    @sg.kernel
    def count(hits: sg.types.NDArray[sg.f32, 1]):
        for i in range(n):
            hits[i % 7] += 1

    with sg.profiler.trace(tmp_path / "trace.json"):
        for _ in range(2):
            fill(x)
            count(hits)
    found = Trace(tmp_path / "trace.json")
    tasks = [e for e in found.slices if e["cat"] == "task" and e["args"].get("iterations") == n]
    chunks = [e for e in found.slices if e["cat"] == "chunk"]
    assert len(tasks) == 4 and not {e["tid"] for e in chunks} & {e["tid"] for e in found.slices if e["cat"] != "chunk"}
    for task in tasks:
        end = task["ts"] + task["dur"]
        mine = [e for e in chunks if task["ts"] <= e["ts"] and e["ts"] + e["dur"] <= end + 1e-3]
        assert {(e["name"], e["args"]["launch"]) for e in mine} == {(task["name"], task["args"]["launch"])}
        ranges = sorted((e["args"]["first"], e["args"]["iterations"]) for e in mine)
        assert [first for first, _ in ranges] == [0, *np.cumsum([count for _, count in ranges])[:-1]]
        assert sum(count for _, count in ranges) == n and 1 <= len({e["tid"] for e in mine}) <= 2
    assert hits.to_numpy().sum() == 2 * n


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("n", [64 * 30, 64 * 30 - 5])
def test_chunks_of_groups_count_iterations(arch, tmp_path, n):
    sg.init(arch=arch, cpu_max_num_threads=2)
    y = sg.ndarray(sg.i32, n)

    @sg.kernel
    def work(y: sg.types.NDArray[sg.i32, 1]):
        sg.loop_config(block_dim=64)
        for i in range(n):
            shared = block.SharedArray(64, sg.i32)
            shared[i % 64] = i
            block.sync()
            y[i] = shared[i % 64 // 2]

    with sg.profiler.trace(tmp_path / "trace.json"):
        work(y)
    found = Trace(tmp_path / "trace.json").slices
    (task,) = [e["args"] for e in found if e["cat"] == "task"]
    ranges = sorted((e["args"]["first"], e["args"]["iterations"]) for e in found if e["cat"] == "chunk")
    assert task["iterations"] == n == sum(count for _, count in ranges)
    assert [first for first, _ in ranges] == [0, *np.cumsum([count for _, count in ranges])[:-1]]


@pytest.mark.archs("cpu")
def test_launches_of_two_threads_keep_their_chunks_apart(arch, tmp_path):
    sg.init(arch=arch, cpu_max_num_threads=2)
    arrays = [sg.ndarray(sg.f32, n) for n in (70_001, 90_002)]

    @sg.kernel
    def work(x: sg.types.NDArray[sg.f32, 1]):
        for i in x:
            x[i] = sg.sin(x[i] + i)

    def launch(x):
        for _ in range(10):
            work(x)

    work(arrays[0])
    with sg.profiler.trace(tmp_path / "trace.json"):
        threads = [threading.Thread(target=launch, args=(x,)) for x in arrays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = Trace(tmp_path / "trace.json").slices
    tasks = {e["args"]["launch"]: e["args"]["iterations"] for e in found if e["cat"] == "task"}
    assert sorted(tasks.values()) == [70_001] * 10 + [90_002] * 10
    for number, count in tasks.items():
        chunks = [e["args"] for e in found if e["cat"] == "chunk" and e["args"]["launch"] == number]
        ranges = sorted((chunk["first"], chunk["iterations"]) for chunk in chunks)
        assert [first for first, _ in ranges] == [0, *np.cumsum([size for _, size in ranges])[:-1]]
        assert sum(size for _, size in ranges) == count


def test_a_program_that_fails_has_a_trace(arch, tmp_path):
    sg.init(arch=arch)
    _, _, double, _ = two_loops()
    with pytest.raises(ZeroDivisionError), sg.profiler.trace(tmp_path / "trace.json"):
        double()
        raise ZeroDivisionError
    assert len(Trace(tmp_path / "trace.json").arrows) == 1


def test_many_launches_are_collected_in_parts(measured, monkeypatch):
    monkeypatch.setattr("spirograd.runtime.profiling._PENDING", 7)
    _, _, double, _ = two_loops()
    for _ in range(20):
        double()
    assert len(context.session().profile().records) == 14
    assert sg.profiler.query_kernel_profiler_info("double").counter == 20


@pytest.mark.archs("cpu")  # the times of the others' tasks are the device's
def test_serial_tasks_of_the_cpu(measured):
    x = sg.field(sg.i32, shape=3000)
    y = sg.field(sg.i32, shape=())

    @sg.kernel
    def mixed():
        y[None] = 1
        for i in x:
            x[i] = i
        y[None] += x[5]
        for i in x:
            x[i] += y[None]
        y[None] = 7

    mixed()
    found = records()
    assert [r.key.kind for r in found] == ["serial", "range_for", "serial", "range_for", "serial"]
    assert all(a.end <= b.begin for a, b in pairwise(found))
    assert all(r.duration >= 0 and r.cpu >= 0 for r in found)
    assert y[None] == 7 and (x.to_numpy() == np.arange(3000) + 6).all()
