"""Remainders of what is computed from remainders, as random number generators do: some drivers get those of 64 bits wrong."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

N, STEPS = 40, 9
TYPES = {sg.i32: np.int32, sg.u32: np.uint32, sg.i64: np.int64, sg.u64: np.uint64}


@pytest.mark.parametrize("t", TYPES, ids=str)
@pytest.mark.parametrize("way", ["remainder", "quotient", "both"])
@pytest.mark.parametrize("unrolled", [False, True], ids=["loop", "unrolled"])
def test_chains(session: Any, t: Any, way: str, unrolled: bool) -> None:
    """By a constant and by a number in memory, each step on record, and the last one only."""
    needs.of_type(t)
    x, steps, last, divisor = sg.field(t, N), sg.field(t, (STEPS, N)), sg.field(t, N), sg.field(t, ())

    @sg.func
    def remainder(m, n):
        return m % n

    @sg.func
    def quotient(m, n):
        return m - m // n * n

    @sg.func
    def both(m, n):
        return m % n + m // n

    step = {"remainder": remainder, "quotient": quotient, "both": both}[way]

    @sg.kernel
    def in_a_loop():
        for i in x:
            m, k = x[i], x[i]
            for s in range(STEPS):
                m = step(m * 7 + 1, sg.cast(1009, t))
                steps[s, i] = m
                k = step(k * 5 + 3, divisor[None])
            last[i] = k

    @sg.kernel
    def in_a_row():
        for i in x:
            m, k = x[i], x[i]
            for s in sg.static(range(STEPS)):
                m = step(m * 7 + 1, sg.cast(1009, t))
                steps[s, i] = m
                k = step(k * 5 + 3, divisor[None])
            last[i] = k

    start = np.arange(N).astype(TYPES[t]) * 11
    x.from_numpy(start)
    divisor[None] = 777
    (in_a_row if unrolled else in_a_loop)()
    exact = {"remainder": lambda m, n: m % n, "quotient": lambda m, n: m % n, "both": lambda m, n: m % n + m // n}[way]
    m, k, wanted = start.astype(object), start.astype(object), []
    for _ in range(STEPS):
        m, k = exact(m * 7 + 1, 1009), exact(k * 5 + 3, 777)
        wanted.append(m)
    np.testing.assert_array_equal(steps.to_numpy().astype(object), np.array(wanted))
    np.testing.assert_array_equal(last.to_numpy().astype(object), k)
