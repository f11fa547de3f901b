"""What a wait after one launch costs on Vulkan, by the way in which the host waits: `python -m benchmarks.vulkan_wait`."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import spirograd as sg
from spirograd.runtime.devices.vulkan.api import NULL, check, ffi, lib

_LONG = 10_000_000_000


def _function(device: Any, name: str) -> Any:
    return ffi.cast(f"PFN_vk{name}", lib.vkGetDeviceProcAddr(device._device, f"vk{name}".encode()))


class Fence:
    """Ways to wait that need a fence, which the device does not use."""

    def __init__(self, device: Any) -> None:
        self.device, self.handle = device._device, ffi.new("VkFence*")
        info = ffi.new("VkFenceCreateInfo*", {"sType": 8})  # VK_STRUCTURE_TYPE_FENCE_CREATE_INFO
        check(_function(device, "CreateFence")(self.device, info, NULL, self.handle), "create a fence")
        self.status, self.reset = _function(device, "GetFenceStatus"), _function(device, "ResetFences")
        self.wait_for, self.idle = _function(device, "WaitForFences"), _function(device, "QueueWaitIdle")

    def poll(self) -> int:
        count = 1
        while self.status(self.device, self.handle[0]):
            count += 1
        return count

    def block(self) -> int:
        self.wait_for(self.device, 1, self.handle, 1, _LONG)
        return 1


def _timeline(stream: Any, nanoseconds: int) -> Callable[[], int]:
    def wait() -> int:
        stream.poll_nanoseconds = nanoseconds
        stream.wait(stream.submitted)
        return 1

    return wait


def _counted(stream: Any) -> int:
    count = 1
    while stream.poll() < stream.submitted:
        count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    rounds = parser.parse_args().rounds
    sg.init(arch=sg.vulkan)
    x = sg.ndarray(sg.f32, 64)

    @sg.kernel
    def one(x: sg.types.ndarray(), v: sg.f32) -> None:
        for i in range(64):
            x[i] += v

    device: Any = x.allocation.device
    stream, fence = device._stream, Fence(device)
    ways: dict[str, Callable[[], int]] = {
        "timeline, blocking": _timeline(stream, 0),
        "timeline, polled 100 us": _timeline(stream, 100_000),
        "timeline, counted polls": lambda: _counted(stream),
        "fence, polled": fence.poll,
        "fence, blocking": fence.block,
        "queue idle": lambda: int(fence.idle(stream._queue)) + 1,
    }
    submit = stream.fn.QueueSubmit
    stream.fn.QueueSubmit = lambda queue, count, info, _: submit(queue, count, info, fence.handle[0])
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, wait in ways.items():
            sg.sync()
            fence.reset(device._device, 1, fence.handle)
            a = time.perf_counter_ns()
            one(x, 1.0)
            b = time.perf_counter_ns()
            stream.flush()
            c = time.perf_counter_ns()
            polls = wait()
            d = time.perf_counter_ns()
            stream.wait(stream.submitted)
            times[name].append(((b - a) / 1000, (c - b) / 1000, (d - c) / 1000, polls))
            fence.reset(device._device, 1, fence.handle)
    stream.fn.QueueSubmit = submit
    print(device.info.name, device.info.driver)
    for name, rows in times.items():
        launch, flush, wait_us, polls = (statistics.median(column) for column in zip(*rows))
        print(f"{name:26} launch {launch:6.1f} us   submit {flush:6.1f} us   wait {wait_us:6.1f} us   {polls:.0f} calls")
    for poll in (0, 100_000):
        stream.poll_nanoseconds = poll
        best = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            one(x, 1.0)
            sg.sync()
            best.append((time.perf_counter_ns() - start) / 1000)
        print(f"launch and sg.sync(), polling {poll / 1000:.0f} us: median {statistics.median(best):.1f} us, best {min(best):.1f} us")


if __name__ == "__main__":
    main()
