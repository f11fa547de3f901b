"""Totals of the records of tasks: times, bytes and operations of each task, and of each kernel's launches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field
from typing import NamedTuple

from spirograd.base.records import dataclass
from spirograd.runtime.profiling import TaskKey, TaskRecord


class KernelInfo(NamedTuple):
    """The launches of a kernel: their number, and the shortest, longest and average one in milliseconds, for all tasks of a launch
    together."""

    counter: int
    min: float
    max: float
    avg: float


@dataclass(slots=True, eq=False)
class TaskTotals:
    """The totals of a task. Times are nanoseconds. ``nbytes`` and ``operations``: of the runs for which they are known, which took
    ``known_time``; lower bounds if ``exact`` is False. ``cpu``: processor time, -1 if unknown."""

    key: TaskKey
    count: int = 0
    time: int = 0
    shortest: float = field(default=math.inf)
    longest: int = 0
    cpu: int = 0
    nbytes: int = 0
    operations: int = 0
    known_time: int = 0
    exact: bool = True

    def add(self, record: TaskRecord) -> None:
        took = record.duration
        self.count += 1
        self.time += took
        self.shortest = min(self.shortest, took)
        self.longest = max(self.longest, took)
        self.cpu = -1 if record.cpu < 0 or self.cpu < 0 else self.cpu + record.cpu
        if record.nbytes is not None and record.operations is not None:
            self.nbytes += record.nbytes
            self.operations += record.operations
            self.known_time += took
            self.exact = self.exact and record.exact

    @property
    def bandwidth(self) -> float:
        """Bytes per second, 0 if unknown."""
        return self.nbytes / self.known_time * 1e9 if self.known_time else 0.0

    @property
    def rate(self) -> float:
        """Operations on floats per second, 0 if unknown."""
        return self.operations / self.known_time * 1e9 if self.known_time else 0.0


def by_task(records: Iterable[TaskRecord]) -> list[TaskTotals]:
    """Return the totals of each task, in order of the first run."""
    totals: dict[TaskKey, TaskTotals] = {}
    for record in records:
        task = totals.get(record.key)
        if task is None:
            task = totals[record.key] = TaskTotals(record.key)
        task.add(record)
    return list(totals.values())


def of_kernel(records: Iterable[TaskRecord], name: str) -> KernelInfo:
    """Return the launches of the kernels called ``name``; zeros if there were none."""
    launches: dict[tuple[str, int], int] = {}
    for record in records:
        if record.key.kernel == name:
            launch = record.key.arch, record.launch
            launches[launch] = launches.get(launch, 0) + record.duration
    times = [took / 1e6 for took in launches.values()]
    return KernelInfo(len(times), min(times), max(times), sum(times) / len(times)) if times else KernelInfo(0, 0.0, 0.0, 0.0)
