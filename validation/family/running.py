"""Runs one program on both libraries, in processes of their own, and compares what they left."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from validation.family.programs import Program

TOLERANCE = 1e-3  # of the largest magnitude of a field: programs run in f32 with fast mathematics, and some amplify differences
_NOISE = 5.0  # a distance of up to so many spreads of Taichi's own is rounding
_GRACE = 30.0  # seconds beyond the limit of a run, in which it may write its results
_WARM_UP = 2  # frames that compile kernels
_ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Outcome:
    """How one run ended. ``ended``: "frames", "ended" (by itself), "late" (stopped at its limit) or "failed" with a ``reason``."""

    ended: str
    reason: str = ""
    frames: list[float] = field(default_factory=list)
    memory: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        return self.ended in ("frames", "ended") or (self.ended == "late" and bool(self.frames))

    @property
    def frame(self) -> float | None:
        """Seconds for a frame after the first, the median."""
        later = self.frames[_WARM_UP:]
        return statistics.median(later) if later else None


@dataclass(slots=True)
class Compared:
    """One row of the table."""

    program: Program
    taichi: Outcome
    ours: Outcome
    distances: dict[str, float] = field(default_factory=dict)  # of each field
    spreads: dict[str, float] = field(default_factory=dict)  # of Taichi from itself, measured where a distance is large
    frames: tuple[float, float] | None = None  # Taichi's, ours, in seconds

    @property
    def differing(self) -> dict[str, float]:
        """Fields that are further apart than the tolerance, and than rounding explains."""
        return {name: d for name, d in self._apart.items() if name in self.spreads and not d <= _NOISE * self.spreads[name]}

    @property
    def unjudged(self) -> int:
        """How many fields are apart in a program whose rounding was not measured, because that run took too long."""
        return len(self._apart.keys() - self.spreads.keys())

    @property
    def rounded(self) -> int:
        """How many fields are apart because rounding is amplified."""
        return len(self._apart) - len(self.differing) - self.unjudged

    @property
    def _apart(self) -> dict[str, float]:
        return {name: d for name, d in self.distances.items() if not d <= TOLERANCE}

    @property
    def fields(self) -> str:
        """What was found, in words."""
        if not self.distances:
            return "nothing to compare"
        equal = [d for d in self.distances.values() if d <= TOLERANCE]
        words = [f"{len(equal)} equal to {max(equal):.0e}"] if equal else []
        words += [f"{self.rounded} apart by rounding"] if self.rounded else []
        words += [f"{self.unjudged} apart, rounding not measured in time"] if self.unjudged else []
        worst = max(self.differing.items(), key=lambda item: item[1], default=None)
        return ", ".join(words + ([f"**{len(self.differing)} differ**: {worst[0]} by {worst[1]:.0e}"] if worst else []))

    @property
    def verdict(self) -> str:
        """What the row says, in one line."""
        if not self.taichi.ran:
            return f"does not run on Taichi: {self.taichi.reason or self.taichi.ended}"
        if not self.ours.ran:
            return f"FAILED: {self.ours.reason or self.ours.ended}"
        speed = f", {self.frames[0] / self.frames[1]:.2f} times as fast" if self.frames else ""
        return f"{self.fields}{speed}"


def compare(program: Program, folder: Path, options: argparse.Namespace) -> Compared:
    """Run ``program`` on both, first to compare memory, then, if both ran, for times."""

    def run(on: str, frames: int, *how: str) -> Outcome:
        return _run(program, folder, on, options, frames, how)

    compared = Compared(program, run("taichi", options.frames), run("spirograd", options.frames))
    if not (compared.taichi.ran and compared.ours.ran):
        return compared
    if options.arch == "cpu" or not program.draws:  # other devices draw random numbers in no order
        compared.distances = _distances(compared.taichi, compared.ours)
    if compared.unjudged:
        compared.spreads = _distances(compared.taichi, run("taichi", options.frames, "--nudged"))
    if options.timed_frames and compared.taichi.frames:
        theirs, ours = (run(on, options.timed_frames, "--timed").frame for on in ("taichi", "spirograd"))
        compared.frames = None if theirs is None or ours is None else (theirs, ours)
    return compared


def _run(program: Program, folder: Path, on: str, options: argparse.Namespace, frames: int, how: tuple[str, ...]) -> Outcome:
    python = options.taichi if on == "taichi" else sys.executable
    log = options.out / "logs" / f"{program.name.replace('/', '.')}.{on}{''.join(how)}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="family") as scratch, log.open("w") as printed:
        command: list[Any] = [python, "-m", "validation.family.worker", "--on", on, "--examples", folder]
        command += ["--arch", options.arch if on == "spirograd" else "cpu", "--frames", str(frames), "--seconds", str(options.seconds)]
        command += ["--out", Path(scratch) / "out", *how, program.path, *program.arguments]
        try:
            done = subprocess.run(
                command,
                cwd=scratch,
                env={**os.environ, "PYTHONPATH": str(_ROOT), "MPLBACKEND": "Agg"},
                stdout=printed,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=options.seconds + _GRACE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome("late")
        return _outcome(Path(scratch) / "out", done.returncode)


def _outcome(out: Path, status: int) -> Outcome:
    if not (out / "result.json").exists():
        return Outcome("failed", f"the process died with status {status}")
    said = json.loads((out / "result.json").read_text())
    outcome = Outcome(said["ended"], said["reason"], said["frames"])
    if (out / "memory.npz").exists():
        with np.load(out / "memory.npz") as stored:
            outcome.memory = {name: stored[name] for name in stored.files}
    return outcome


def _distances(one: Outcome, other: Outcome) -> dict[str, float]:
    """How far each field of numbers is apart; nothing if the runs were stopped at different frames."""
    if len(one.frames) != len(other.frames):
        return {}
    numeric = [name for name, array in one.memory.items() if array.dtype.kind in "fiub"]
    return {name: _distance(one.memory[name], other.memory[name]) if name in other.memory else np.inf for name in numeric}


def _distance(theirs: np.ndarray, ours: np.ndarray) -> float:
    """The largest difference, relative to the largest magnitude; infinite where shapes or places of infinities and NaN differ."""
    if theirs.shape != ours.shape:
        return np.inf
    a, b = theirs.astype(np.float64), ours.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    same = finite | (a == b) | (np.isnan(a) & np.isnan(b))
    if not same.all():
        return np.inf
    if not finite.any():
        return 0.0
    largest = max(np.abs(a[finite]).max(), np.abs(b[finite]).max())
    return float(np.abs(a - b)[finite].max() / largest) if largest else 0.0
