"""Times of tasks on Vulkan: timestamp queries around each dispatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING

import vulkan as vk

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.runtime.devices.query_timer import Alignment, QueryTimer
from spirograd.runtime.devices.vulkan.api import NULL, check, enumerate_all, ffi, lib, struct
from spirograd.runtime.devices.vulkan.call_words import BATCH
from spirograd.runtime.devices.vulkan.stream import RECORDED

if TYPE_CHECKING:
    from spirograd.runtime.devices.vulkan.device import VulkanDevice
    from spirograd.runtime.devices.vulkan.dispatch import Executable

_TASKS = 1024
_STAGE = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT


class VulkanTimer(QueryTimer["VulkanDevice", "Executable"]):
    """A `TaskTimer` of Vulkan. ``family``: the family of the device's queue. ``launch``: the device's method. It uses two queries for each
    task, and one more."""

    def __init__(
        self,
        device: VulkanDevice,
        physical: ffi.CData,
        family: int,
        launch: Callable[[Executable, bytes | bytearray, tuple[int | None]], None],
    ) -> None:
        super().__init__(device, _TASKS)
        families = enumerate_all(
            lambda count, array: lib.vkGetPhysicalDeviceQueueFamilyProperties(physical, count, array), "VkQueueFamilyProperties"
        )
        bits = families[family].timestampValidBits
        properties = ffi.new("VkPhysicalDeviceProperties*")
        lib.vkGetPhysicalDeviceProperties(physical, properties)
        self._period = float(properties.limits.timestampPeriod)
        if not bits or not self._period:
            raise SpirogradUnsupportedError("the queue of this Vulkan device writes no timestamps", None, "profile on another back end")
        self._mask = (1 << bits) - 1
        self._reference = 0  # The tick that times are relative to.
        self._launch = launch
        self._pool = ffi.new("VkQueryPool*")
        info = struct("VkQueryPoolCreateInfo", queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=2 * _TASKS + 1)
        check(device._fn.CreateQueryPool(device._device, info, NULL, self._pool), "create a query pool")

    def _split(self, executable: Executable) -> list[Executable]:
        parts = [type(executable)(executable.name, (task,), executable.nbytes, []) for task in executable.tasks]
        for part in parts:
            part.text = executable.text
        return parts

    def _run(self, slot: int, part: Executable, block: bytes | bytearray, counts: tuple[int | None]) -> None:
        device, pool = self.device, self._pool[0]
        stream, fn = device._stream, device._fn
        if stream.words[RECORDED] >= BATCH:
            stream.flush()
        commands = stream.open()
        fn.CmdResetQueryPool(commands, pool, 2 * slot, 2)
        fn.CmdWriteTimestamp(commands, _STAGE, pool, 2 * slot)
        self._launch(part, block, counts)
        fn.CmdWriteTimestamp(stream.open(), _STAGE, pool, 2 * slot + 1)

    def _marks(self, count: int) -> list[tuple[float, float]]:
        ticks = self._ticks(0, 2 * count)
        self._reference = ticks[-1]
        return [
            (self._nanoseconds(begin), self._nanoseconds(begin) + (end - begin & self._mask) * self._period)
            for begin, end in zip(ticks[::2], ticks[1::2])
        ]

    def _arrival(self, slots: Sequence[int]) -> Callable[[], list[float] | None]:
        stream = self.device._stream
        value = stream.pending_value

        def durations() -> list[float] | None:
            if stream.poll() < value:
                return None
            pairs = [self._ticks(2 * slot, 2) for slot in slots]
            return [(end - begin & self._mask) * self._period for begin, end in pairs]

        return durations

    def _nanoseconds(self, tick: int) -> float:
        """Return the nanoseconds from the reference, which is later, to ``tick``; the counter may have wrapped in between."""
        return -float(self._reference - tick & self._mask) * self._period

    def _align(self) -> Alignment:
        device, pool = self.device, self._pool[0]
        commands = device._stream.open()
        device._fn.CmdResetQueryPool(commands, pool, 2 * _TASKS, 1)
        device._fn.CmdWriteTimestamp(commands, _STAGE, pool, 2 * _TASKS)
        before = perf_counter_ns()
        device._finish()
        after = perf_counter_ns()
        (tick,) = self._ticks(2 * _TASKS, 1)
        return Alignment((tick - self._reference & self._mask) * self._period, before, after)

    def _ticks(self, first: int, count: int) -> list[int]:
        ticks = ffi.new("uint64_t[]", count)
        flags = vk.VK_QUERY_RESULT_64_BIT | vk.VK_QUERY_RESULT_WAIT_BIT
        function = self.device._fn.GetQueryPoolResults
        check(function(self.device._device, self._pool[0], first, count, 8 * count, ticks, 8, flags), "read timestamps")
        return list(ticks)

    def _close(self) -> None:
        self.device._finish()
        self.device._fn.DestroyQueryPool(self.device._device, self._pool[0], NULL)
