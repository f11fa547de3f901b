"""Times of tasks on CUDA and HIP: events around each launch.

Python takes longer between two calls of the driver than a small task runs, so compiled code records both events and launches. On an idle
stream, an event adds up to some microseconds, which stay in the times.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_void_p
from time import perf_counter_ns
from typing import TYPE_CHECKING

from spirograd.runtime.devices.gpu import call
from spirograd.runtime.devices.gpu.call_code import FAILED
from spirograd.runtime.devices.query_timer import Alignment, QueryTimer

if TYPE_CHECKING:
    from spirograd.runtime.devices.gpu.device import Executable, GpuDevice

_TASKS = 1024
_TIMING = 0  # CU_EVENT_DEFAULT, hipEventDefault
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)


class GpuTimer(QueryTimer["GpuDevice", "Executable"]):
    """A `TaskTimer` of CUDA and HIP. ``code``: the device's functions, ``context``: its context. It uses two events for each task, and one
    more."""

    def __init__(self, device: GpuDevice, code: call.CallCode, context: int) -> None:
        super().__init__(device, _TASKS)
        self._code, self._context = code, context
        self._driver = code.driver
        self._function = _PROTOTYPE(code.timed)
        self._events: list[int] = []

    def _event(self, number: int) -> int:
        while len(self._events) <= number:
            event = c_void_p()
            self._driver.call("create an event", self._driver.event_create, byref(event), _TIMING)
            self._events.append(event.value or 0)
        return self._events[number]

    def _split(self, executable: Executable) -> list[Executable]:
        return [self.device.part(executable, task) for task in executable.tasks]

    def _run(self, slot: int, part: Executable, block: bytes | bytearray, counts: tuple[int | None]) -> None:
        driver, stream = self._driver, self.device._stream.handle
        begin, end = self._event(2 * slot + 1), self._event(2 * slot + 2)
        groups = [part.tasks[0].groups(counts[0])]
        if part.by_address:
            memory = self.device._sides.on_own(lambda: self.device._put(block))
            block, nbytes = memory.address.to_bytes(8, "little"), 8
            self.device._deletions.put(memory)
        else:
            nbytes = part.nbytes
        prepared = call.prepared(self._code, part.words, nbytes, groups)
        code = self._function(bytes(block), ctypes.addressof(prepared), stream, begin, end)
        driver.check(code or ctypes.c_uint32.from_buffer(prepared, FAILED).value, f"launch kernel {part.name}")

    def _marks(self, count: int) -> list[tuple[float, float]]:
        times = []
        for slot in range(count):
            begin, end = self._events[2 * slot + 1], self._events[2 * slot + 2]
            start = self._elapsed(self._events[1], begin)
            times.append((start, start + self._elapsed(begin, end)))
        return times

    def _arrival(self, slots: Sequence[int]) -> Callable[[], list[float] | None]:
        stream, ends = self.device._stream, [self._events[2 * slot + 2] for slot in slots]

        def durations() -> list[float] | None:
            if not all(map(stream.done, reversed(ends))):
                return None
            return [self._elapsed(self._events[2 * slot + 1], self._events[2 * slot + 2]) for slot in slots]

        return durations

    def _align(self) -> Alignment:
        event = self._event(0)
        before = perf_counter_ns()
        self._driver.call("record an event", self._driver.event_record, event, self.device._stream.handle)
        self.device._finish()
        after = perf_counter_ns()
        return Alignment(self._elapsed(self._events[1], event), before, after)

    def _elapsed(self, begin: int, end: int) -> float:
        """Return the nanoseconds from one event to another; the driver gives milliseconds in 24 bits."""
        milliseconds = c_float()
        self._driver.call("read two events", self._driver.event_elapsed, byref(milliseconds), begin, end)
        return milliseconds.value * 1e6

    def _close(self) -> None:
        self.device._finish()
        for event in self._events:
            self._driver.event_destroy(event)
        self._events.clear()
