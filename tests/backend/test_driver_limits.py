"""What drivers cannot do is noticed, not passed over."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.lang import context


@sg.kernel
def count_in_range(n: sg.i32) -> sg.i32:
    s = 0
    sg.loop_config(serialize=True)
    for i in range(n):
        s += i % 3
    return s


@sg.kernel
def count_while(n: sg.i32) -> sg.i32:
    s = 0
    k = 0
    while k < n:
        s += k % 3
        k += 1
    return s


@pytest.mark.archs("cpu", "vulkan")
@pytest.mark.parametrize("kernel", [count_in_range, count_while], ids=["for", "while"])
def test_long_loops_are_right_or_refused(kernel: Any, session: Any) -> None:
    """llvmpipe ends the loops of an invocation after 65,535 iterations: then there is an error that says so, and the device goes on."""
    limit = session.device.caps.loop_limit
    assert kernel(60_000) == 60_000
    if limit:
        with pytest.raises(sg.SpirogradRuntimeError, match="ends loops after 65,535 iterations") as error:
            kernel(100_000)
        assert "while k < n" in str(error.value) or "for i in range(n)" in str(error.value)
    else:
        assert kernel(100_000) == sum(k % 3 for k in range(100_000))
    assert kernel(7) == 6


@pytest.mark.archs("vulkan")
def test_few_thread_slots_make_long_loops(arch: str) -> None:
    """With little memory for tapes an invocation does the work of many. Where the driver ends its loops, the error says what helps."""
    found = {}
    for memory in (80_000, 8_000_000):
        sg.init(arch=arch, fast_math=False, ad_memory_GB=memory / 2**30)
        limited = context.session().device.caps.loop_limit
        x, y = (sg.field(sg.f32, shape=8192, needs_grad=True) for _ in range(2))

        @sg.kernel
        def run(n: sg.i32):
            for i in x:
                s = x[i]
                for t in range(n):
                    s += 0.002 * sg.sin(s + t)
                y[i] = s

        x.fill(0.3)
        y.grad.fill(1)
        if limited and memory == 80_000:
            with pytest.raises(
                sg.SpirogradRuntimeError, match=r"this loop was complete; give adstacks more memory[^$]*for t in range\(n\)"
            ):
                run.grad(300)
                sg.sync()
            continue
        run.grad(300)
        found[memory] = x.grad.to_numpy()
    slope, value = 1.0, 0.3
    for t in range(300):
        slope, value = slope * (1 + 0.002 * np.cos(value + t)), value + 0.002 * np.sin(value + t)
    for gradient in found.values():
        np.testing.assert_allclose(gradient, slope, rtol=1e-4)
    assert 8_000_000 in found


@pytest.mark.archs("vulkan", "wgpu")
def test_the_first_of_several_faults(arch: str) -> None:
    """Of the launches since the last wait, the error is that of the first that failed; in one launch an unfinished loop comes first."""
    sg.init(arch=arch, check_out_of_bound=True)
    x, y = sg.field(sg.i32, shape=300), sg.field(sg.i32, shape=300)
    if not context.session().device.caps.loop_limit:
        pytest.skip("this driver runs loops to their end")

    @sg.kernel
    def fast(n: sg.i32, m: sg.i32):
        for i in range(300):
            for k in range(10):
                y[i] += k
            s = 0
            for k in range(n):
                s += k & i
            x[i] = s
        for i in range(300):
            y[i + m] = i

    @sg.kernel
    def other(n: sg.i32):
        for i in range(300):
            k = 0
            while k < n:
                k += 1 + (i & 0)
            x[i] = k

    loop, bounds, later = "for k in range(n)", "y[i + m] = i", "while k < n"
    cases: list[tuple[list[Any], str]] = [
        ([(fast, 10, 0), (fast, 70_000, 0)], loop),
        ([(fast, 10, 1), (other, 70_000)], bounds),
        ([(other, 70_000), (fast, 10, 1)], later),
        ([(fast, 70_000, 1)], loop),
        ([(other, 10), (fast, 70_000, 0), (other, 70_000)], loop),
    ]
    for launches, line in cases:
        with pytest.raises(sg.SpirogradRuntimeError, match=re.escape(line)):
            for kernel, *numbers in launches:
                kernel(*numbers)
            sg.sync()
        other(7)
        sg.sync()
        assert (x.to_numpy() == 7).all()
