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


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: spirograd ")


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
    assert "removed 1 kernel, 1.0 MiB" in capsys.readouterr().out
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


def test_profile_takes_its_options_before_or_right_after_the_program(tmp_path, capsys):
    program, trace = tmp_path / "program.py", tmp_path / "trace.json"
    program.write_text(SCRIPT + "print('given', *sys.argv[1:])\n")
    assert main(["profile", str(program), "--trace", str(trace), "--sort=count", "interpreter", "--arch", "x"]) == 0
    assert trace.exists() and "given interpreter --arch x" in capsys.readouterr().out
    assert main(["profile", str(program), "--sort", "count", "--", "interpreter", "--sort", "x"]) == 0
    assert "given interpreter --sort x" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["profile", str(program), "--sort", "size"])
    assert "invalid choice: 'size'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["dump", "--to", "dumps"], ["profile"], ["survey"]])
def test_failures_of_a_program_are_shown_as_by_python(command, tmp_path, capsys, monkeypatch):
    """Without frames of this package, and with what to do where a package of the family is missing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "taichi", None)
    program = tmp_path / "program.py"
    program.write_text("def helper():\n    import taichi\nhelper()\n")
    assert main([*command, str(program)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f'Traceback (most recent call last):\n  File "{program}", line 3, in <module>')
    assert said.count("  File ") == 2 and "\nhint: `--compat taichi` runs" in said
    program.write_text("x = = 1\n")
    assert main([*command, str(program)]) == 1
    assert capsys.readouterr().err.startswith(f'  File "{program}", line 1\n')


def test_profile_of_a_program_that_fails(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text(SCRIPT.replace("print(", "raise ValueError("))
    assert main(["profile", str(program), "interpreter"]) == 1
    printed = capsys.readouterr()
    assert "1 runs of 1 tasks" in printed.out and "ValueError: " in printed.err
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
