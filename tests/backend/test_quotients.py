"""Quotients of f32 that lie as close as possible to the middle of two neighbours: one wrong bit in a division shows here first."""

from __future__ import annotations

import numpy as np
import pytest
from backend.twin import exact_division

import spirograd as sg

BITS = 24


def hard_quotients(divisors: np.ndarray, shift: int, distance: int) -> tuple[np.ndarray, np.ndarray]:
    """Dividends A and divisors B of 24 bits for which A * 2 ** shift is ``distance`` modulo B, and the quotient nearly the middle of two
    numbers with 24 bits. ``divisors``: odd."""
    inverse = np.ones_like(divisors)  # of 2 ** k modulo B, for k from 0
    for _ in range(shift):
        inverse = np.where(inverse & 1, inverse + divisors, inverse) >> 1
    dividends = inverse * distance % divisors
    dividends = np.where(dividends < 1 << (BITS - 1), dividends + divisors, dividends)
    fits = (dividends < 1 << BITS) & ((dividends >= divisors) == (shift == BITS))
    fits &= ((dividends << shift) - distance) // divisors % 2 == 1
    return dividends[fits].astype(np.float32), divisors[fits].astype(np.float32)


@pytest.mark.parametrize("step", [127, pytest.param(1, marks=pytest.mark.long)])
def test_hard_quotients(arch: str, step: int) -> None:
    sg.init(arch=arch)
    odd = np.append(np.arange((1 << (BITS - 1)) + 1, 1 << BITS, 2 * step, np.int64), (1 << BITS) - 1)

    @sg.kernel
    def divide(a: sg.types.ndarray(sg.f32, 1), b: sg.types.ndarray(sg.f32, 1), q: sg.types.ndarray(sg.f32, 1)):
        for i in a:
            q[i] = a[i] / b[i]

    for shift in (BITS, BITS + 1):
        for distance in (-5, -3, -1, 1, 3, 5):  # even ones have even quotients
            a, b = hard_quotients(odd, shift, distance)
            assert len(a) > len(odd) // 32
            q = np.empty_like(a)
            divide(a, b, q)
            if exact_division():
                np.testing.assert_array_equal(q, a / b)
            else:
                np.testing.assert_array_max_ulp(q, a / b, 3)


def test_roots(arch: str) -> None:
    sg.init(arch=arch)
    bits = np.concatenate([np.arange(0x3F800000, 0x40800000, 97), np.arange(0, 0x7F800000, 65_537)])
    x = bits.astype(np.uint32).view(np.float32)
    if arch in ("vulkan", "wgpu"):
        x = x[x >= np.finfo(np.float32).tiny]

    @sg.kernel
    def roots(x: sg.types.ndarray(sg.f32, 1), y: sg.types.ndarray(sg.f32, 1)):
        for i in x:
            y[i] = sg.sqrt(x[i])

    y = np.empty_like(x)
    roots(x, y)
    if exact_division():
        np.testing.assert_array_equal(y, np.sqrt(x))
    else:
        np.testing.assert_array_max_ulp(y, np.sqrt(x), 3)
