"""Has what is submitted to Vulkan run some milliseconds later, as on a card that is busy with other processes: tests fail where memory is
read, written or freed without a wait for the work that uses it. lavapipe by itself is often done before Python goes on."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from spirograd.runtime.devices.vulkan import device
from spirograd.runtime.devices.vulkan.api import NULL, ffi, struct

_SECONDS = 0.003


class _Queue:
    """Submits to one device, in order, from a thread that there is while there is work. The structures are copied: the runtime uses its own
    again."""

    def __init__(self, functions: Any) -> None:
        self._submit, self._wait_idle = functions.QueueSubmit, functions.DeviceWaitIdle
        self._work: queue.Queue[Any] = queue.Queue()
        self._lock, self._running = threading.Lock(), False
        self._delays = random.Random(1)
        self._problem = 0  # of a submission, told by the next
        functions.QueueSubmit, functions.DeviceWaitIdle = self.submit, self.wait_idle

    def _run(self) -> None:
        while True:
            with self._lock:
                self._running = not self._work.empty()
                if not self._running:
                    return
                vulkan_queue, submission, _ = self._work.get_nowait()
            time.sleep(2 * _SECONDS * self._delays.random())
            self._problem = self._problem or self._submit(vulkan_queue, 1, submission, NULL)
            self._work.task_done()

    def submit(self, vulkan_queue: Any, _count: int, submission: Any, _fence: Any) -> int:
        """As vkQueueSubmit with one submission of one command buffer, which signals and waits for timelines."""
        values = ffi.cast("VkTimelineSemaphoreSubmitInfo *", submission.pNext)
        waits, signals = submission.waitSemaphoreCount, submission.signalSemaphoreCount

        def copied(kind: str, source: Any, count: int) -> Any:
            return ffi.new(kind, [source[k] for k in range(count)]) if count else NULL

        kept = [
            copied("uint64_t[]", values.pWaitSemaphoreValues, waits),
            copied("uint64_t[]", values.pSignalSemaphoreValues, signals),
            copied("VkSemaphore[]", submission.pWaitSemaphores, waits),
            copied("VkPipelineStageFlags[]", submission.pWaitDstStageMask, waits),
            copied("VkSemaphore[]", submission.pSignalSemaphores, signals),
            copied("VkCommandBuffer[]", submission.pCommandBuffers, 1),
        ]
        timeline = struct(
            "VkTimelineSemaphoreSubmitInfo",
            waitSemaphoreValueCount=waits,
            pWaitSemaphoreValues=kept[0],
            signalSemaphoreValueCount=signals,
            pSignalSemaphoreValues=kept[1],
        )
        copy = struct(
            "VkSubmitInfo",
            pNext=timeline,
            waitSemaphoreCount=waits,
            pWaitSemaphores=kept[2],
            pWaitDstStageMask=kept[3],
            signalSemaphoreCount=signals,
            pSignalSemaphores=kept[4],
            commandBufferCount=1,
            pCommandBuffers=kept[5],
        )
        with self._lock:
            self._work.put((vulkan_queue, copy, [timeline, *kept]))
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, daemon=True).start()
        return self._problem

    def wait_idle(self, vulkan_device: Any) -> int:
        """As vkDeviceWaitIdle."""
        self._work.join()
        result: int = self._wait_idle(vulkan_device)
        return result


def delay(patch: Callable[[Any, str, Any], None]) -> None:
    """For devices that are opened from now on. ``patch`` sets an attribute."""
    plain, opened = device.device_functions, device.VulkanDevice.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        def functions(handle: Any) -> Any:
            found = plain(handle)
            _Queue(found)
            return found

        device.device_functions = functions
        try:
            opened(self, *args, **kwargs)
        finally:
            device.device_functions = plain

    patch(device.VulkanDevice, "__init__", init)
