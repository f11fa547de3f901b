"""The scripts of `validation/family`, without Taichi: a program with windows on spirograd, distances of fields, the table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from validation.clients.programs import programs as clients
from validation.family.programs import Program
from validation.family.running import Compared, Outcome, Times, _run, _times, distance
from validation.family.table import markdown, read, renew, runs_on_both, totals, write

ROOT = Path(__file__).parents[2]
PROGRAM = """
import time
import taichi as ti
from taichi.examples.patterns import start

ti.init(arch=ti.gpu)
x = ti.Vector.field(2, float, shape=4, needs_grad=True)
n = ti.field(int, shape=())
last = ti.ndarray(float, 3)

@ti.kernel
def step():
    n[None] += 1
    for i in x:
        x[i] += [start + n[None], ti.random() * 0 + 1]

gui = ti.GUI("window", res=(64, 32))
assert gui.res == (64, 32) and ti.GUI.ESCAPE == "ESCAPE"
before = time.time()
while gui.running and not gui.get_event(gui.ESCAPE):
    step()
    last.fill(round(60 * (time.time() - before)))
    gui.set_image(x.to_numpy())
    gui.circles(x.to_numpy(), radius=1)
    if gui.button("more") is None or gui.is_pressed("a"):
        break
    gui.show()
"""


def test_a_program_with_windows_runs_for_some_frames(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "patterns.py").write_text("start = 10.0")
    options = ["--on", "spirograd", "--folder", tmp_path, "--frames", "3", "--seconds", "100", "--out", tmp_path / "out"]
    command = [sys.executable, "-m", "validation.family.worker", *map(str, options), str(tmp_path / "program.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (said["ended"], said["reason"], len(said["frames"])) == ("frames", "", 3), done.stderr
    memory = dict(np.load(tmp_path / "out" / "memory.npz"))
    expected = np.tile(np.float32([36, 3]), (4, 1))
    assert sorted(memory) == [
        "000 line 7", "000 line 7.grad", "001 line 8", "002 line 9", "drawn by circles", "drawn by set_image",
    ]  # fmt: skip
    for name in ("000 line 7", "drawn by circles", "drawn by set_image"):
        assert (memory[name] == expected).all()
    assert not memory["000 line 7.grad"].any()
    assert memory["001 line 8"] == 3
    assert memory["002 line 9"].tolist() == [2, 2, 2]  # the clock shows a frame after each


OPENCV = """
import cv2
import taichi as ti

ti.init()
x = ti.field(float, shape=())
panel = ti.ui.Window("window", (64, 64)).GUI
panel.begin("settings", 0, 0, 1, 1)
while cv2.waitKey(1) != 27:
    x[None] += 1
    cv2.imshow("image", x.to_numpy())
"""


def test_windows_of_opencv_count_frames(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(OPENCV)
    (tmp_path / "cv2.py").write_text("")
    options = argparse.Namespace(taichi=sys.executable, arch="cpu", seconds=100, out=tmp_path / "out")
    outcome = _run(Program("opencv", tmp_path, tmp_path / "program.py", copied=True), "spirograd", options, 3, ())
    assert (outcome.ended, outcome.reason, len(outcome.frames)) == ("frames", "", 3)
    assert outcome.memory["000 line 6"] == 2


STEPS = """
import taichi as ti
import model

steps = model.Model()
for number in range(10):
    print("before", number)
    steps.step(2)
    print("step", number)
"""
MODEL = """
import taichi as ti

ti.init()

class Model:
    def __init__(self):
        self.x = ti.field(float, shape=(), needs_grad=True)
        self.loss = ti.field(float, shape=(), needs_grad=True)

    def step(self, by):
        with ti.ad.Tape(self.loss):
            add(self.x, self.loss, by)

@ti.kernel
def add(x: ti.template(), loss: ti.template(), by: float):
    loss[None] += by * (x[None] + 1.0)
"""


@pytest.mark.parametrize("frame", ["tape", "model:Model.step", "printed:step"])
def test_calls_of_a_program_without_windows_count_as_frames(tmp_path: Path, frame: str) -> None:
    (tmp_path / "program.py").write_text(STEPS)
    (tmp_path / "model.py").write_text(MODEL)
    program = Program("steps", tmp_path, tmp_path / "program.py", frame=frame, copied=True)
    options = argparse.Namespace(taichi=sys.executable, arch="cpu", seconds=100, out=tmp_path / "out")
    outcome = _run(program, "spirograd", options, 3, ())
    assert (outcome.ended, outcome.reason, len(outcome.frames)) == ("frames", "", 3)
    assert outcome.memory["000 model.py line 8.grad"] == 2 and outcome.memory["001 model.py line 9"] == 2


def test_clients_are_found_in_a_folder_of_checkouts(tmp_path: Path) -> None:
    script = tmp_path / "LBM_Taichi" / "lbm_solver.py"
    script.parent.mkdir()
    script.write_text("import taichi as ti\nn = ti.random()")
    (found,) = clients(tmp_path)
    assert (found.name, found.path, found.draws) == ("LBM_Taichi: lattice Boltzmann, 2-D", script, True)


def test_a_program_gets_a_volume_instead_of_a_download(tmp_path: Path) -> None:
    script = tmp_path / "from" / "examples" / "program.py"
    script.parent.mkdir(parents=True)
    script.write_text("")
    program = Program("volume", tmp_path / "from", script, copied=True, volume="ball.bin")
    path = program.copy(tmp_path / "copy")
    ball = np.fromfile(path.parent / "ball.bin", np.float32).reshape(128, 128, 128)
    assert path.is_file() and not (script.parent / "ball.bin").exists()
    assert ball.max() > 0.5 and ball[0, 0, 0] == 0 and np.allclose(ball, ball.transpose(2, 1, 0), atol=1e-6)


def test_an_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import taichi as ti\nti.init()\nti.Mesh()")
    options = ["--on", "spirograd", "--folder", tmp_path, "--frames", "1", "--seconds", "100", "--out", tmp_path / "out"]
    command = [sys.executable, "-m", "validation.family.worker", *map(str, options), str(tmp_path / "program.py")]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    said = json.loads((tmp_path / "out" / "result.json").read_text())
    assert said["ended"] == "failed"
    assert said["reason"].startswith("SpirogradUnsupportedError: `Mesh` is not supported")


@pytest.mark.parametrize(
    ("theirs", "ours", "apart"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2),
        ([0, 0], [0, 0], 0.0),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.inf], [np.inf], 0.0),
        ([np.nan], [1.0], np.inf),
        ([1.0], [1.0, 2.0], np.inf),
        ([], [], 0.0),
        ([True], [False], 1.0),
    ],
)
def test_distances(theirs: list, ours: list, apart: float) -> None:
    assert distance(np.array(theirs), np.array(ours)) == apart


def test_distances_may_be_relative_to_magnitudes_of_another_run() -> None:
    assert distance(np.array([1e-12]), np.array([2e-12]), np.array([1e-3, np.inf], np.float32)) == pytest.approx(1e-9)


def test_the_table_counts_and_keeps_rows(tmp_path: Path) -> None:
    ran = Outcome("frames", frames=[1.0])
    program = Program("a", Path(), Path("a.py"), deliberate=("old *",))
    fields = {"old one": 1.0, "near": 1e-6, "noise": 0.5, "far": 0.5, "chaotic": 1.0}
    spreads, times = {"noise": 0.3, "far": 0.01, "chaotic": 0.01}, (Times(0.03, 0.04, 6), Times(0.02, 0.01, 2))
    results = [
        Compared(program, ran, ran, fields, spreads, {"far": 0.1, "chaotic": 1e-9}, times),
        Compared(Program("b", Path(), Path("b.py")), ran, Outcome("failed", "Error: no | way / at line 3")),
        Compared(Program("c", Path(), Path("c.py")), Outcome("late"), ran),
    ]
    found = "1 equal to 1e-06, 1 apart by rounding, 1 apart on purpose, 1 apart by rounding (in double precision equal to 1e-09)"
    found += ", **1 differ**: far by 5e-01"
    assert results[0].verdict == f"{found}, 1.50 (30 / 20 ms; processor 4.00; first frame 3.00)"
    rows = renew({}, results)
    assert rows["a"][-1] == "1.50 (30 / 20 ms; processor 4.00; first frame 3.00)"
    assert rows["b"][:2] == ["runs", "Error: no \\| way"]
    assert rows["c"] == ["no frame within the time limit", "", "", ""]
    counted = "Of 3 examples 2 run on Taichi, and 1 of these on spirograd, 1 with other numbers"
    speeds = ". A frame takes 1.50 times as long on Taichi (median of 1); 1 reach 1.5 times, 0 are slower"
    assert totals(rows) == counted + speeds
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## Results\n\nold")
    write(page, markdown(rows, argparse.Namespace(arch="cpu", frames=3, rounds=2)))
    assert page.read_text().startswith("# Page\n\n## Results\n\nMeasured on ") and "old" not in page.read_text()
    assert read(page) == rows
    rows = renew(rows, [Compared(Program("b", Path(), Path("b.py")), ran, ran, {"x": 0.0})])
    assert list(rows) == ["a", "b", "c"] and rows["b"][2] == "1 equal to 0e+00"
    rows = renew(rows, [Compared(program, ran, ran, times=times[::-1])], times_only=True)
    assert rows["a"][2] == found and rows["a"][3].startswith("0.67 (20 / 30 ms")
    assert runs_on_both(rows, "a") and not runs_on_both(rows, "c") and not runs_on_both(rows, "d")
    write(tmp_path / "new.md", markdown(rows, argparse.Namespace(arch="cpu", frames=3, rounds=2)))
    assert read(tmp_path / "new.md") == rows


def test_each_frame_counts_with_its_shortest_time() -> None:
    first, second = Outcome("frames", "", [9, 9, 3, 5], [8, 9, 2, 5]), Outcome("frames", "", [9, 9, 4, 1], [7, 9, 4, 3])
    assert _times([first, second]) == Times(2, 2.5, 7)
    assert _times([Outcome("late", "", [9, 9], [9, 9])]) is None
