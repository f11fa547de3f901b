"""Random kernels give on every device present what the reference interpreter gives, bit for bit (without fast math); also with parts of
them in functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import needs
import numpy as np
import pytest
from cases import seeds
from ir_outline import outlined
from ir_random import random_arguments, random_kernel

from spirograd.analysis import trial
from spirograd.base.arguments import Arguments, ArrayBinding
from spirograd.base.device import Device
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel
from spirograd.ir.spec import verify
from spirograd.runtime import loader
from spirograd.runtime.allocations import Memory
from spirograd.runtime.launcher import Launcher
from spirograd.transforms.simplification import inline_calls

LENGTH = 37
SEEDS = 14
IN_FUNCTIONS = 5  # these take much longer to compile


@pytest.fixture(scope="module", params=needs.ARCHS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    needs.need(request.param)
    opened = loader.open_device(request.param)
    yield opened
    opened.close()


def launch(device: Device, kernel: Kernel, args: list[Any], tree: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Run on ``device``; arrays are updated in place."""
    memory = Memory(device)
    launcher = Launcher(device, memory)
    compiled = compile_kernel(kernel, device.caps, CompileOptions(fast_math=False))
    field_memory = memory.allocate(tree.nbytes)
    field_memory.write(0, memoryview(tree))
    bindings: list[ArrayBinding] = []
    for value in args:
        array = value if isinstance(value, np.ndarray) else np.zeros(1)
        allocation = memory.allocate(array.nbytes)
        allocation.write(0, memoryview(array))
        bindings.append(ArrayBinding(allocation.address, array.shape, 0, 0, allocation))
    scalars = [0 if isinstance(value, np.ndarray) else value for value in args]
    returned = launcher.prepare(compiled).launch(Arguments.of(scalars, bindings, {0: field_memory}))
    launcher.synchronize()
    for value, binding in zip(args, bindings):
        if isinstance(value, np.ndarray):
            assert binding.allocation is not None
            binding.allocation.read_into(0, memoryview(value))
    return tuple(returned or ())


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("seed", seeds(SEEDS, 10 * SEEDS))
def test_random_kernel(device: Device, seed: int) -> None:
    kernel = random_kernel(seed, device.caps)
    want, tree = random_arguments(seed, LENGTH)
    got, _ = random_arguments(seed, LENGTH)
    reference = trial.run(kernel, want, {0: tree})
    assert reference.fault is None
    assert launch(device, kernel, got, tree) == reference.returns
    for one, other in zip(want, got):
        np.testing.assert_array_equal(one, other)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("seed", seeds(IN_FUNCTIONS, 20 * SEEDS))
def test_random_kernel_in_functions(device: Device, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_calls, "_FEW", 0)
    monkeypatch.setattr(inline_calls, "_SMALL", 0)
    monkeypatch.setenv("SG_VERIFY", "1")
    kernel = random_kernel(seed, device.caps)
    parts = outlined(kernel, seed)
    verify(parts, "kernel")
    assert ops.call_memory in parts.codes
    want, tree = random_arguments(seed, LENGTH)
    got, _ = random_arguments(seed, LENGTH)
    interpreted, _ = random_arguments(seed, LENGTH)
    reference = trial.run(kernel, want, {0: tree})
    assert trial.run(parts, interpreted, {0: tree}).returns == reference.returns
    assert launch(device, parts, got, tree) == reference.returns
    for one, other, third in zip(want, got, interpreted):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, third)
