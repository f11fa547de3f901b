"""Gradients of loops on SwiftShader, a second Vulkan driver: another compiler than Mesa's takes the same modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import needs
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    needs.need("vulkan")
    needs.need("swiftshader")
    path = tmp_path / "swiftshader.json"
    driver = {"library_path": str(needs.swiftshader()), "api_version": "1.3.0"}
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": driver}))
    return path


def test_gradients_of_loops(manifest: Path, tmp_path: Path) -> None:
    """Each case is compared with NumPy. The exit status is 1 if one fails."""
    environment = {**os.environ, "VK_DRIVER_FILES": str(manifest), "VK_ICD_FILENAMES": str(manifest)}
    command = [sys.executable, "-m", "validation", "--only", "gradient*", "--profiles", "--arch", "vulkan", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " ok" in done.stdout


@pytest.mark.parametrize("fast_math", ["0", "1"])
def test_values_that_begin_as_constants(manifest: Path, tmp_path: Path, fast_math: str) -> None:
    """spirv-opt, which SwiftShader runs, takes such values for their first constants, if the module asks to keep special floats."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "VK_DRIVER_FILES": str(manifest), "VK_ICD_FILENAMES": str(manifest), "SG_FAST_MATH": fast_math}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "SwiftShader\n"), done.stderr[-4000:]


PROGRAM = """import numpy as np
import spirograd as sg
from spirograd.lang.context import session

sg.init(arch=sg.vulkan, offline_cache=False)
n = sg.field(sg.i32, 8)
least, most, high = (sg.field(sg.i32, 8) for _ in range(3))
wave, root = (sg.field(sg.f32, 8) for _ in range(2))


@sg.kernel
def run():
    for i in n:
        a, b, c, s, r = 0, 0, sg.u32(0), 0.5, 2.0
        for _ in range(n[i]):
            a = sg.min(a, 1000) + 1
            b = sg.max(b, -1000) + 1
            c = sg.min(c, sg.u32(1000)) + sg.u32(1)
            s = sg.sin(s) * 1.1
            r = sg.sqrt(r)
        if n[i] > 3:
            r = sg.exp(1.0)
        least[i], most[i], high[i], wave[i], root[i] = a, b, sg.i32(c), s, r


counts = np.arange(8, dtype=np.int32)
n.from_numpy(counts)
run()
for field in (least, most, high):
    assert (field.to_numpy() == counts).all(), field
s, r = 0.5, 2.0
for k in counts:
    assert abs(wave[k] - s) < 1e-5 and abs(root[k] - (r if k <= 3 else np.e)) < 1e-5, (k, wave[k], root[k])
    s, r = np.sin(s) * 1.1, np.sqrt(r)

x, y = (sg.field(sg.f32, 8, needs_grad=True) for _ in range(2))


@sg.kernel
def collatz():
    for i in x:
        v, m = x[i], n[i]
        while m > 1:
            m = m // 2 if m % 2 == 0 else 3 * m + 1
            v = sg.sin(v) * 1.1 + 0.1
        y[i] = v


x.from_numpy(np.linspace(0, 1, 8, dtype=np.float32))
y.grad.fill(1)
collatz.grad()
for k in counts:
    v, slope, m = k / 7, 1.0, k
    while m > 1:
        m = m // 2 if m % 2 == 0 else 3 * m + 1
        v, slope = np.sin(v) * 1.1 + 0.1, slope * np.cos(v) * 1.1
    assert abs(x.grad[k] - slope) < 1e-4, (k, x.grad[k], slope)
print(session().device.info.name.split()[0])
"""
