"""Times of tasks on wgpu: a compute pass for each dispatch, with timestamps at its begin and end."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.runtime.devices.query_timer import Alignment, QueryTimer
from spirograd.runtime.devices.wgpu.api import ffi, handle, lib, telling, wgpu
from spirograd.runtime.devices.wgpu.features import TIMESTAMPS
from spirograd.runtime.devices.wgpu.stream import BATCH, Stream

if TYPE_CHECKING:
    from spirograd.runtime.devices.wgpu.device import Executable, WgpuDevice

_TASKS = 1024
_USAGE = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC


class WgpuTimer(QueryTimer["WgpuDevice", "Executable"]):
    """A `TaskTimer` of wgpu. ``driver``: the device of wgpu. ``launch``: our device's method. It uses a pair of queries for each task, and
    one more."""

    def __init__(
        self,
        device: WgpuDevice,
        driver: wgpu.GPUDevice,
        stream: Stream,
        launch: Callable[[Executable, bytes | bytearray, tuple[int | None]], None],
    ) -> None:
        super().__init__(device, _TASKS)
        if TIMESTAMPS not in driver.features:
            raise SpirogradUnsupportedError("this adapter of wgpu writes no timestamps", None, "profile on another back end")
        self._driver = driver
        self._stream = stream
        self._launch = launch
        with telling("create a query set through wgpu"):
            self._queries = driver.create_query_set(type="timestamp", count=2 * _TASKS + 2)
            self._results = driver.create_buffer(size=16 * (_TASKS + 1), usage=_USAGE)
        self._period = float(lib.wgpuQueueGetTimestampPeriod(handle(driver.queue)))
        self._first = 0  # The tick that times are relative to.

    def _split(self, executable: Executable) -> list[Executable]:
        return [type(executable)((task,), executable.arguments) for task in executable.tasks]

    def _run(self, slot: int, part: Executable, block: bytes | bytearray, counts: tuple[int | None]) -> None:
        if self._stream.recorded >= BATCH:
            self._stream.flush()
        self._stream.pass_between(self._writes(slot))
        self._launch(part, block, counts)
        self._stream.end_pass()

    def _writes(self, slot: int) -> ffi.CData:
        return ffi.new(
            "WGPUPassTimestampWrites *",
            {"querySet": handle(self._queries), "beginningOfPassWriteIndex": 2 * slot, "endOfPassWriteIndex": 2 * slot + 1},
        )

    def _marks(self, count: int) -> list[tuple[float, float]]:
        ticks = self._ticks(0, 2 * count)
        self._first = ticks[0]
        times = [(tick - self._first) * self._period for tick in ticks]
        return list(zip(times[::2], times[1::2]))

    def _arrival(self, slots: Sequence[int]) -> Callable[[], list[float] | None]:
        readbacks = []
        for slot in slots:
            with telling("read timestamps through wgpu"):
                self._stream.commands().resolve_query_set(self._queries, 2 * slot, 2, self._results, 0)
            readbacks.append(self._stream.read_async(self._results, 0, 16))

        def durations() -> list[float] | None:
            ticks = [data if (data := readback.poll()) is None else struct.unpack("<2Q", data) for readback in readbacks]
            return None if None in ticks else [(end - begin) * self._period for begin, end in filter(None, ticks)]

        return durations

    def _align(self) -> Alignment:
        self._stream.pass_between(self._writes(_TASKS))
        self._stream.open_pass()
        self._stream.end_pass()
        before = perf_counter_ns()
        self._stream.finish()
        after = perf_counter_ns()
        tick, _ = self._ticks(2 * _TASKS, 2)
        return Alignment((tick - self._first) * self._period, before, after)

    def _ticks(self, first: int, count: int) -> tuple[int, ...]:
        out = bytearray(8 * count)
        with telling("read timestamps through wgpu"):
            self._stream.commands().resolve_query_set(self._queries, first, count, self._results, 0)
        self._stream.read(self._results, 0, memoryview(out))
        return struct.unpack(f"<{count}Q", out)

    def _close(self) -> None:
        self._stream.finish()
        del self._queries, self._results
