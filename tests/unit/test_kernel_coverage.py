"""Kernel coverage: the data files of a program that runs in a process of its own, on every back end, against the lines that must run."""

import json
import os
import subprocess
import sys
import textwrap

import needs
import pytest

import spirograd as sg
from spirograd import kernel_coverage

coverage = needs.package("coverage")

# Comments mark the lines of kernels that run by R, and those of which one path runs.
PROGRAM = """
import spirograd as sg

sg.init(arch=sg.ARCH)


@sg.func
def inlined(a):
    b = a  # R
    if a > 100:  # R, one of two
        b = 2 * a
    return b  # R


@sg.real_func
def called(a: sg.i32) -> sg.i32:
    if a < 0:  # R, one of two
        a = 0
    else:
        a += 1  # R
    return a  # R


@sg.kernel
def work(n: sg.i32) -> sg.i32:
    total = 0  # R
    for i in range(n):  # R
        if i % 2 == 0:  # R
            continue  # R
        elif i > 1000:  # R, one of two
            total += 1
        if i >= 0:  # R, one of two
            total += inlined(i) + called(i)  # R
        if sg.static(sg.cfg.debug):  # R, one of two
            total += 5
        j = 0  # R
        while j < 3:  # R
            j += (  # R
                1
            )
            if j == 2:  # R
                break  # R
        while j < 0:  # R, one of two
            j += 1
    for i in range(0):  # R, one of two
        total += 1
    return total  # R


@sg.kernel
def never():
    print(1)


@sg.kernel
def later(n: sg.i32):
    for i in range(n):  # R
        if i > 5:  # R
            print("late")  # R


print("result", work(10))
later(6)
sg.init(arch=sg.ARCH)
later(7)
"""


def run(folder, command, **variables):
    """Run a command in ``folder``, and return its output."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), **variables}
    for name in ("SG_KERNEL_COVERAGE", "QD_KERNEL_COVERAGE"):
        if name not in variables:
            environment.pop(name, None)
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_program(folder, arch, text=PROGRAM):
    file = folder / "program.py"
    file.write_text(textwrap.dedent(text).replace("sg.ARCH", f"sg.{arch}"))
    return file


def marked(file, mark):
    return {number for number, line in enumerate(file.read_text().splitlines(), 1) if "#" in line and mark in line.partition("#")[2]}


def test_lines_that_ran(arch, tmp_path):
    coverage.CoverageData  # noqa: B018  skipped where it is missing
    file = write_program(tmp_path, arch)
    assert run(tmp_path, ["program.py"], SG_KERNEL_COVERAGE="1").startswith("result 55")
    (data_file,) = tmp_path.glob("_sg_kcov.*")
    data = coverage.CoverageData(str(data_file))
    data.read()
    assert not data.has_arcs() and [str(file)] == list(data.measured_files())
    assert set(data.lines(str(file))) == marked(file, "R")


@pytest.mark.archs("cpu", "vulkan")
def test_branches_beside_those_of_python(arch, tmp_path):
    coverage.CoverageData  # noqa: B018
    file = write_program(tmp_path, arch)
    run(tmp_path, ["-m", "coverage", "run", "--branch", "--include=program.py", "program.py"])
    run(tmp_path, ["-m", "coverage", "combine", "-q", "--append", *[path.name for path in tmp_path.glob("_sg_kcov.*")]])
    run(tmp_path, ["-m", "coverage", "json", "-q"])
    found = json.loads((tmp_path / "coverage.json").read_text())["files"]["program.py"]
    lines = file.read_text().splitlines()
    assert {line for line, _ in found["missing_branches"]} == marked(file, "one of two")
    assert not marked(file, "R") & set(found["missing_lines"])
    assert {lines[line - 1].strip() for line in found["missing_lines"]} == {
        "b = 2 * a", "a = 0", "total += 1", "total += 5", "j += 1", "print(1)",
    }  # fmt: skip


@pytest.mark.archs("cpu")
def test_gradients_are_what_they_were(arch, tmp_path):
    coverage.CoverageData  # noqa: B018
    file = write_program(
        tmp_path,
        arch,
        """
        import spirograd as sg

        sg.init(arch=sg.ARCH)
        x, loss = sg.field(sg.f32, 4, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)


        @sg.kernel
        def step():
            for i in x:  # R
                if x[i] < 10:  # R
                    x[i] = x[i] * x[i]  # R


        @sg.kernel
        def total():
            for i in x:  # R
                loss[None] += x[i]  # R


        x.fill(3.0)
        with sg.ad.Tape(loss):
            step()
            step()
            step()
            total()
        print(loss[None], x.grad.to_numpy().tolist())
        """,
    )
    assert run(tmp_path, ["program.py"], QD_KERNEL_COVERAGE="1") == "324.0 [108.0, 108.0, 108.0, 108.0]\n"
    (data_file,) = tmp_path.glob("_qd_kcov.*")
    data = coverage.CoverageData(str(data_file))
    data.read()
    assert set(data.lines(str(file))) == marked(file, "R")


@pytest.mark.archs("cpu")
def test_it_can_be_switched_off(arch, tmp_path):
    coverage.CoverageData  # noqa: B018
    write_program(tmp_path, arch)
    run(tmp_path, ["program.py"])
    run(tmp_path, ["-m", "coverage", "run", "program.py"], SG_KERNEL_COVERAGE="0")
    assert not list(tmp_path.glob("_*_kcov*"))
    run(tmp_path, ["-m", "coverage", "run", "program.py"])
    assert len(list(tmp_path.glob("_sg_kcov*"))) == 1


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setenv("SG_KERNEL_COVERAGE", "1")
    monkeypatch.setattr(kernel_coverage, "_process", None)
    monkeypatch.setitem(sys.modules, "coverage", None)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"kernel coverage needs coverage\.py: `pip install coverage`"):
        kernel_coverage.new_probes()
