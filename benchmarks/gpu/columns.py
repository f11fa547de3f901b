"""The columns of the table: a process for each back end and each peer, and what it measures of a row."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.rows import Row, program_name
from benchmarks.processes import Failed, Process

PEERS = {"torch": "benchmarks.gpu.in_torch", "jax": "benchmarks.gpu.in_jax", "quadrants": "benchmarks.gpu.family"}
_START = 90  # seconds in which a package is imported and its device found
_ROUND = 0.03  # seconds that a round should take at least
_MOST_LAUNCHES = 2000


@dataclass
class Way:
    """One way to run a row: seconds of a launch in each round, or what went wrong."""

    label: str
    error: str = ""
    launches: int = 1
    seconds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.seconds)

    def as_json(self) -> dict[str, Any]:
        times = {"best": self.best, "median": statistics.median(self.seconds), "rounds": self.seconds} if self.seconds else {}
        return {"label": self.label, **({"error": self.error} if self.error else {}), **times}


class Column:
    """A back end of spirograd, or a peer."""

    def __init__(self, name: str, module: str, device: str, python: str, environment: dict[str, str], log: Path) -> None:
        self.name, self.ours = name, environment.get("BENCHMARKED") == "spirograd"
        self.command, self.environment, self.log = [python, "-m", "benchmarks.gpu.worker", module, device], environment, log
        self.version = ""
        self.ways: list[Way] | None = []  # of the row at hand; None: there is no program for it
        self._process: Process | None = None
        self.failed = False  # and starts anew for the next row, since an error may leave the device unusable

    def begin(self) -> None:
        self._process = self._process or Process(self.name, self.command, self.environment, self.log)

    def end(self) -> None:
        if self._process:
            self._process.close()
        self._process, self.failed = None, False

    def ask_version(self) -> None:
        assert self._process
        self._process.send(about=True)

    def receive_version(self) -> None:
        assert self._process
        self.version = self._process.receive(_START)

    def load(self, row: Row, size: Any) -> None:
        """Have the program of a row made; `receive_results` waits for it."""
        if self.failed:
            self.end()
        self.begin()
        assert self._process
        try:
            self._process.send(load=program_name(row), size=size)
        except Failed:
            self.failed = True

    def receive_results(self, row: Row, expected: np.ndarray, limit: float) -> None:
        """Wait for the program of a row, and compare its results with NumPy's."""
        assert self._process
        try:
            found = self._process.receive(limit)
        except Failed as error:
            self.ways, self.failed = [Way("", str(error))], True
            return
        self.ways = None
        if found is not None:
            self.ways = [Way(way["label"], way.get("error") or _difference(row, way["result"], expected)) for way in found]
            self.failed = any("error" in way for way in found)

    def measure(self, way: int, limit: float) -> None:
        """One more round of one way."""
        assert self._process and self.ways
        chosen = self.ways[way]
        try:
            if not chosen.seconds:
                once: float = self._process.ask(limit, run=way, launches=1)
                chosen.launches = max(1, min(_MOST_LAUNCHES, int(_ROUND / max(once, 1e-9))))
            chosen.seconds.append(self._process.ask(limit, run=way, launches=chosen.launches))
        except Failed as error:
            chosen.error, self.failed = str(error), True

    @property
    def best(self) -> Way | None:
        """The fastest way whose results are right."""
        right = [way for way in self.ways or () if way.seconds and not way.error]
        return min(right, key=lambda way: way.best, default=None)


def _difference(row: Row, result: list[float], expected: np.ndarray) -> str:
    """What is wrong with a result; empty if nothing is."""
    found = np.asarray(result, np.float64)
    if found.shape != expected.shape:
        return f"wrong result: {found.size} numbers, expected {expected.size}"
    compared = ~np.isnan(expected)  # where there is one right result
    error = np.where(compared, np.abs(found - expected), 0.0)
    largest = float(np.max(error)) if np.isfinite(found[compared]).all() else float("nan")
    if largest <= row.tolerance * float(np.nanmax(np.abs(expected), initial=0.0)):
        return ""
    where = int(np.argmax(error))
    return f"wrong result: {found[where]:.7g}, expected {expected[where]:.7g}"


def columns(archs: list[str], peers: list[str], peer_device: str, pythons: dict[str, str], compiled: bool, logs: Path) -> list[Column]:
    """Ours first."""
    made = []
    for arch in archs:
        environment = {"BENCHMARKED": "spirograd"}
        made.append(Column(arch, "benchmarks.gpu.family", arch, sys.executable, environment, logs / f"{arch}.log"))
    for peer in peers:
        environment = {"BENCHMARKED": peer, "TORCH_COMPILE": str(int(compiled)), "JAX_PLATFORMS": peer_device}
        made.append(Column(peer, PEERS[peer], peer_device, pythons.get(peer, sys.executable), environment, logs / f"{peer}.log"))
    return made
