"""The scripts of `ci/gpu`: what compute-sanitizer says becomes findings, and the stress test finds a bound that came too late."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import needs
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
_RACES = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at histogram_0+0x4d0 and Read access at histogram_0+0x500 [124 hazards]
=========
========= Error: Race reported between Write access at histogram_0+0x4e0 and Read access at histogram_0+0x510 [4 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""
_ACCESSES = """========= COMPUTE-SANITIZER
3 passed in 2.0s
========= Invalid __global__ read of size 4 bytes
=========     at fill_0+0x110
=========     by thread (3,0,0) in block (0,0,0)
=========     Access to 0x7f2b4c000000 is out of bounds
=========
========= Invalid __global__ read of size 4 bytes
=========     at scale_1+0x20
=========     by thread (0,0,0) in block (0,0,0)
=========
========= Error: process didn't terminate successfully
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""


def _script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_findings_of_the_sanitizer():
    sanitizer = _script("gpu_sanitizer")
    races = sanitizer.findings(_RACES)
    assert [(found.where, found.count) for found in races] == [("histogram_0", 2)]
    accesses = sanitizer.findings(_ACCESSES)
    assert [(found.title, found.where, found.count) for found in accesses] == [
        ("Invalid __global__ read of size 4 bytes", "fill_0", 1), ("Invalid __global__ read of size 4 bytes", "scale_1", 1),
    ]  # fmt: skip
    assert "by thread (3,0,0)" in accesses[0].text
    assert sanitizer.findings("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []
    run = sanitizer.Run("racecheck", "3 passed", 0, 1.0, races)
    assert not run.clean and sanitizer.Run("memcheck", "3 passed", 0, 1.0).clean
    assert "histogram_0, 2 times" in sanitizer.report([run])


def test_no_sanitizer_is_said(tmp_path):
    command = [sys.executable, str(ROOT / "ci" / "gpu_sanitizer.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 77 and "there is no program `compute-sanitizer` on the path" in done.stdout


def test_no_compiler_of_cuda_is_said(tmp_path):
    done = subprocess.run([sys.executable, str(ROOT / "ci" / "gpu_tiles.py")], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 77 and "nvcc and ptxas not on the path" in done.stdout


@pytest.mark.archs("cpu")  # the script itself runs on all others
def test_a_bound_that_comes_too_late_is_found(session, monkeypatch, capsys):
    stress = _script("gpu_stress")
    memories = [stress.Memory() for _ in range(1)]
    streams = stress.Streams("cpu", 1)
    assert stress.stress(memories, streams, 60, 30, 1) == ""
    launch, count = stress.Memory.launch, iter(range(10**6))

    def late(self, kind, n, forward):
        """One launch has the bound of another."""
        if next(count) == 17:
            kernel, before, args, exponents = self.kernels[kind]
            self.kernels[kind] = kernel, lambda m: before((m + 1) % 8), lambda m: args((m + 1) % 8), exponents
            launch(self, kind, n, forward)
            self.kernels[kind] = kernel, before, args, exponents
        else:
            launch(self, kind, n, forward)

    monkeypatch.setattr(stress.Memory, "launch", late)
    wrong = stress.stress(memories, streams, 60, 30, 1)
    assert wrong.startswith("after 30 launches") and "elements differ" in wrong


@pytest.mark.parametrize("archs", [["cuda", "vulkan", "wgpu"], ["cuda", "vulkan"], ["vulkan"], ["cuda"]], ids="-".join)
def test_processes_beside_each_other_fit_into_the_memory_of_the_card(archs, monkeypatch):
    steps = _script("gpu_steps")
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    for fitting in (1, 4, 6, 23, 1 << 10):
        monkeypatch.setattr(steps, "_fitting", lambda fitting=fitting: fitting)
        commands = [step.command for step in steps.steps(archs, Path("out")) if not step.alone]
        processes = [int(command[command.index(word) + 1]) for command in commands for word in ("-n", "--jobs") if word in command]
        assert len(processes) == len(archs) + ("vulkan" in archs) + 1
        assert sum(processes) <= fitting or set(processes) == {1}
        assert max(processes) > 1 or fitting < 10


def test_choices_on_a_gpu(tmp_path):
    """On the Vulkan of this machine, which may be a CPU."""
    needs.need("vulkan")
    out = tmp_path / "choices.md"
    command = [
        sys.executable,
        str(ROOT / "ci" / "gpu_choices.py"),
        "--archs",
        "vulkan",
        "--most",
        "1e4",
        "--out",
        str(out),
        "small",
        "sum of floats",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "SG_TUNE"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    lines = out.read_text().splitlines()
    assert any(line.startswith("| small kernel | 10,000 | ") and " | yes | " in line for line in lines)
    assert any(line.startswith("| sum of floats | 10,000 | ") and " | not exchanged | " in line for line in lines)
    assert any("groups of 512" in line for line in lines)
    assert any(line.startswith("the cost model is right in ") for line in lines)


def test_choices_without_a_gpu():
    command = [sys.executable, str(ROOT / "ci" / "gpu_choices.py"), "--archs", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "SG_LIBCUDA": "/nowhere"})
    assert done.returncode == 77, done.stderr
