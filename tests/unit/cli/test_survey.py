"""`spirograd survey`: tables, files and exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import needs
import pytest
from report.reading import browse, data_of
from unit.survey.programs import PROGRAM

DEVICES = "llvm-gfx942,llvm-gfx1100"


def survey(folder: Path, *options: str, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "spirograd", "survey", "program.py", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=folder)


def test_tables_and_files(tmp_path):
    done = survey(tmp_path, "--devices", DEVICES, "--json", "out.json", "--html", "page.html", "--fail-on", "errors,spills")
    assert done.returncode == 0, done.stderr
    assert "4 kernels on 2 devices; of their tasks, 14 compile" in done.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert list(document["devices"]) == DEVICES.split(",") and not document["missing"]
    kernels = [result["kernel"] for result in document["results"] if result["device"] == "llvm-gfx942"]
    assert list(dict.fromkeys(kernels)) == ["run", "run_grad_sizes", "run_grad", "double"]
    assert all(result["outcome"] == "compiles" and result["registers"] > 0 and result["spills"] == 0 for result in document["results"])
    page = data_of((tmp_path / "page.html").read_text())
    for entry in page["kernels"]:
        assert [row[0] for row in entry["survey"]] == [name for name in DEVICES.split(",") for _ in range(len(entry["survey"]) // 2)]
        assert set(DEVICES.split(",")) <= {stage["title"] for stage in entry["stages"]}


def test_page_in_a_browser(tmp_path):
    needs.need("chromium")
    assert survey(tmp_path, "--devices", "llvm-gfx942", "--html", "page.html").returncode == 0
    assert "<caption>Devices</caption>" in browse(tmp_path / "page.html", tmp_path / "profile")


def test_failures_have_a_status(tmp_path):
    needs.need("swiftshader")
    done = survey(tmp_path, "--devices", "swiftshader", "--fail-on", "errors")
    assert done.returncode == 1 and "1 task failed because of --fail-on errors:\n  double, on swiftshader: refused: " in done.stderr
    assert "has no 64-bit floats" in done.stdout
    assert survey(tmp_path, "--devices", "swiftshader", "--fail-on", "spills").returncode == 0


def test_missing_devices_have_a_status_if_they_were_named(tmp_path):
    (tmp_path / "empty").mkdir()
    done = survey(tmp_path, "--devices", "turnip-a750,llvm-gfx942", "--root", "empty")
    if "turnip-a750 " in done.stdout.split("Devices that are missing here")[0]:
        pytest.skip("this machine has Turnip and its null device")
    assert done.returncode == 1 and "Devices of --devices are missing here: turnip-a750" in done.stderr
    assert "apt install mesa-" in done.stdout


def test_a_program_of_the_family(tmp_path):
    program = """
import taichi as ti
ti.init(arch=ti.gpu)
x = ti.field(ti.f32, 8)
@ti.kernel
def double():
    for i in x:
        x[i] *= 2
double()
"""
    for command in (("survey", "--devices", "llvm-gfx942"), ("dump", "--to", "dumps"), ("profile", "--arch", "cpu")):
        path = tmp_path / "program.py"
        path.write_text(program)
        line = [sys.executable, "-m", "spirograd", command[0], "--compat", "taichi", *command[1:], str(path)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
        assert done.returncode == 0 and "double" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--devices", "radv"), "there is no device `radv`"),
        (("--root", "nowhere"), "there is no folder nowhere: --root takes the folder of a system"),
        (("--html", "nowhere/page.html"), "there is no folder nowhere for --html"),
        (("--json", "nowhere/out.json"), "there is no folder nowhere for --json"),
        (("--fail-on", "slow"), "there is no kind `slow`; there are errors and spills"),
    ],
)
def test_misuse(options, message, tmp_path):
    done = survey(tmp_path, *options)
    assert done.returncode == 2 and message in done.stderr


def test_a_missing_script_is_misuse(tmp_path):
    command = [sys.executable, "-m", "spirograd", "survey", str(tmp_path / "none.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2 and "there is no file" in done.stderr


def test_a_program_that_fails(tmp_path):
    """Its status counts, and the kernels that it compiled before are surveyed."""
    done = survey(tmp_path, "--devices", "llvm-gfx942", program=PROGRAM + "raise ValueError('the end')\n")
    assert done.returncode == 1 and "ValueError: the end" in done.stderr and "4 kernels on 1 device" in done.stdout
    done = survey(tmp_path, "--devices", "llvm-gfx942", program="import sys\nsys.exit(3)\n")
    assert done.returncode == 3 and "compiled no kernel" in done.stderr


def test_programs_that_fail(tmp_path):
    """Kernels that they have compiled are surveyed; a hint names --compat for packages that it replaces."""
    done = survey(tmp_path, "--devices", "llvm-gfx942", program=PROGRAM + "\nraise SystemExit(3)\n")
    assert done.returncode == 3 and "program.py ended with status 3: what follows are the kernels" in done.stderr
    assert "4 kernels on 1 device" in done.stdout
    done = survey(tmp_path, "--devices", "llvm-gfx942", program="raise ModuleNotFoundError('missing', name='taichi')\n")
    assert done.returncode == 1 and "hint: `--compat taichi` runs a program that imports taichi on spirograd" in done.stderr
    assert "program.py compiled no kernel" in done.stderr
