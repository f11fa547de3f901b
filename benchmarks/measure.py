"""Run programs in processes of several packages, in turns, and keep every round."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import Failed, Process
from benchmarks.starting import CASES as STARTING
from benchmarks.starting import Starting

FOLDER = Path(__file__).parent
_LIMIT = 300  # seconds for one request


@dataclass
class Times:
    """Seconds of a call in each round, of the clock and of the processor (all threads); or what went wrong."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    error: str = ""

    def best(self, of: str = "wall") -> float | None:
        found: list[float] = getattr(self, of)
        return None if self.error or not found else min(found)

    def as_json(self) -> dict[str, Any]:
        if self.error or not self.wall:
            return {"error": self.error or "not measured"}
        found = {f"{of}_{name}": value for of in ("wall", "cpu") for name, value in _summary(getattr(self, of)).items()}
        return {**found, "rounds": len(self.wall)}


def _summary(seconds: list[float]) -> dict[str, float]:
    return {"best": min(seconds), "median": statistics.median(seconds)}


class Column:
    """A package on a back end: a process that runs programs, and processes that only start."""

    def __init__(self, name: str, python: str, module: str, arch: str, scratch: str) -> None:
        self.name, self.python, self.module, self.arch, self.version = name, python, module, arch, ""
        self._command, self._log = [python, str(FOLDER / "worker.py"), module, arch, scratch], Path(scratch, f"{name}.log")
        self.process = Process(name, self._command, log=self._log)
        self.starting = Starting(python, module, arch)

    def ask(self, **request: Any) -> Any:
        return self.process.ask(_LIMIT, **request)

    def load(self, path: Path) -> Any:
        """Have a program loaded, by a new process if the last one has ended: a program that crashes shall not take others along."""
        if self.process.ended:
            self.process.close()
            self.process = Process(self.name, self._command, log=self._log)
        own = FOLDER / f"programs_{self.module}"
        path = own / path.name if own.exists() else path
        if not path.exists():
            raise Failed(f"there is no translation of {path.name} for {self.module}")
        return self.ask(load=path.stem, source=path.read_text())

    def peak_memory(self) -> float | None:
        """Bytes; None if the process has ended."""
        try:
            return float(self.ask(memory=True))
        except Failed:
            return None

    def run(self, case: str) -> tuple[float, float]:
        """Seconds of a call of a case, and seconds of the processor."""
        if case in STARTING:
            return self.starting.run(case)
        wall, cpu = self.ask(run=case)
        return wall, cpu

    def close(self) -> None:
        self.process.close()
        self.starting.close()


@dataclass
class Measured:
    """By case and then by column: times, bytes of tapes; and the ratios of two cases that a program names."""

    times: dict[str, list[Times]] = field(default_factory=dict)
    tapes: dict[str, list[float | None]] = field(default_factory=dict)
    ratios: dict[str, tuple[str, str]] = field(default_factory=dict)


def programs(names: list[str]) -> list[Path]:
    found = sorted((FOLDER / "programs").glob("*.py"))
    known = {path.stem for path in found} | {"starting"}
    if unknown := set(names) - known:
        sys.exit(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return [path for path in found if not names or path.stem in names]


def _load(columns: list[Column], path: Path) -> tuple[dict[str, list[Times]], dict[str, Any]]:
    """The cases of a program, with what went wrong in a first run, and what the program says of itself."""
    times: dict[str, list[Times]] = {}
    about: dict[str, Any] = {"cases": {}, "ratios": {}, "tapes": []}
    for k, column in enumerate(columns):
        try:
            about = column.load(path)
        except Failed as error:
            print(f"{path.stem}: {error}", file=sys.stderr)
            for found in times.values():
                found[k].error = str(error)
            continue
        for case, error in about["cases"].items():
            times.setdefault(case, [Times(error="the program failed, or has no such case") for _ in columns])[k] = Times(error=error or "")
    return times, about


def _rounds(columns: list[Column], case: str, times: list[Times], rounds: int, step: Callable[[], None]) -> None:
    for _ in range(rounds):
        for column, found in zip(columns, times):
            if not found.error:
                try:
                    wall, cpu = column.run(case)
                except (Failed, RuntimeError) as error:
                    found.error = str(error)
                    continue
                found.wall.append(wall)
                found.cpu.append(cpu)
        step()


def _tape(column: Column, name: str) -> float | None:
    try:
        return float(column.ask(tapes=name))
    except Failed as error:
        print(f"{name}: {error}", file=sys.stderr)
        return None


def measure(columns: list[Column], path: Path, rounds: int, step: Callable[[int], None]) -> Measured:
    """All cases of a program; ``step`` is told how many of its rounds are left."""
    times, about = _load(columns, path)
    found = Measured(times, ratios={name: (upper, lower) for name, (upper, lower) in about["ratios"].items()})
    left = rounds * len(times)
    for case, of_columns in times.items():

        def stepped() -> None:
            nonlocal left
            left -= 1
            step(left)

        _rounds(columns, case, of_columns, rounds, stepped)
    found.tapes = {name: [_tape(column, name) for column in columns] for name in about["tapes"]}
    return found


def start(columns: list[Column], rounds: int) -> Measured:
    """Imports and first kernels, in processes of their own."""
    found = Measured({case: [Times() for _ in columns] for case in STARTING})
    for case, times in found.times.items():
        _rounds(columns, case, times, rounds, lambda: None)
    return found
