"""Random kernels give on every device present what the reference interpreter gives, bit for bit (without fast math)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ir_random import random_kernel

from spirograd.analysis import trial
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir.nodes import Kernel
from spirograd.runtime import loader
from spirograd.runtime.device import Device
from spirograd.runtime.launcher import ArrayBinding, Launcher
from spirograd.runtime.memory import Memory

LENGTH = 37
SEEDS = 24


@pytest.fixture(scope="module", params=sorted(loader.DEVICES))
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    reason = loader.available(request.param)
    if reason is not None:
        pytest.skip(reason)
    opened = loader.open_device(request.param)
    yield opened
    opened.close()


def arguments(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    a = rng.integers(-(2**31), 2**31, LENGTH, dtype=np.int32)
    x = rng.normal(size=LENGTH).astype(np.float32)
    return [a, x, np.zeros(LENGTH, np.int32), np.zeros(LENGTH, np.float32), seed - 7, 0.75]


def launch(device: Device, kernel: Kernel, args: list[Any]) -> tuple[Any, ...]:
    """Run on ``device``; arrays are updated in place."""
    memory = Memory(device)
    launcher = Launcher(device, memory)
    compiled = compile_kernel(kernel, device.caps, CompileOptions(fast_math=False))
    arrays = [value for value in args if isinstance(value, np.ndarray)]
    allocations = [memory.allocate(value.nbytes) for value in arrays]
    for value, allocation in zip(arrays, allocations):
        allocation.write(0, memoryview(value))
    bindings = [ArrayBinding(allocation.address, value.shape, 0, 0, allocation) for value, allocation in zip(arrays, allocations)]
    returned = launcher.prepare(compiled).launch(args, bindings, {})
    launcher.synchronize()
    for value, allocation in zip(arrays, allocations):
        allocation.read_into(0, memoryview(value))
    return tuple(returned or ())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_kernel(device: Device, seed: int) -> None:
    kernel = random_kernel(seed, small=device.caps.int8)
    want, got = arguments(seed), arguments(seed)
    reference = trial.run(kernel, want)
    assert reference.fault is None
    assert launch(device, kernel, got) == reference.returns
    for one, other in zip(want[2:4], got[2:4]):
        np.testing.assert_array_equal(one, other)
