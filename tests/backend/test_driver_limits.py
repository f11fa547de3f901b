"""What drivers cannot do is noticed, not passed over."""

from __future__ import annotations

from typing import Any

import pytest

import spirograd as sg


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
