"""Random kernels give the same results before and after all lowering, as interpreted: device IR is read back from its text."""

from __future__ import annotations

import numpy as np
import pytest
from ir_random import random_arguments, random_kernel

from spirograd.analysis import loop_costs, trial
from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir.spec import verify
from spirograd.ir.text import parse, to_text

CAPS = Capabilities(
    target_name="vulkan", int8=True, int16=True, int64=True, float16=True, float64=True, storage8=True, storage16=True, buffer_address=True,
    atomic_int64=True,
)  # fmt: skip


@pytest.mark.parametrize("seed", [*range(24), *[pytest.param(k, marks=pytest.mark.long) for k in range(24, 200)]])
def test_lowering_keeps_the_results(seed: int) -> None:
    kernel = random_kernel(seed, CAPS)
    verify(kernel, "kernel")
    text = to_text(kernel)
    assert to_text(parse(text)) == text
    want, tree = random_arguments(seed, 5)
    got, _ = random_arguments(seed, 5)
    first = trial.run(kernel, want, {0: tree})
    assert first.fault is None
    compiled = compile_kernel(kernel, CAPS, CompileOptions(fast_math=False, verify=True, keep_stages=True, group_size=1))
    device = parse(compiled.stages["device.ir"])
    verify(device, "device")
    offloaded = parse(compiled.stages["offload.ir"])
    sites = (compiled.faults, compiled.prints)
    second = trial.run(device, got, {0: tree}, source=offloaded, block=compiled.args, sites=sites)
    assert second.fault is None
    assert first.returns == second.returns
    for one, other in zip(want, got):
        np.testing.assert_array_equal(one, other)
    if seed % 4 == 0:
        middle, _ = random_arguments(seed, 5)
        assert trial.run(offloaded, middle, {0: tree}).returns == first.returns
        np.testing.assert_array_equal(middle[2], want[2])


CPU = Capabilities(
    "cpu", int8=True, int16=True, int64=True, float16=True, float64=True, storage8=True, storage16=True, atomic_int64=True,
    cpu_features="+sse2,+avx2",
)  # fmt: skip
# Limits of `loop_costs` with which small loops are cut into partitions, and stream.
_SMALL = {"LARGE": 6, "LARGEST_PARTITION": 6, "SMALLEST_PARTITION": 3, "LARGE_OPERATION": 6, "LARGE_VECTORISED": 6, "LEAST_STREAM": 1}


@pytest.mark.parametrize("limits", [{}, _SMALL], ids=("as they are", "small"))
@pytest.mark.parametrize("seed", [*range(24), *[pytest.param(k, marks=pytest.mark.long) for k in range(24, 200)]])
def test_loops_of_the_cpu_keep_the_results(seed: int, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever chunks the range is cut into, with and without atomics."""
    for name, limit in limits.items():
        monkeypatch.setattr(loop_costs, name, limit)
    kernel = random_kernel(seed, CPU)
    want, tree = random_arguments(seed, 5)
    first = trial.run(kernel, want, {0: tree})
    compiled = compile_kernel(kernel, CPU, CompileOptions(fast_math=False, verify=True, keep_stages=True), generate=False)
    loops = parse(compiled.stages["loops.ir"])
    verify(loops, "loops")
    offloaded = parse(compiled.stages["offload.ir"])
    for chunks, uncontended in ((1, False), (3, False), (1, True)):
        got, tree = random_arguments(seed, 5)
        plan = {"source": offloaded, "block": compiled.args, "sites": (compiled.faults, compiled.prints)}
        second = trial.run(loops, got, {0: tree}, **plan, chunks=chunks, uncontended=uncontended)
        assert second.fault is None
        assert first.returns == second.returns
        for one, other in zip(want, got):
            np.testing.assert_array_equal(one, other)
