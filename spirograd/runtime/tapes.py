"""The memory of tapes: one heap for all launches, cut anew for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spirograd.base.artifact import CompiledKernel, TapeInfo, TaskInfo
from spirograd.base.errors import OutOfDeviceMemory
from spirograd.runtime.device import Device
from spirograd.runtime.memory import Allocation, Memory

# Invocations that run a task with tapes at the same time: as many as large GPUs hold, so that more would only take memory.
_ROWS = 65536
# Fewer where the driver is a CPU, for its caches; and rows enough that an invocation stays below the driver's limit of loop iterations.
_CPU_ROWS = 4096
# Added to the distance between entries, in elements: at large powers of two they would share few cache lines.
_PADDING = 32
# With fewer rows than this a task that lacks memory is refused.
_LEAST_ROWS = 256
_ALIGNMENT = 256
_LARGEST_INDEX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Cut:
    """How a launch uses the heap: ``words`` are address, then base and pitch of each tape; ``counts`` the invocations of each task."""

    words: tuple[int, ...]
    counts: tuple[int | None, ...]
    nbytes: int


class TapeHeap:
    """Grows to what the largest launch needs. Launches that share it must run one after the other, as they do on one queue."""

    def __init__(self, device: Device, memory: Memory) -> None:
        self.device = device
        self.memory = memory
        self._heap: Allocation | None = None

    def cut(self, kernel: CompiledKernel, counts: Sequence[int | None], capacities: Sequence[int]) -> Cut:
        """Give each tape of a launch its place. ``counts``: iterations of each task, None where only the device knows.

        Raises OutOfDeviceMemory, with kernel, tape and bytes, if they do not fit, or have more elements than indices reach.
        """
        most = min(self.device.caps.max_allocation, _LARGEST_INDEX * 4)
        limit = 0
        while True:
            cut, rows = self._placed(kernel, counts, capacities, limit)
            if cut.nbytes <= most or rows <= _LEAST_ROWS or kernel.profile == "cpu":
                return Cut((self._address(kernel, cut.nbytes), *cut.words), cut.counts, cut.nbytes)
            limit = rows // 2  # fewer invocations at a time, each with more iterations

    def _placed(self, kernel: CompiledKernel, counts: Sequence[int | None], capacities: Sequence[int], limit: int) -> tuple[Cut, int]:
        """Places for the tapes, with at most ``limit`` invocations of a task (0: as many as are good), and the most rows of a task.

        The words lack the address.
        """
        rows_of = dict.fromkeys([t.task for t in kernel.tapes], 1)
        together = kernel.profile == "cpu"
        limited = list(counts)
        for k, (task, count) in enumerate(zip(kernel.tasks, counts)):
            if task.name in rows_of:
                own = [t for t in kernel.tapes if t.task == task.name]
                rows_of[task.name], limited[k] = self._rows(task, count, own, capacities, limit)
        words: list[int] = []
        end = 0
        for tape in kernel.tapes:
            rows, entries = rows_of[tape.task], max(capacities[tape.capacity], 0) * tape.width
            pitch = entries if together else rows + _PADDING if rows > _PADDING else rows
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
            words += (end // tape.dtype.size, pitch)
            end += (rows if together else entries) * pitch * tape.dtype.size
            if end // tape.dtype.size > _LARGEST_INDEX and (together or max(rows_of.values()) <= _LEAST_ROWS):
                raise OutOfDeviceMemory(_too_large(kernel, tape, rows, entries, end))
        return Cut(tuple(words), tuple(limited), end * kernel.tape_lanes), max(rows_of.values())

    def _rows(
        self, task: TaskInfo, count: int | None, tapes: Sequence[TapeInfo], capacities: Sequence[int], limit: int
    ) -> tuple[int, int | None]:
        """How many rows a task needs, and how many invocations to ask the device for."""
        threads = getattr(self.device, "threads", 0)
        if threads:
            return threads, count
        most = limit or self._good_rows(count, tapes, capacities)
        asked = most if count is None else min(count, most)
        size = max(task.group_size, 1)
        return -(-asked // size) * size, asked

    def _good_rows(self, count: int | None, tapes: Sequence[TapeInfo], capacities: Sequence[int]) -> int:
        if not self.device.caps.loop_limit:
            return _ROWS
        # A nest runs at most the product of its trip counts, some times over.
        work = 4
        for capacity in {t.capacity for t in tapes}:
            work *= max(capacities[capacity], 1)
        return _CPU_ROWS if count is None else max(_CPU_ROWS, -(-count * work // self.device.caps.loop_limit))

    def _address(self, kernel: CompiledKernel, nbytes: int) -> int:
        if self._heap is None or self._heap.nbytes < nbytes:
            if nbytes > self.device.caps.max_allocation:
                raise OutOfDeviceMemory(
                    f"the gradient of {kernel.name} needs {nbytes:,} bytes of tapes; this device allocates at most "
                    f"{self.device.caps.max_allocation:,} at once"
                )
            grown = 0 if self._heap is None else min(2 * self._heap.nbytes, self.device.caps.max_allocation)
            self._heap = None
            self._heap = self.memory.allocate(max(nbytes, grown, 1))
        return self._heap.address


def _too_large(kernel: CompiledKernel, tape: TapeInfo, rows: int, entries: int, nbytes: int) -> str:
    return (
        f"the tapes of {kernel.name} need {nbytes:,} bytes or more: {tape.name} alone has {rows:,} rows of {entries:,} {tape.dtype}, which "
        "is more than indices of 32 bits reach; run fewer iterations of the loop, or of the loop around it, in one launch"
    )
