"""The benchmarks: their programs compute what NumPy does, and their tables, histories and processes say what went wrong."""

import importlib
import json
import platform
import sys

import numpy as np
import pytest
from needs import package

import spirograd as sg
from benchmarks import choices, goals, halo_model, history, many_processes
from benchmarks.gpu import reference
from benchmarks.gpu.columns import Way, _difference
from benchmarks.gpu.rows import BY_NAME, ROWS, program_name
from benchmarks.gpu.table import Table
from benchmarks.measure import FOLDER
from benchmarks.processes import Failed, Process

_ECHO = """
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    print("something else", flush=True)
    if request.get("end"):
        sys.exit(3)
    time.sleep(request.get("sleep", 0))
    print(json.dumps({"error": "no such thing"} if request.get("fail") else {"result": request}), flush=True)
"""


@pytest.fixture
def family(monkeypatch):
    """The programs in the language of the family, for spirograd on the CPU."""
    monkeypatch.setenv("BENCHMARKED", "spirograd")
    module = importlib.import_module("benchmarks.gpu.family")
    module.start("cpu")
    yield module
    sg.reset()


# Compiling mpm88 takes longer than all others.
_PROGRAMS = [pytest.param(row, id=row.name, marks=[pytest.mark.long] * (row.name == "mpm88")) for row in ROWS]


@pytest.mark.parametrize("row", _PROGRAMS)
def test_programs_for_gpus_compute_what_numpy_does(family, row):
    expected = getattr(reference, program_name(row))(row.small)
    for program in getattr(family, program_name(row))(row.small):
        for _ in range(2):  # each result starts afresh
            program.run()
            assert _difference(row, program.result().tolist(), expected) == "", program.label


@pytest.mark.long
def test_programs_in_torch_compute_what_numpy_does():
    package("torch")
    programs = importlib.import_module("benchmarks.gpu.in_torch")
    programs.start("cpu")
    for name in ("saxpy", "maximum", "histogram_256", "nbody", "gated", "mpm88", "substeps"):
        row = BY_NAME[name]
        for program in getattr(programs, program_name(row))(row.small):
            expected = getattr(reference, program_name(row))(row.small)
            assert _difference(row, program.result().tolist(), expected) == "", (name, program.label)


@pytest.mark.parametrize("found, said", [
    ([0.0, 1.0], ""),
    ([0.0, 1.0 + 1e-5], ""),
    ([0.0, 1.1], "wrong result: 1.1, expected 1"),
    ([0.0, float("nan")], "wrong result: nan, expected 1"),
    ([0.0], "wrong result: 1 numbers, expected 2"),
])  # fmt: skip
def test_wrong_results_are_told(found, said):
    assert _difference(BY_NAME["saxpy"], found, np.array([0.0, 1.0])) == said


class _Measured:
    """A column of the table with times."""

    def __init__(self, name, ours, *ways):
        self.name, self.ours, self.ways, self.version = name, ours, list(ways), "1"

    @property
    def best(self):
        return min((way for way in self.ways if way.seconds and not way.error), key=lambda way: way.best, default=None)


def test_a_line_of_the_table_for_gpus():
    ours = _Measured("cuda", True, Way("", seconds=[0.0008, 0.0006]))
    torch = _Measured("torch", False, Way("eager", seconds=[0.0012]), Way("compiled", "RuntimeError: no compiler"))
    table = Table([ours, torch, _Measured("jax", False, Way("", "wrong result: 1, expected 2"))], True)
    line = table.add(BY_NAME["functions"])
    assert line.split("|")[2:-1] == [" 0.6 ms, 1.79 TB/s ", " 1.2 ms, 0.895 TB/s ", " failed ", " 0.50 ", " 0.3 ms ", " 2.00 "]
    assert any("no compiler" in note for note in table.notes) and any("wrong result" in note for note in table.notes)


def test_a_process_answers_and_says_how_it_ended():
    process = Process("echo", [sys.executable, "-c", _ECHO])
    assert process.ask(60, number=1) == {"number": 1}
    with pytest.raises(Failed, match="echo: no such thing"):
        process.ask(60, fail=True)
    with pytest.raises(Failed, match="echo: the process has ended with status 3"):
        process.ask(60, end=True)
    process.close()


def test_a_process_that_does_not_answer_is_ended():
    process = Process("echo", [sys.executable, "-c", _ECHO])
    with pytest.raises(Failed, match=r"no answer within 0\.1 s"):
        process.ask(0.1, sleep=60)
    assert process.process.wait(60) != 0
    process.close()


def _runs():
    """Three runs, of which one has another case, that failed."""
    runs = []
    for k in range(3):
        seconds = {"saxpy 16M": {"cpu": {"wall_best": 0.01 / (k + 1)}, "quadrants": {"wall_best": 0.02}}}
        runs.append({"date": f"2026-11-2{k} 10:00 UTC", "commit": "abcdef0", "seconds": seconds, "limits": {"saxpy 16M": 0.002}})
    runs[1]["seconds"] = {"launch: empty": {"cpu": {"error": "failed"}}}
    return runs


def test_the_history_is_kept(tmp_path):
    path = tmp_path / "runs" / "machine.jsonl"
    for run in _runs():
        history.append(path, run)
    assert history.read(path) == _runs()
    path.write_text(json.dumps(_runs()[0]) + "\nnonsense\n")
    with pytest.raises(ValueError, match="line 2: not a line of JSON"):
        history.read(path)


@pytest.mark.long
def test_the_history_is_drawn(tmp_path):
    package("matplotlib")
    assert history.draw(_runs(), tmp_path / "history.png") and (tmp_path / "history.png").stat().st_size > 5000
    assert not history.draw(_runs(), tmp_path / "none.png", ["no such case"])


def test_goals_and_limits():
    limits = goals.Limits(bandwidth=10e9, peak=100e9, clock=2e9, lanes=8)
    assert limits.seconds("saxpy 16M") == pytest.approx(12 * 2**24 / 10e9)
    assert limits.seconds("n-body 4096") == pytest.approx(20 * 4096**2 / 100e9)
    assert limits.seconds("launch: empty") is None
    assert goals.Goal(times=2).met(1.0, 2.5) and not goals.Goal(times=2).met(1.0, 1.5)
    assert goals.Goal(times=2).met(1.0, None) is None
    assert goals.Goal(seconds=1e-6).met(0.5e-6, None) and goals.Goal(seconds=5e-6).text() == "5 us"


def test_the_table_of_many_processes():
    """Twice the processes, of which each takes as long (weak), or half of the time and a quarter more for messages (strong)."""

    def measured(seconds: float, share: float, python: float = 1e-4) -> many_processes.Measured:
        passes = {"forward": 1, "gradient": 3}
        each, alone = (
            {what: many_processes.Time(k * one, python) for what, k in passes.items()} for one in (seconds, seconds * (1 - share))
        )
        return many_processes.Measured(each, alone, 1_000_000, 1, 1, True)

    two = {"wave 64 weak": measured(0.002, 0.1), "wave 64 strong": measured(0.00125, 0.2)}
    results = {2: two, 1: {name: measured(0.002, 0.0) for name in two}}
    link = many_processes.Link(1e-3, 1e-5, 1e9)
    lines = many_processes.table(results, link)
    assert "| wave 64 x 64 | weak | forward | 2 | 2 | 1.00 | 10% | 0.1 | 2 | cells |" in lines
    assert "| wave 64 x 64 | weak | gradient | 1 | 6 | 1.00 | 0% | 0.1 |  |  |" in lines
    assert "| wave 64 x 64 | strong | forward | 2 | 1.25 | 0.80 | 20% | 0.1 | 1.1 | Python |" in lines
    assert "| wave 64 x 64 | strong | gradient | 2 | 3.75 | 0.80 | 20% | 0.1 | 3 | cells |" in lines


def test_the_model_of_many_processes():
    """Halos are hidden by cells, unless the program takes turns; links that are slow, and launches, are not."""
    times = {"forward": many_processes.Time(2e-3, 1e-4), "gradient": many_processes.Time(6e-3, 3e-4)}
    fast, slow = many_processes.Link(1e-5, 1e-5, 1e10), many_processes.Link(1e-5, 1e-5, 1e8)
    overlapping = many_processes.Measured(times, times, 1_000_000, 1, 1, True)
    turns = overlapping._replace(overlaps=False)
    assert many_processes.predicted(overlapping, overlapping, "forward", 1.0, fast) == (pytest.approx(2e-3), "cells")
    assert many_processes.predicted(turns, turns, "forward", 1.0, fast) == (pytest.approx(2e-3 + 1e-5 + 1e-4), "cells")
    assert many_processes.predicted(overlapping, overlapping, "gradient", 0.25, slow) == (pytest.approx(2e-5 + 2e-2), "link")


def test_the_model_of_halos():
    """Large blocks hide messages and launches; small ones take as long as these."""
    slow, fast = halo_model.Link(1e-3, 1e9), halo_model.Link(1e-6, 1e11)
    large, small = halo_model.Block(8192, 2e-3, 1e-5, 3e-4), halo_model.Block(64, 1e-6, 1e-6, 3e-4)
    assert halo_model.predicted(large, fast) == pytest.approx(2e-3 + 1e-5)
    assert halo_model.predicted(small, fast) == 3e-4
    assert halo_model.predicted(small, slow) == pytest.approx(1e-3 + 1024e-9 + 1e-6 * 4 / 64 + 1e-6)
    assert halo_model.table([large], fast)[2].startswith("| 8192 x 8192 | 2 | 403 | 0.01 | 131.1 | 0.3 | 2.01 | 1.00 |")


def test_the_table_of_choices(monkeypatch):
    monkeypatch.delenv("SG_TUNE")
    wrong = choices.Row("p", "k", "1,000", {"": 3_000_000, "lanes": 2_000_000}, "lanes")
    right = choices.Row("q", "l", "2,000", {"": 1_000_000, "no lanes": 4_000_000}, "")
    assert choices.summary([]) == "no choices"
    assert choices.summary([right, wrong]).startswith("the cost model is right in 1 of 2 choices; its code takes 1.225 times")
    lines = choices.table([right, wrong]).splitlines()
    assert lines[2] == "| p | k | 1,000 | 3.000 | lanes 2.000 | lanes | 1.50 |"
    with choices.decided_at_once(everything=True):
        found = choices.run_program(FOLDER / "programs" / "neighbours.py", "cpu")
    sg.reset()
    assert all(row.chosen in row.times and all(row.times.values()) for row in found)
    if platform.machine() == "x86_64":
        assert {"densities", "forces"} <= {row.kernel for row in found}
