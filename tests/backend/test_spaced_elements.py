"""Branches around much arithmetic on entries of wide elements, against NumPy: on the CPU lanes access elements at regular distances, all of
them or some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.dtypes import DType

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.optimized]


@pytest.mark.parametrize("n", (1, 16, 37, 200))
@pytest.mark.parametrize("width", (5, 12))
@pytest.mark.parametrize("dtype", (sg.f32, sg.i32), ids=str)
def test_wide_elements(session: Any, dtype: DType, width: int, n: int) -> None:
    """Runs of iterations that all take a branch, and others of which some do; what they do not write stays."""
    x, y = (sg.Vector.field(width, dtype, n) for _ in range(2))
    flag = sg.field(sg.i32, n)

    @sg.kernel
    def run():
        for i in x:
            if flag[i] > 0:
                a, b, c = x[i][0], x[i][2], x[i][width - 1]
                for k in sg.static(range(10)):
                    a = (a + 2 * b - c) // 2 + k if sg.static(dtype is sg.i32) else (a + 2 * b - c) * 0.5 + k
                    b = max(a, b) - min(b, c)
                    c = a - b + 3 * c - 2 * c
                y[i][1] = a
                y[i][3] = b
                if flag[i] > 1:
                    y[i][width - 1] = c

    rng = np.random.default_rng(n + width)
    data = rng.integers(-20, 20, (n, width)).astype(dtype.np)
    flags = np.where(np.arange(n) % 64 < 32, 2, rng.integers(0, 3, n)).astype(np.int32)
    before = rng.integers(100, 200, (n, width)).astype(dtype.np)
    x.from_numpy(data)
    y.from_numpy(before)
    flag.from_numpy(flags)
    run()
    a, b, c = (data[:, k].astype(np.float64 if dtype is sg.f32 else np.int64) for k in (0, 2, width - 1))
    for k in range(10):
        a = (a + 2 * b - c) // 2 + k if dtype is sg.i32 else (a + 2 * b - c) * 0.5 + k
        b = np.maximum(a, b) - np.minimum(b, c)
        c = a - b + 3 * c - 2 * c
    expected = before.copy()
    for column, values, least in ((1, a, 1), (3, b, 1), (width - 1, c, 2)):
        expected[:, column] = np.where(flags >= least, values, expected[:, column])
    np.testing.assert_allclose(y.to_numpy(), expected, rtol=1e-5, atol=1e-3)
