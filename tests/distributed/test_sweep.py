"""The parameter sweep over a cluster of two processes, by Dask and by Ray, against NumPy: losses, and gradients by central differences."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from tests.distributed.processes import ROOT, environment


def miss(angle, speed):
    """The loss of throws, as the example has it."""
    x, y = np.zeros_like(angle), np.zeros_like(angle)
    u, v = speed * np.cos(angle), speed * np.sin(angle)
    near = np.zeros_like(angle)
    for _ in range(60):
        drag = 0.02 * np.sqrt(u * u + v * v)
        u, v = u - 0.02 * drag * u, v - 0.02 * (drag * v + 9.81)
        x, y = x + 0.02 * u, y + 0.02 * v
        near += np.exp(-4.0 * ((x - 6.0) ** 2 + (y - 1.0) ** 2))
    return -np.log(near + 1e-30)


def slopes(angle, speed, h=1e-6):
    return [
        (miss(angle + h, speed) - miss(angle - h, speed)) / (2 * h),
        (miss(angle, speed + h) - miss(angle, speed - h)) / (2 * h),
    ]


@pytest.mark.parametrize("engine", [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("dask", "ray")])
def test_a_sweep_over_two_processes(tmp_path, engine):
    out = tmp_path / "found.npz"
    command = [sys.executable, str(ROOT / "examples" / "distributed" / "parameter_sweep.py")]
    options = ["--arch", "cpu", "--engine", engine, "--runs", "4", "--batch", "4", "--iterations", "3", "--save", str(out)]
    variables = environment(RAY_AUTH_MODE="disabled")
    done = subprocess.run(command + options, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and re.search(r"^\d+ of 16 runs came nearer", done.stdout, re.MULTILINE), done.stdout + done.stderr
    found = dict(np.load(out))
    angle, speed = (pair.ravel() for pair in np.meshgrid(np.linspace(0.3, 1.3, 4), np.linspace(7.0, 12.0, 4), indexing="ij"))
    np.testing.assert_allclose(found["miss"], miss(angle, speed), rtol=1e-10)
    wanted = slopes(angle, speed)
    for name, slope in zip(("by angle", "by speed"), wanted):
        np.testing.assert_allclose(found[name], slope, rtol=1e-5, atol=1e-6)
    for _ in range(3):
        by = slopes(angle, speed)
        step = 0.05 / np.maximum(1.0, np.hypot(*by))
        angle, speed = angle - step * by[0], speed - step * by[1]
    np.testing.assert_allclose(found["angle"], angle, rtol=1e-6)
    np.testing.assert_allclose(found["speed"], speed, rtol=1e-6)
    np.testing.assert_allclose(found["last"], miss(angle, speed), rtol=1e-5)
