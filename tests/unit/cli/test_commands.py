"""The command `spirograd`, run in this process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest
from backend.trace_reading import Trace

import spirograd as sg
from spirograd.base import knobs
from spirograd.cli import COMMANDS, main
from spirograd.commands import demo as demo_command
from spirograd.runtime.offline_cache import Cache

SCRIPT = """
import sys
import spirograd as sg

sg.init(arch=sys.argv[1])
x = sg.field(sg.i32, shape=4)


@sg.kernel
def count():
    for i in x:
        x[i] = i


count()
print("sum", x.to_numpy().sum())
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Commands set SG_DUMP, sys.argv and sys.path as the processes of their own that they are; here they must not stay."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(os.environ)
    yield
    sg.reset()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as leaving:
        main([*command, "--help"])
    assert leaving.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: {' '.join(('spirograd', *command))}" in text
    if not command:
        assert all(name in text and module.HELP in text for name, module in COMMANDS.items())
        assert "Vulkan, wgpu" in text


def test_no_command_is_misuse(capsys):
    with pytest.raises(SystemExit) as leaving:
        main([])
    assert leaving.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_module_runs():
    done = subprocess.run([sys.executable, "-m", "spirograd", "--version"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == f"spirograd {sg.__version__}"


def test_knobs_lists_all(capsys, monkeypatch):
    monkeypatch.setenv("SG_NUM_THREADS", "3")
    assert main(["knobs"]) == 0
    text = capsys.readouterr().out
    assert all(name in text and knob.doc in text for name, knob in knobs.KNOBS.items())
    assert next(line for line in text.splitlines() if line.startswith("SG_NUM_THREADS")).split()[1] == "3"


def test_cache_info_and_clear(tmp_path, capsys):
    folder = tmp_path / "aa"
    folder.mkdir()
    (folder / "one.sgk").write_bytes(b"x" * 2**20)
    for words in (["cache", "info"], ["cache"]):
        assert main([*words, "--dir", str(tmp_path)]) == 0
        assert "kernels: 1\nsize: 1.0 MiB" in capsys.readouterr().out
    assert main(["cache", "clear", "--dir", str(tmp_path)]) == 0
    assert "removed 1 kernels, 1.0 MiB" in capsys.readouterr().out
    assert Cache(tmp_path).stats().files == 0


def test_doctor(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in ("Versions", "Back ends", "Features", "Helpers", "Offline cache", "Knobs in force", sg.__version__, "float64"):
        assert part in text


def test_doctor_says_how_to_get_what_is_missing(capsys, monkeypatch):
    doctor = importlib.import_module("spirograd.commands.doctor")
    monkeypatch.setattr(doctor.loader, "available", lambda arch: None if arch == "cpu" else "no driver at all")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "not usable: no driver at all" in text
    assert "apt install libvulkan1" in text and "apt install spirv-tools" in text
    assert "pip install wgpu (Python 3.11 or newer), and a driver" in text
    assert not any(line.split()[:2] == ["metal", "missing"] for line in text.splitlines())  # nothing to get: it is for macOS


@pytest.mark.archs("cpu", "vulkan", "wgpu")
def test_dump(arch, tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert main(["dump", str(script), "--to", str(tmp_path / "dumps"), "--", arch]) == 0
    text = capsys.readouterr().out
    assert "sum 6" in text
    names = sorted(path.name for path in (tmp_path / "dumps").iterdir())
    assert all(name in text for name in names)
    kinds = ("kernel.ir", "kernel.ll", "kernel.s") if arch == "cpu" else ("kernel.ir", ".spv", ".spvasm")
    assert all(any(name.startswith("count-") and name.endswith(kind) for name in names) for kind in kinds)


def test_dump_of_nothing(tmp_path, capsys):
    assert main(["dump", str(tmp_path / "absent.py")]) == 2
    assert "there is no file" in capsys.readouterr().err
    script = tmp_path / "empty.py"
    script.write_text("import sys\nsys.exit(sys.argv[1:] and 3)")
    assert main(["dump", str(script), "--to", str(tmp_path / "d")]) == 1
    assert "compiled no kernel" in capsys.readouterr().out
    assert main(["dump", str(script), "--to", str(tmp_path / "d"), "--", "--option"]) == 3


@pytest.mark.archs("vulkan")
def test_a_profile_restricts_the_program(arch, tmp_path, capsys, monkeypatch):
    for name in ("SG_ARCH", "SG_PROFILE", "SG_DUMP"):
        monkeypatch.setenv(name, "")  # the commands set them for the program
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "print('profile', sg.lang.context.session().device.caps.profile)\n")
    assert main(["dump", str(script), "--to", str(tmp_path / "dumps"), "--arch", arch, "--profile", "android", "--", "cpu"]) == 0
    assert "profile android" in capsys.readouterr().out
    assert main(["profile", "--arch", arch, "--profile", "m1", str(script), "cpu"]) == 0
    assert "profile m1" in capsys.readouterr().out
    monkeypatch.setenv("SG_ARCH", "")
    assert main(["dump", str(script), "--profile", "m1", "--", "cpu"]) == 1
    assert "the profile `m1` describes no devices of cpu" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["dump", str(script), "--profile", "m0"])
    assert "invalid choice: 'm0'" in capsys.readouterr().err


PROFILED = """
import sys
import spirograd.compat.taichi as ti

for arch in sys.argv[1:]:
    ti.init(arch=arch)
    x = ti.field(ti.i32, shape=4)

    @ti.kernel
    def count():
        for i in x:
            x[i] = i

    for _ in range(20):
        count()
print("sum", x.to_numpy().sum())
sys.exit(int(sys.argv[1] == "interpreter"))
"""


@pytest.mark.archs("cpu", "vulkan")  # what devices measure is tested elsewhere
def test_profile_of_all_sessions(arch, tmp_path, capsys):
    program, trace = tmp_path / "program.py", tmp_path / "trace.json"
    program.write_text(PROFILED)
    status = main(["profile", "--trace", str(trace), "--sort", "count", str(program), "interpreter", arch])
    printed = capsys.readouterr().out.splitlines()
    assert status == 1 and printed[0] == "sum 6"  # the program's own
    rows = printed[3:-1]
    assert len(rows) == 2 and all(row.split()[2] == "20" and "program.py:" in row for row in rows)
    assert {row.split()[-1] for row in rows} == {"interpreter", arch}
    found = Trace(trace)
    assert len(found.arrows) == 40 and sorted(found.processes.values()) == sorted(["host", "interpreter", arch])


def test_profile_of_a_program_that_fails(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text(SCRIPT.replace("print(", "raise ValueError("))
    with pytest.raises(ValueError, match="sum"):
        main(["profile", str(program), "interpreter"])
    assert "1 runs of 1 tasks" in capsys.readouterr().out
    assert main(["profile", str(tmp_path / "none.py")]) == 2
    assert main(["profile", "--trace", str(tmp_path / "no" / "t.json"), str(program)]) == 2


@pytest.mark.needs("rich", "matplotlib")
def test_demo(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["demo", "--steps", "8", "--particles", "128", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "agree" in text and "Times" in text
    assert (tmp_path / "splash.png").stat().st_size > 1000
    assert list((tmp_path / "dumps" / "cpu").glob("*.ll"))
    if "vulkan" in sg.available_archs():
        assert list((tmp_path / "dumps" / "vulkan").glob("*.spv"))


def test_demo_names_missing_packages(capsys, monkeypatch):
    monkeypatch.setattr(demo_command, "_has", lambda name: name != "matplotlib")
    assert main(["demo"]) == 1
    assert 'The demo needs matplotlib: pip install "spirograd[demo]"' in capsys.readouterr().out


@pytest.mark.needs("rich", "matplotlib")
def test_demo_refuses_an_absent_back_end(capsys, monkeypatch):
    monkeypatch.setattr(sg, "available_archs", lambda: ["cpu"])
    assert main(["demo", "--arch", "vulkan"]) == 1
    assert "spirograd doctor" in capsys.readouterr().err


@pytest.mark.needs("rich", "matplotlib")
def test_demo_reports_disagreement(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo_command.compare, "TOLERANCE", -1.0)
    monkeypatch.setattr(sg, "available_archs", lambda: ["cpu", "interpreter"])
    assert main(["demo", "--steps", "2", "--particles", "64", "--out", str(tmp_path)]) == 1
    assert "disagree" in capsys.readouterr().out
