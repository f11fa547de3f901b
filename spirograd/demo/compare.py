"""Run the fluid on every available back end, and compare the final particles."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import spirograd as sg
from spirograd.base.device import DeviceInfo
from spirograd.base.records import dataclass
from spirograd.demo.mpm import Fluid, Positions
from spirograd.lang.context import session

STEPS = 200
# The back ends do the same arithmetic, but the grid is summed by atomic additions in any order, and multiplications may fuse with
# additions: some roundings of f32 (6e-8) in each step, which the motion hardly magnifies before the splash. 1e-5 is a thousandth of
# a cell.
TOLERANCE = 1e-5
# The interpreter is a few thousand times slower, so it runs a smaller problem.
SMALL = {"particles": 32, "cells": 16}
SMALL_STEPS = 3


@dataclass
class Run:
    """A run on one back end: seconds until the first step was done (compilation included), milliseconds for each of ``steps`` further
    steps, and the positions of the particles then."""

    arch: str
    device: DeviceInfo
    particles: int
    steps: int
    first_seconds: float
    step_milliseconds: float
    positions: Positions
    difference: float = 0.0

    @property
    def agrees(self) -> bool:
        return self.difference <= TOLERANCE


def measure(arch: str, particles: int, steps: int, cells: int = 128) -> Run:
    """Run ``steps`` steps on ``arch``, from the same initial state on every back end."""
    sg.init(arch=arch, log_level="error")
    fluid = Fluid(particles, cells)
    fluid.reset()
    begin = time.perf_counter()
    fluid.step()
    sg.sync()
    compiled = time.perf_counter()
    fluid.reset()
    start = time.perf_counter()
    positions = fluid.run(steps)
    end = time.perf_counter()
    return Run(arch, session().device.info, particles, steps, compiled - begin, 1e3 * (end - start) / max(steps, 1), positions)


def compare(archs: list[str], particles: int) -> list[Run]:
    """Measure each of ``archs`` and record how far its particles are from those of the CPU; the interpreter on a small problem."""
    runs: list[Run] = []
    for arch in archs:
        if arch == "interpreter":
            run, reference = measure(arch, steps=SMALL_STEPS, **SMALL), measure("cpu", steps=SMALL_STEPS, **SMALL)
        else:
            run = measure(arch, particles, STEPS)
            reference = next((r for r in runs if r.particles == particles), run)
        run.difference = float(np.max(np.abs(run.positions - reference.positions)))
        if not np.isfinite(run.positions).all():
            run.difference = float("inf")
        runs.append(run)
    return runs


def best(runs: list[Run]) -> str:
    """Return the back end for the simulation: the first GPU, else the CPU, which is faster than drivers that run on the CPU."""
    gpus = [run.arch for run in runs if run.arch not in ("cpu", "interpreter") and ("kind", "cpu") not in run.device.detail]
    return gpus[0] if gpus else runs[0].arch


@contextmanager
def _dumping(folder: Path) -> Iterator[None]:
    before = os.environ.get("SG_DUMP")
    os.environ["SG_DUMP"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SG_DUMP"]
        else:
            os.environ["SG_DUMP"] = before


def dump(archs: list[str], folder: Path) -> list[Path]:
    """Write every stage of the kernel for each of ``archs`` to a folder of its name; return these folders."""
    folders = []
    for arch in archs:
        with _dumping(folder / arch):
            sg.init(arch=arch, log_level="error")
            fluid = Fluid(16, 16)
            fluid.reset()
            fluid.step()
            sg.sync()
        folders.append(folder / arch)
    return folders
