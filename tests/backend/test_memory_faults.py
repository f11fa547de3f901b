"""Accesses outside of all memory, without bounds checks: what the process says before it ends. Programs run in processes of their own."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spirograd.llvmgen.fault_handler import supported

pytestmark = pytest.mark.skipif(not supported(platform.system(), platform.machine()), reason="the handler is for Linux")
BEFORE = """import sys
import spirograd as sg

sg.init(arch=getattr(sg, sys.argv[1]), offline_cache=False)
x = sg.field(sg.f32, shape=1000)
large = sg.field(sg.f32, shape=1_000_000)


@sg.kernel
def fine():
    for i in x:
        x[i] = 1


@sg.kernel
def far(k: sg.i32):
    for i in x:
        x[i] = 2
    for i in range(10):  # named here
        x[i + k] = 3


@sg.kernel
def far_in_large(k: sg.i32):
    for i in range(10):  # named here
        large[i + k] = 3


@sg.kernel
def filled(k: sg.i32, n: sg.i32):  # named here
    sg.loop_config(serialize=True)
    for i in range(n):
        x[i + k] = 0


@sg.kernel
def nested(n: sg.i32):
    sg.loop_config(parallelize=1)
    for i in range(n):  # named here
        s = 0.0
        for j in range(1000):
            s += sg.sin(s + j)
        x[(i + 1) * 500_000_000] = s


fine()
sg.sync()
print("begun", flush=True)
"""


def run(tmp_path: Path, arch: str, calls: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(BEFORE + calls)
    command = [sys.executable, *options, str(program), arch]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100)


def place(kernel: str) -> str:
    """The line that is marked in ``kernel``: that of the loop, or of the kernel if the loop is serial."""
    lines = BEFORE.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(f"def {kernel}("))
    return f"program.py:{next(k for k in range(start, len(lines)) if '# named here' in lines[k]) + 1})"


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("threads", ["1", "4"])
@pytest.mark.parametrize(
    ("kernel", "call"),
    [
        ("far", "far(2_000_000_000)"),
        ("far_in_large", "far_in_large(100_000_000)"),
        ("far_in_large", "far_in_large(-2_000_000_000)"),
        ("filled", "filled(2_000_000_000, 1000)"),
        ("nested", "nested(4)"),
    ],
)
def test_the_kernel_and_its_loop_are_named(arch: str, tmp_path: Path, kernel: str, call: str, threads: str) -> None:
    done = run(tmp_path, arch, call, SG_NUM_THREADS=threads)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "begun\n")
    assert done.stderr.count("spirograd:") == 1, done.stderr
    assert f"kernel `{kernel}` (" in done.stderr and place(kernel) in done.stderr
    assert "sg.init(debug=True)" in done.stderr


@pytest.mark.archs("cpu", "vulkan")
def test_debug_mode_reports_the_access_instead(arch: str, tmp_path: Path) -> None:
    done = run(tmp_path, arch, "far(2_000_000_000)\nsg.sync()", SG_DEBUG="1")
    assert done.returncode == 1 and re.search(r"index \(200000000\d\) out of range of field `x`", done.stderr)


@pytest.mark.archs("cpu")
def test_other_handlers_have_their_turn(arch: str, tmp_path: Path) -> None:
    done = run(tmp_path, arch, "far(2_000_000_000)", "-X", "faulthandler")
    assert done.returncode == -signal.SIGSEGV
    assert "kernel `far`" in done.stderr and "Fatal Python error: Segmentation fault" in done.stderr and "in <module>" in done.stderr


@pytest.mark.archs("cpu", "vulkan")
def test_faults_of_others_are_left_to_them(arch: str, tmp_path: Path) -> None:
    for fault in ("import ctypes; ctypes.string_at(8)", "import os; os.kill(os.getpid(), 11)"):
        done = run(tmp_path, arch, fault)
        assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "begun\n")
        assert "spirograd:" not in done.stderr


@pytest.mark.archs("cpu")
def test_kernels_that_are_gone_are_not_named(arch: str, tmp_path: Path) -> None:
    """Code of many kernels comes and goes; the table grows and its records are used again."""
    made = """import gc
for n in range(300):
    scope = {"sg": sg, "x": x}
    @sg.kernel
    def temporary(k: sg.i32):
        x[k] = sg.static(n)
    temporary(0)
    del temporary
gc.collect()
far(2_000_000_000)
"""
    done = run(tmp_path, arch, made)
    assert done.returncode == -signal.SIGSEGV and "kernel `far` (" in done.stderr and done.stderr.count("spirograd:") == 1


@pytest.mark.archs("vulkan")
@pytest.mark.parametrize("launched", [0, 40])
def test_kernels_in_flight_are_named(launched: int, arch: str, session: object, tmp_path: Path) -> None:
    """Also those that compiled code has launched, which it does after some launches; and not those that are done."""
    if not session.device.caps.cpu_driver:  # type: ignore[attr-defined]
        pytest.skip("the driver runs on a card, which reports faults by itself")
    before = f"for _ in range({launched}):\n    fine()\n    far(0)\n    sg.sync()\n"
    done = run(tmp_path, arch, before + "far(2_000_000_000)\nsg.sync()\n")
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "begun\n")
    assert "`far` (" in done.stderr and "`fine`" not in done.stderr and "sg.init(debug=True)" in done.stderr
