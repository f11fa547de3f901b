"""Failures of Vulkan's driver: errors that name what happened, nothing wrong after them, and sessions that work afterwards."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from unit.runtime.reading import read
from unit.runtime.spirv_modules import compiled

import spirograd as sg
from spirograd.base.arguments import Arguments
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.lang import context
from spirograd.runtime.allocations import Memory
from spirograd.runtime.devices.vulkan import instance
from spirograd.runtime.launcher import Launcher

NO_MEMORY, NO_HOST_MEMORY, LOST = -2, -1, -4  # VK_ERROR_OUT_OF_DEVICE_MEMORY, VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_DEVICE_LOST


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has functions of a device give ``result``, as often as is said, and do nothing."""

    def fail(device: Any, names: str, result: int, times: int = 1 << 30) -> None:
        left = [times]
        for name in names.split():
            real = getattr(device._fn, name)

            def call(*args: Any, real: Any = real) -> int:
                left[0] -= 1
                code: int = result if left[0] >= 0 else real(*args)
                return code

            monkeypatch.setattr(device._fn, name, call)

    return fail


@pytest.mark.parametrize("result", [NO_MEMORY, NO_HOST_MEMORY])
@pytest.mark.parametrize("name", ["QueueSubmit", "EndCommandBuffer"])
def test_work_that_the_driver_did_not_take(open_vulkan: Any, failing: Any, name: str, result: int) -> None:
    """Allocating waits for the work whose memory was freed, and tries again where memory is short: it must not go on without the work."""
    vulkan = open_vulkan()
    memory = Memory(vulkan)
    plan = Launcher(vulkan, memory).prepare(compiled("count"))
    a = memory.allocate(4)
    vulkan.synchronize()
    plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
    failing(vulkan, name, result, 1)
    failing(vulkan, "AllocateMemory", NO_MEMORY)
    for call in (lambda: memory.allocate(100 << 20), lambda: read(a), vulkan.synchronize):
        with pytest.raises(SpirogradRuntimeError, match=r"found no memory for work.* arrays lack their results.*call init again") as error:
            call()
        assert not isinstance(error.value, OutOfDeviceMemory)


def test_a_wait_without_memory_loses_nothing(open_vulkan: Any, failing: Any) -> None:
    vulkan = open_vulkan()
    memory = Memory(vulkan)
    plan = Launcher(vulkan, memory).prepare(compiled("count"))
    a = memory.allocate(4)
    plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
    failing(vulkan, "GetSemaphoreCounterValue WaitSemaphores", NO_MEMORY, 1)
    with pytest.raises(OutOfDeviceMemory, match=r"VK_ERROR_OUT_OF_DEVICE_MEMORY.*free arrays, or end other processes"):
        vulkan.synchronize()
    assert read(a)[0] == 1


@pytest.mark.parametrize(
    "names",
    ["QueueSubmit", "WaitSemaphores GetSemaphoreCounterValue", "AllocateMemory", "BeginCommandBuffer", "CreateComputePipelines"],
)
def test_sessions_after_a_lost_device(monkeypatch: pytest.MonkeyPatch, failing: Any, names: str) -> None:
    sg.init(arch=sg.vulkan)
    x = sg.ndarray(sg.i32, 100)

    @sg.kernel
    def count(x: sg.types.ndarray()):
        for i in x:
            x[i] += i

    @sg.kernel
    def twice(x: sg.types.ndarray()):
        for i in x:
            x[i] *= 2

    count(x)
    sg.sync()
    failing(context.session().device, names, LOST)
    with pytest.raises(SpirogradRuntimeError, match=r"the Vulkan device was lost .*call init again.*VK_ERROR_DEVICE_LOST"):
        twice(x)
        sg.ndarray(sg.i32, 50_000_000)
        sg.sync()
    for call in (lambda: count(x), sg.sync, x.to_numpy, lambda: sg.ndarray(sg.i32, 10)):
        with pytest.raises(SpirogradRuntimeError, match="device was lost"):
            call()
    monkeypatch.undo()
    sg.reset()
    del x
    gc.collect()
    sg.init(arch=sg.vulkan)
    x = sg.ndarray(sg.i32, 100)
    count(x)
    twice(x)
    np.testing.assert_array_equal(x.to_numpy(), 2 * np.arange(100))
    sg.reset()


def test_the_driver_stays_loaded_after_failures(open_vulkan: Any, failing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers go with the last instance, and some cannot be loaded often."""
    monkeypatch.setattr(instance, "_idle", {})
    for _ in range(2):
        device = open_vulkan()
        failing(device, "QueueSubmit", LOST)
        with pytest.raises(SpirogradRuntimeError, match="device was lost"):
            Memory(device).allocate(16).fill(0, 16, 1)
            device.synchronize()
        device.close()
        assert list(instance._idle) == [False] and instance._idle[False] is not device._instance
