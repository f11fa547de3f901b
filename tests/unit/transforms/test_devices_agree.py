"""Random kernels, compiled for every device of this machine, do what the interpreter does."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest
from unit.transforms.random_kernels import inputs, random_kernel
from unit.transforms.test_passes_keep_meaning import same

from spirograd.base.arguments import Arguments, ArrayBinding
from spirograd.base.device import Device
from spirograd.base.errors import SpirogradAssertionError
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir.nodes import Kernel
from spirograd.runtime.allocations import Allocation, Memory
from spirograd.runtime.launcher import Launcher
from spirograd.runtime.loader import open_device

OPTIONS = CompileOptions(fast_math=False, verify=True)
SEEDS = range(12)


def launch(device: Device, kernel: Kernel, seed: int) -> tuple[Any, str, str, list[np.ndarray[Any, Any]]]:
    """Returned scalars, prints, the fault, and the memory after running ``kernel`` once."""
    args, trees = inputs(seed)
    memory = Memory(device)
    printed: list[str] = []
    launcher = Launcher(device, memory, printed.append, seed)
    allocations: list[Allocation] = []

    def place(array: np.ndarray[Any, Any]) -> Allocation:
        allocation = memory.allocate(array.nbytes)
        allocation.write(0, memoryview(array.reshape(-1).view(np.uint8)))
        allocations.append(allocation)
        return allocation

    homes = {key: place(tree) for key, tree in trees.items()}
    arrays = [ArrayBinding((home := place(a)).address, a.shape, allocation=home) if isinstance(a, np.ndarray) else None for a in args]
    plan = launcher.prepare(compile_kernel(kernel, device.caps, OPTIONS))
    fault, returned = "", None
    try:
        returned = plan.launch(Arguments.of(args, arrays, homes))  # type: ignore[arg-type]
        launcher.synchronize()
    except SpirogradAssertionError as error:
        fault = str(error)
    contents = []
    for allocation, array in zip(allocations, [*trees.values(), args[0], args[1]]):
        out = np.zeros(array.nbytes, np.uint8)
        allocation.read_into(0, memoryview(out))
        contents.append(out)
        allocation.free()
    tree0, tree1, tree2, x, y = contents
    views = [tree0, tree1[:64].view(np.float32), tree1[64:], tree2[:64], tree2[64:68].view(np.float32), tree2[68:], x.view(np.float32), y]
    return returned, "".join(printed), fault, views


@pytest.mark.parametrize("arch", ("cpu", "vulkan"))
def test_devices_agree(arch: str) -> None:
    needs.need(arch)
    device, reference = open_device(arch), open_device("interpreter")
    try:
        for seed in SEEDS:
            kernel = random_kernel(seed)
            expected, found = launch(reference, kernel, seed), launch(device, kernel, seed)
            assert expected[:3] == found[:3], f"seed {seed}"
            for k, (a, b) in enumerate(zip(expected[3], found[3])):
                assert same(a, b), f"seed {seed}: memory {k}"
    finally:
        device.close()
        reference.close()
