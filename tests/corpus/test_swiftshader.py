"""The corpus on SwiftShader, a second Vulkan driver: another compiler than Mesa's takes the same modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import needs
import pytest

from spirograd.survey.drivers import DRIVERS, environment
from validation.case import load
from validation.compiling import REFUSED
from validation.running import Run, run_cases
from validation.tools import OK


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that loads SwiftShader."""
    needs.need("vulkan")
    needs.need("swiftshader")
    return {**os.environ, **environment(DRIVERS["swiftshader"], tmp_path)}


# How many processes the corpus is divided among: tests may run side by side.
_PARTS = 6


@pytest.mark.parametrize("part", range(_PARTS))
def test_corpus(variables: dict[str, str], part: int) -> None:
    """Each case is compared with NumPy. A case that is refused declares what it needs."""
    runs: dict[str, Run] = {}
    run_cases("vulkan", load()[part::_PARTS], runs.__setitem__, variables=variables)
    failed = {name: run.text for name, run in runs.items() if run.status not in (OK, REFUSED)}
    assert not failed, "\n".join(f"{name}: {text}" for name, text in failed.items())
    assert sum(run.status == OK for run in runs.values()) > len(runs) / 2


@pytest.mark.parametrize("fast_math", ["0", "1"])
def test_values_that_begin_as_constants(variables: dict[str, str], tmp_path: Path, fast_math: str) -> None:
    """spirv-opt, which SwiftShader runs, takes such values for their first constants, if the module asks to keep special floats."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    own = {**variables, "SG_FAST_MATH": fast_math}
    done = subprocess.run([sys.executable, program], env=own, capture_output=True, text=True, timeout=100)
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
