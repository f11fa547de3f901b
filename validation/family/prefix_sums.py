"""A prefix sum for Taichi on the CPU, whose own one exists on CUDA and Vulkan only, so that programs with it can be compared."""

# No postponed annotations: Taichi reads them as they are.

from typing import Any


def install(taichi: Any) -> None:
    """Replace ``taichi.algorithms.PrefixSumExecutor`` by a loop that runs in order."""
    ti = taichi

    @ti.kernel
    def scan(x: ti.template()):
        total = 0
        ti.loop_config(serialize=True)
        for i in range(x.shape[0]):
            total += x[i]
            x[i] = total

    class PrefixSumExecutor:
        def __init__(self, length: int) -> None:
            self.length = length

        def run(self, x: Any) -> None:
            scan(x)

    ti.algorithms.PrefixSumExecutor = PrefixSumExecutor
