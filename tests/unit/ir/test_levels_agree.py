"""Random kernels give the same results before and after all lowering, as interpreted: device IR is read back from its text."""

from __future__ import annotations

import numpy as np
import pytest
from ir_random import random_kernel

from spirograd.analysis import trial
from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir.spec import verify
from spirograd.ir.text import parse, to_text

CAPS = Capabilities(
    profile="vulkan", int8=True, int16=True, int64=True, float16=True, float64=True, storage8=True, storage16=True, buffer_address=True,
    atomic_int64=True,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_lowering_keeps_the_results(seed: int) -> None:
    kernel = random_kernel(seed)
    verify(kernel, "kernel")
    text = to_text(kernel)
    assert to_text(parse(text)) == text
    rng = np.random.default_rng(seed)
    a = rng.integers(-(2**31), 2**31, 5, dtype=np.int32)
    x = rng.normal(size=5).astype(np.float32)

    def arguments() -> list[object]:
        return [a, x, np.zeros(5, np.int32), np.zeros(5, np.float32), int(seed - 7), 0.75]

    want, got = arguments(), arguments()
    first = trial.run(kernel, want)
    assert first.fault is None
    compiled = compile_kernel(kernel, CAPS, CompileOptions(fast_math=False, verify=True, keep_stages=True))
    device = parse(compiled.stages["device.ir"])
    verify(device, "device")
    offloaded = parse(compiled.stages["offload.ir"])
    second = trial.run(device, got, source=offloaded, block=compiled.args, sites=(compiled.faults, compiled.prints))
    assert second.fault is None
    assert first.returns == second.returns
    for one, other in zip(want[2:4], got[2:4]):
        np.testing.assert_array_equal(one, other)
    if seed % 4 == 0:
        middle = arguments()
        assert trial.run(offloaded, middle).returns == first.returns
        np.testing.assert_array_equal(middle[2], want[2])
