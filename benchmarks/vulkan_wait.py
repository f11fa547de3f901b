"""What a launch and a wait cost on Vulkan, by the way in which the host waits, beside calls of the driver by hand, which leave out parts:
`python -m benchmarks.vulkan_wait`."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import spirograd as sg
from spirograd.base import validity
from spirograd.lang import context
from spirograd.runtime.devices.vulkan.api import NULL, check, ffi, lib, struct
from spirograd.runtime.devices.vulkan.dispatch import dispatch, padded
from spirograd.runtime.devices.vulkan.series import CommandPool

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


class ByHand:
    """A command buffer with one launch of a kernel, submitted by calls of the driver alone.

    ``first``: after a barrier; ``last``: before a barrier that shows the host what the kernel wrote; ``anew``: recorded before each
    submission.
    """

    def __init__(self, device: Any, launch: tuple[Any, bytes, Any], first: bool, last: bool, anew: bool) -> None:
        self.device, self.stream, self.launch, self.first, self.last, self.anew = device, device._own, launch, first, last, anew
        self.pool = CommandPool(device._device, device._fn, device._family)
        self.begin = struct("VkCommandBufferBeginInfo", flags=1 if anew else 4)  # ONE_TIME_SUBMIT, SIMULTANEOUS_USE
        self.target = SimpleNamespace(fn=device._fn, layout=self.stream.layout, barrier=self.stream.barrier, words=[0] * 64)
        self.submission = self.stream._submission(self.pool.commands)
        self.record()

    def record(self) -> None:
        (executable, block, counts), commands, fn = self.launch, self.pool.commands[0], self.device._fn
        if self.anew:
            fn.ResetCommandPool(self.device._device, self.pool._pool[0], 0)
        fn.BeginCommandBuffer(commands, self.begin)
        self.target.words[:] = [0] * 64
        dispatch(self.target, commands, executable, padded(block), counts, self.first)
        if self.last:
            self.stream.let_host_see(commands)
        fn.EndCommandBuffer(commands)

    def run(self) -> None:
        if self.anew:
            self.record()
        stream, device, read, counter = self.stream, self.device._device, self.device._fn.GetSemaphoreCounterValue, self.stream._counter
        semaphore, value = stream._semaphore[0], stream.submitted + 1
        stream._signal[0] = value
        self.device._fn.QueueSubmit(stream._queue, 1, self.submission, NULL)
        stream.submitted = value
        while counter[0] < value:
            read(device, semaphore, counter)
        stream.completed = value


def by_hand(device: Any, launch: Callable[[], None], rounds: int) -> None:
    """Print the times of calls of the driver that do what ``launch`` and a wait do, or a part of it."""
    launcher = context.session().launcher
    launches: list[tuple[Any, bytes, Any]] = []
    device.launch = lambda *args: launches.append(args)
    launcher.relay()
    with_python(launch)
    del device.launch
    launcher.relay()
    device._fn.ResetCommandPool = _function(device, "ResetCommandPool")
    ways = {
        "the kernel": (False, False, False),
        "after a barrier": (True, False, False),
        "before a barrier for the host": (False, True, False),
        "between both": (True, True, False),
        "between both, recorded anew": (True, True, True),
    }
    hands = {name: ByHand(device, launches[0], *options) for name, options in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, hand in hands.items():
            start = time.perf_counter_ns()
            hand.run()
            times[name].append((time.perf_counter_ns() - start) / 1000)
    for name, row in times.items():
        print(f"by hand, {name:32} median {statistics.median(row):6.1f} us, best {min(row):6.1f} us")
    for hand in hands.values():
        hand.pool.destroy()


def with_python(launch: Callable[[], None]) -> None:
    """Launch by Python."""
    validity.suspend()
    try:
        launch()
    finally:
        validity.resume()


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
    for _ in range(20):  # Then compiled code launches, also while functions of the driver are replaced.
        one(x, 1.0)
        sg.sync()
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
    by_hand(device, lambda: one(x, 1.0), rounds)
    for poll in (0, 100_000):
        stream.poll_nanoseconds = poll
        for way, run in {"by compiled code": lambda f: f(), "by Python": with_python}.items():
            advance, stream.advance = stream.advance, stream.advance if way == "by compiled code" else None
            both, launches = [], []
            for _ in range(rounds):
                start = time.perf_counter_ns()
                run(lambda: one(x, 1.0))
                middle = time.perf_counter_ns()
                sg.sync()
                both.append((time.perf_counter_ns() - start) / 1000)
                launches.append((middle - start) / 1000)
            stream.advance = advance
            whole, best, launch = statistics.median(both), min(both), statistics.median(launches)
            how = f"{way}, polling {poll // 1000} us"
            print(f"launch and sg.sync() {how}: median {whole:.1f} us, best {best:.1f} us; launch {launch:.1f} us")


if __name__ == "__main__":
    main()
