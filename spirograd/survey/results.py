"""Results of a survey: what became of each task of each kernel on each device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, field
from typing import Union

from spirograd.base.loc import Loc
from spirograd.base.records import dataclass

COMPILES, REFUSED, FAILED, CRASHED = "compiles", "refused", "failed", "crashed"
Statistic = Union[bool, int, float]


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources of machine code, None or "" where the compiler does not tell. ``registers``: of one invocation; ``spills``: registers
    or accesses that went to memory, 0 if all values stay in registers; ``instructions``: in the code, not executed; ``occupancy``: how many
    invocations or subgroups a core runs at a time, with the unit."""

    registers: int | None = None
    spills: int | None = None
    instructions: int | None = None
    occupancy: str = ""


@dataclass(frozen=True, slots=True)
class Build:
    """What a device's compiler made of one task. ``outcome``: `COMPILES`, `FAILED` or `CRASHED`; ``reason``: why not, or "".
    ``statistics``: all that the compiler tells, by its own names; ``code``: the machine code as text, "" if it is not shown."""

    outcome: str = COMPILES
    reason: str = ""
    seconds: float | None = None
    usage: Usage = field(default_factory=Usage)
    statistics: dict[str, Statistic] = field(default_factory=dict)
    code: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a task of a kernel on a device. ``task`` is "" if the kernel was refused before it had tasks. ``kernel`` names it for
    readers; ``source``: the number of its source, in the order in which the program compiled them."""

    device: str
    source: int
    kernel: str
    task: str
    loc: Loc | None
    build: Build

    @property
    def place(self) -> str:
        """The source line as ``file:line``, "" if it is unknown."""
        return "" if self.loc is None else f"{self.loc.file}:{self.loc.line}"

    def record(self) -> dict[str, object]:
        """Return the result as JSON, without the machine code."""
        build = asdict(self.build)
        del build["code"]
        usage = build.pop("usage")
        return {"device": self.device, "kernel": self.kernel, "task": self.task, "place": self.place, **build, **usage}


@dataclass(frozen=True, slots=True)
class Survey:
    """All results. ``devices``: the devices that compiled, each with its driver; ``missing``: the devices that could not, each with the
    reason."""

    devices: dict[str, str]
    missing: dict[str, str]
    results: tuple[Result, ...]

    def failures(self, kinds: Iterable[str]) -> list[Result]:
        """Return the results that count as failures: ``kinds`` are "errors" (the task does not compile) and "spills"."""
        tests = [FAILURES[kind] for kind in kinds]
        return [result for result in self.results if any(test(result.build) for test in tests)]

    def document(self) -> dict[str, object]:
        """Return the survey as JSON."""
        return {"devices": self.devices, "missing": self.missing, "results": [result.record() for result in self.results]}


def _does_not_compile(build: Build) -> bool:
    return build.outcome != COMPILES


def _spills(build: Build) -> bool:
    return bool(build.usage.spills)


FAILURES = {"errors": _does_not_compile, "spills": _spills}
