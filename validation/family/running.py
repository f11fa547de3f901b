"""Runs one program on both libraries, in processes of their own, and compares what they left."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from validation.family.programs import Program

TOLERANCE = 1e-3  # of the largest magnitude of a field: programs run in f32 with fast mathematics, and some amplify differences
_NOISE = 5.0  # a distance of up to this multiple of Taichi's own spread is rounding
_IN_DOUBLE = 1e-6  # so near, in double precision, are programs that differ by rounding only, relative to magnitudes in single precision
_GRACE = 30.0  # seconds beyond the limit of a run, in which it may write its results
_WARM_UP = 2  # frames that compile kernels
_ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Outcome:
    """How one run ended. ``ended``: "frames", "ended" (by itself), "late" (stopped at its limit) or "failed" with a ``reason``."""

    ended: str
    reason: str = ""
    frames: list[float] = field(default_factory=list)  # seconds
    processor: list[float] = field(default_factory=list)  # seconds of processor time
    memory: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        return self.ended in ("frames", "ended") or (self.ended == "late" and bool(self.frames))


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds for a frame: ``wall``, and of the ``processor`` on all cores. ``first``: of the processor, until the first frame."""

    wall: float
    processor: float
    first: float


@dataclass(slots=True)
class Compared:
    """One row of the table."""

    program: Program
    taichi: Outcome
    ours: Outcome
    distances: dict[str, float] = field(default_factory=dict)  # of each field
    spreads: dict[str, float] = field(default_factory=dict)  # of Taichi from itself, measured where a distance is large
    doubles: dict[str, float] = field(default_factory=dict)  # distances in double precision, where spreads are small
    times: tuple[Times, Times] | None = None  # Taichi's, ours

    @property
    def differing(self) -> dict[str, float]:
        """Fields that are further apart than the tolerance, and than rounding explains."""
        return {name: d for name, d in self._amplified.items() if not self.doubles.get(name, np.inf) <= _IN_DOUBLE}

    @property
    def equal_in_double(self) -> dict[str, float]:
        """Fields that are further apart than Taichi is from itself, and equal in double precision -> the distance then."""
        return {name: self.doubles[name] for name in self._amplified.keys() - self.differing.keys()}

    @property
    def unjudged(self) -> int:
        """How many fields are apart in a program whose rounding was not measured, because that run took too long."""
        return len(self._apart.keys() - self.spreads.keys())

    @property
    def rounded(self) -> int:
        """How many fields are apart because rounding is amplified."""
        return len(self._apart) - len(self._amplified) - self.unjudged

    @property
    def _amplified(self) -> dict[str, float]:
        return {name: d for name, d in self._apart.items() if name in self.spreads and not d <= _NOISE * self.spreads[name]}

    @property
    def _apart(self) -> dict[str, float]:
        return {name: d for name, d in self.distances.items() if not d <= TOLERANCE and name not in self._deliberate}

    @property
    def _deliberate(self) -> set[str]:
        """Names of the fields that differ on purpose."""
        matching = (fnmatch.filter(self.distances, pattern) for pattern in self.program.deliberate)
        return {name for names in matching for name in names if not self.distances[name] <= TOLERANCE}

    @property
    def fields(self) -> str:
        """What was found, in words."""
        if not self.distances:
            return "nothing to compare"
        equal = [d for d in self.distances.values() if d <= TOLERANCE]
        words = [f"{len(equal)} equal to {max(equal):.0e}"] if equal else []
        words += [f"{self.rounded} apart by rounding"] if self.rounded else []
        words += [f"{len(self._deliberate)} apart on purpose"] if self._deliberate else []
        exact = self.equal_in_double.values()
        words += [f"{len(exact)} apart by rounding (in double precision equal to {max(exact):.0e})"] if exact else []
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
        return ", ".join(filter(None, (self.fields, self.speed)))

    @property
    def speed(self) -> str:
        """Taichi's time for a frame over ours, of the clock, of the processor, and for the first frame."""
        if self.times is None:
            return ""
        theirs, ours = self.times
        milliseconds = f"{theirs.wall * 1e3:.3g} / {ours.wall * 1e3:.3g} ms"
        processor = f"processor {theirs.processor / max(ours.processor, 1e-6):.2f}"
        first = f"first frame {theirs.first / max(ours.first, 1e-6):.2f}"
        return f"{theirs.wall / ours.wall:.2f} ({milliseconds}; {processor}; {first})"


def compare(program: Program, options: argparse.Namespace) -> Compared:
    """Run ``program`` on both, first to compare memory, then, if both ran, for times."""

    def run(on: str, *how: str) -> Outcome:
        return _run(program, on, options, options.frames, how)

    compared = Compared(program, run("taichi"), run("spirograd"))
    if not (compared.taichi.ran and compared.ours.ran):
        return compared
    if options.arch == "cpu" or not program.draws:  # other devices draw random numbers in no order
        compared.distances = _distances(compared.taichi, compared.ours)
    if compared.unjudged:
        compared.spreads = _distances(compared.taichi, run("taichi", "--nudged"))
    if compared.differing:
        compared.doubles = _distances(run("taichi", "--double"), run("spirograd", "--double"), compared.taichi.memory)
    if options.timed_frames and compared.taichi.frames:
        compared.times = with_times(program, options).times
    return compared


def with_times(program: Program, options: argparse.Namespace) -> Compared:
    """Times on both, which take turns, and nothing else; none if one shows too few frames."""
    runs: dict[str, list[Outcome]] = {"taichi": [], "spirograd": []}
    for _ in range(options.rounds):
        for on, outcomes in runs.items():
            outcomes.append(_run(program, on, options, options.timed_frames, ("--timed",)))
    theirs, ours = (_times(outcomes) for outcomes in runs.values())
    compared = Compared(program, runs["taichi"][0], runs["spirograd"][0])
    compared.times = None if theirs is None or ours is None else (theirs, ours)
    return compared


def _times(outcomes: list[Outcome]) -> Times | None:
    """The median over frames after the first of the shortest time that a run took for the frame."""
    wall = [min(times) for times in zip(*(o.frames[_WARM_UP:] for o in outcomes))]
    processor = [min(times) for times in zip(*(o.processor[_WARM_UP:] for o in outcomes))]
    first = min((o.processor[0] for o in outcomes if o.processor), default=0.0)
    return Times(statistics.median(wall), statistics.median(processor), first) if wall else None


def _run(program: Program, on: str, options: argparse.Namespace, frames: int, how: tuple[str, ...]) -> Outcome:
    python = options.taichi if on == "taichi" else sys.executable
    log = options.out / "logs" / f"{program.name.replace('/', '.')}.{on}{''.join(how)}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="family") as scratch, log.open("w") as printed:
        path, folder = program.path, program.folder
        if program.copied:
            folder = Path(scratch) / "copy"
            path = program.copy(folder)
        command: list[str | Path] = [python, "-m", "validation.family.worker", "--on", on, "--folder", folder, "--frame", program.frame]
        command += ["--draws"] if program.draws else []
        command += ["--arch", options.arch if on == "spirograd" else "cpu", "--frames", str(frames), "--seconds", str(options.seconds)]
        command += ["--out", Path(scratch) / "out", *how, path, *program.arguments]
        try:
            done = subprocess.run(
                command,
                cwd=path.parent if program.copied else scratch,
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
    outcome = Outcome(said["ended"], said["reason"], said["frames"], said["cpu"])
    if (out / "memory.npz").exists():
        with np.load(out / "memory.npz") as stored:
            outcome.memory = {name: stored[name] for name in stored.files}
    return outcome


def _distances(one: Outcome, other: Outcome, scale: dict[str, np.ndarray] | None = None) -> dict[str, float]:
    """How far each field of numbers is apart; nothing if the runs were stopped at different frames. ``scale``: other magnitudes."""
    if len(one.frames) != len(other.frames):
        return {}
    numeric = [name for name, array in one.memory.items() if array.dtype.kind in "fiub"]
    scale = scale or {}
    return {n: distance(one.memory[n], other.memory[n], scale.get(n)) if n in other.memory else np.inf for n in numeric}


def distance(theirs: np.ndarray, ours: np.ndarray, scale: np.ndarray | None = None) -> float:
    """The largest difference, relative to the largest magnitude, also in ``scale``; infinite where shapes or places of infinities and NaN
    differ."""
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
    if scale is not None:
        largest = max(largest, np.abs(scale[np.isfinite(scale)].astype(np.float64)).max(initial=0.0))
    return float(np.abs(a - b)[finite].max() / largest) if largest else 0.0
