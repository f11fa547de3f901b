"""Times of tasks on asynchronous devices: timestamps that the device writes before and after each task, read later.

A `QueryTimer` waits for them in the end, for profiles; a `QueryStopwatch` reads them when they have arrived.

The clock of a device has an arbitrary origin. It is aligned with the host's clock by a timestamp that the idle device writes between two
readings of the host's clock. Causality limits the offset: no task begins before its launch, and none ends after the host has seen its end.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Generic, TypeVar

from spirograd.base.artifact import CompiledKernel
from spirograd.base.device import Measurement, TaskTime
from spirograd.base.records import dataclass

if TYPE_CHECKING:
    from spirograd.runtime.devices.streamed import StreamedDevice

D = TypeVar("D", bound="StreamedDevice")
E = TypeVar("E")  # the executables of a device


@dataclass(slots=True, eq=False)
class Alignment:
    """A timestamp of the device's clock at ``tick`` (ns), made between ``before`` and ``after`` of the host's clock."""

    tick: float
    before: int
    after: int


class QueryTimer(ABC, Generic[D, E]):
    """A `TaskTimer` that launches each task of a kernel by itself, as an executable of its own.

    ``capacity``: the most tasks with unread timestamps. Methods with an underscore are called in the device's turn.
    """

    def __init__(self, device: D, capacity: int) -> None:
        self.device = device
        self.capacity = capacity
        self._marked: list[tuple[int, int, int]] = []  # The number of the launch, the task, and the time of the launch.
        self._times: list[TaskTime] = []
        self._parts: weakref.WeakKeyDictionary[E, Sequence[E]] = weakref.WeakKeyDictionary()

    def launch(self, kernel: CompiledKernel, executable: E, block: bytes | bytearray, counts: Sequence[int | None], number: int) -> None:
        """See `TaskTimer`."""
        with self.device._turn:
            for task, (part, count) in enumerate(zip(self.parts(executable), counts)):
                if count is not None and count <= 0:
                    continue
                if len(self._marked) == self.capacity:
                    self._read()
                launched = perf_counter_ns()
                self._run(len(self._marked), part, block, (count,))
                self._marked.append((number, task, launched))

    def parts(self, executable: E) -> Sequence[E]:
        """Return an executable for each task, made once."""
        parts = self._parts.get(executable)
        if parts is None:
            parts = self._parts[executable] = self._split(executable)
        return parts

    def collect(self) -> list[TaskTime]:
        """See `TaskTimer`."""
        with self.device._turn:
            if self._marked:
                self._read()
        times, self._times = self._times, []
        return times

    def _read(self) -> None:
        """Wait, read all timestamps, and convert them to times of the host."""
        self.device._finish()
        seen = perf_counter_ns()
        marks = self._marks(len(self._marked))
        alignment = self._align()
        least = max([launched - begin for (_, _, launched), (begin, _) in zip(self._marked, marks)])
        most = min([seen - end for _, end in marks])
        offset = min(max((alignment.before + alignment.after) / 2 - alignment.tick, least), most)
        for (number, task, _), (begin, end) in zip(self._marked, marks):
            self._times.append(TaskTime(number, task, round(begin + offset), round(end + offset)))
        self._marked.clear()

    def close(self) -> None:
        """See `TaskTimer`."""
        if self.device._device is not None and not self.device._trouble:
            with self.device._turn:
                self._close()

    # --- implemented by devices ---

    @abstractmethod
    def _arrival(self, slots: Sequence[int]) -> Callable[[], list[float] | None]:
        """Return a function that returns the nanoseconds between the two timestamps of each slot, or None if they have not arrived. Both
        are called in the device's turn; neither waits nor submits."""

    @abstractmethod
    def _split(self, executable: E) -> Sequence[E]:
        """Return an executable for each task of ``executable``."""

    @abstractmethod
    def _run(self, slot: int, part: E, block: bytes | bytearray, counts: tuple[int | None]) -> None:
        """Launch ``part`` between the two timestamps number ``slot``."""

    @abstractmethod
    def _marks(self, count: int) -> list[tuple[float, float]]:
        """Return the first ``count`` pairs of timestamps, in ns of the device's clock that the next `_align` uses. The device is idle."""

    @abstractmethod
    def _align(self) -> Alignment:
        """Return an alignment of the clocks, see the docstring of the module. The device is idle."""

    @abstractmethod
    def _close(self) -> None:
        """Destroy the objects of the driver."""


class QueryStopwatch(Generic[D, E]):
    """A `Stopwatch` that uses the timestamps of ``timer``, which nothing else uses."""

    def __init__(self, timer: QueryTimer[D, E]) -> None:
        self._timer = timer
        self.free = list(reversed(range(timer.capacity)))
        self.closed = False

    def measure(self, executable: E, block: bytes | bytearray, counts: Sequence[int | None]) -> Measurement | None:
        """See `Stopwatch`. Launches of a profile, and those with few free timestamps left, are not measured."""
        timer = self._timer
        device = timer.device
        dispatched = [k for k, count in enumerate(counts) if count is None or count > 0]
        with device._turn:
            if self.closed or "launch" in vars(device) or not device._is_timed() or len(dispatched) > len(self.free):
                return None
            slots = [self.free.pop() for _ in dispatched]
            parts = timer.parts(executable)
            try:
                for slot, task in zip(slots, dispatched):
                    timer._run(slot, parts[task], block, (counts[task],))
                return _Measured(self, device, timer._arrival(slots), dict(zip(dispatched, slots)), len(counts))
            except BaseException:
                self.free.extend(slots)
                raise

    def close(self) -> None:
        """See `Stopwatch`."""
        self.closed = True
        self._timer.close()


class _Measured:
    """A `Measurement` of ``stopwatch``. ``slots``: those of the tasks that were dispatched; ``tasks``: the number of all tasks."""

    __slots__ = ("_arrival", "_device", "_slots", "_stopwatch", "_tasks")

    def __init__(
        self,
        stopwatch: QueryStopwatch[D, E],
        device: StreamedDevice,
        arrival: Callable[[], list[float] | None],
        slots: dict[int, int],
        tasks: int,
    ) -> None:
        self._stopwatch = stopwatch
        self._device = device
        self._arrival = arrival
        self._slots = slots
        self._tasks = tasks

    def take(self) -> Sequence[int] | None:
        """See `Measurement`."""
        with self._device._turn:
            times = None if self._stopwatch.closed else self._arrival()
        if times is None:
            return None
        known = dict(zip(self._slots, times))
        return [round(known.get(task, 0)) for task in range(self._tasks)]

    def __del__(self) -> None:
        self._stopwatch.free.extend(self._slots.values())
