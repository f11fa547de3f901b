"""Loops over two axes whose bodies are under a condition, which may be the same in a row, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

SHAPES = ((7, 16), (5, 33), (1, 64), (40, 100), (3, 15))


def fields(shape: tuple[int, int]) -> tuple[Any, Any, Any, np.ndarray, np.ndarray]:
    x, flag, total = sg.field(sg.i32, shape), sg.field(sg.i32, shape[0]), sg.field(sg.i32, 2)
    rng = np.random.default_rng(3)
    flags, data = rng.integers(0, 2, shape[0]).astype(np.int32), rng.integers(0, 50, shape).astype(np.int32)
    x.from_numpy(data)
    flag.from_numpy(flags)
    return x, flag, total, flags, data


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_that_run_or_not(session: Any, shape: tuple[int, int]) -> None:
    x, flag, total, flags, data = fields(shape)

    @sg.kernel
    def change():
        for i, j in x:
            if flag[i] > 0:
                x[i, j] += 10 * i + j

    @sg.kernel
    def add():
        for i, j in x:
            if flag[i] > 0:
                total[0] += x[i, j]
            else:
                total[1] += x[i, j]

    @sg.kernel
    def add_some():
        for i, j in x:
            if flag[i] > 0:
                total[0] += x[i, j]

    change()
    i, j = np.indices(shape)
    expected = data + np.where(flags[:, None] > 0, 10 * i + j, 0)
    np.testing.assert_array_equal(x.to_numpy(), expected)
    add()
    np.testing.assert_array_equal(total.to_numpy(), [expected[flags > 0].sum(), expected[flags == 0].sum()])
    add_some()
    assert total[0] == 2 * expected[flags > 0].sum()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_conditions_that_the_loop_changes(session: Any, shape: tuple[int, int]) -> None:
    """The first column of a row clears its flag, so the others do not run."""
    x, flag, _, flags, data = fields(shape)

    @sg.kernel
    def change():
        for _ in range(1):
            for i, j in sg.ndrange(*shape):
                if flag[i] > 0:
                    x[i, j] = -1
                    flag[i] = 0

    change()
    expected = data.copy()
    expected[flags > 0, 0] = -1
    np.testing.assert_array_equal(x.to_numpy(), expected)
    assert not flag.to_numpy().any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_beside_the_condition(session: Any, shape: tuple[int, int]) -> None:
    """What differs within a row is computed beside it, and the condition may stand in another one."""
    x, flag, _, flags, data = fields(shape)

    @sg.kernel
    def change():
        for i, j in x:
            k = (j * 3) % 7
            if flag[i] > 0 and k > 2:
                x[i, j] = k
            x[i, j] += 1

    change()
    k = (np.indices(shape)[1] * 3) % 7
    np.testing.assert_array_equal(x.to_numpy(), np.where((flags[:, None] > 0) & (k > 2), k, data) + 1)
