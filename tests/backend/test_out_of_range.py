"""Kernels without bounds checks that leave their memory by a little."""

import numpy as np
import pytest

import spirograd as sg


@pytest.mark.archs("cpu")  # drivers of graphics cards check or crash as they like
@pytest.mark.parametrize("count", [1, 1000, 70_000, 3_000_000])
@pytest.mark.parametrize("beyond", [1, 1000])
def test_indices_somewhat_out_of_range_harm_nothing_on_the_cpu(session, count: int, beyond: int) -> None:
    arrays = [sg.ndarray(sg.i32, count) for _ in range(3)]

    @sg.kernel
    def leave(a: sg.types.NDArray[sg.i32, 1], n: sg.i32, far: sg.i32) -> sg.i32:
        found = 0
        for i in range(1):
            found += a[n - 1 + far] + a[-far]
            a[n - 1 + far] = 7
            a[-far] = 7
        for i in a:
            a[i] += 1
        return found

    for a in arrays:
        assert leave(a, count, beyond) == 0  # zeros, until somebody writes
        assert leave(a, count, beyond) == 14
    for a in arrays:
        assert (a.to_numpy() == np.full(count, 2)).all()
