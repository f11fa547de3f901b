"""Programs whose loops and branches pass on vectors of 16 elements and more that are indexed at run time, with what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import spirograd as sg

N = 40


def _clipped(x: np.ndarray, n: np.ndarray, y: np.ndarray) -> Any:
    @sg.kernel
    def clip(x: sg.types.NDArray[sg.f32, 1], n: sg.types.NDArray[sg.i32, 1], y: sg.types.NDArray[sg.f32, 1]):  # type: ignore[no-untyped-def]
        for i in x:
            m = sg.Matrix.zero(sg.f32, 16, 2)
            count = 0
            for k in range(n[i]):
                v = x[i] * k
                if v > 1.0:
                    m[count, 0] = v
                    m[count, 1] = v + 1
                    count += 1
                elif count > 0:
                    m[count - 1, 0] += 8.0
            s = 0.0
            for k in range(count):
                s += m[k, 0] * m[k, 1]
            y[i] = s + m[3, 1]

    return clip


def _clipped_in_numpy(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    out = []
    for value, often in zip(x, n):
        m, count = np.zeros((16, 2)), 0
        for k in range(often):
            v = value * k
            if v > 1:
                m[count] = v, v + 1
                count += 1
            elif count > 0:
                m[count - 1, 0] += 8
        out.append((m[:count, 0] * m[:count, 1]).sum() + m[3, 1])
    return np.array(out)


def _exchanged(x: np.ndarray, n: np.ndarray, y: np.ndarray) -> Any:
    @sg.kernel
    def exchange(x: sg.types.NDArray[sg.f32, 1], n: sg.types.NDArray[sg.i32, 1], y: sg.types.NDArray[sg.f32, 1]):  # type: ignore[no-untyped-def]
        for i in x:
            a, b = sg.Vector.zero(sg.f32, 20), sg.Vector.zero(sg.f32, 20)
            k = 0
            while k < n[i]:
                a[k % 20] += x[i]
                for j in range(k):
                    if j % 3 == 1:
                        b[(j + k) % 20] = a[j % 20] + 1.0
                a, b = b, a
                k += 1
            kept = a
            if n[i] % 2 == 0:
                kept = b
                kept[n[i] % 20] = 5.0
            s = 0.0
            for j in range(20):
                s += kept[j] * (j + 1) - b[j]
            y[i] = s

    return exchange


def _exchanged_in_numpy(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    out = []
    for value, often in zip(x, n):
        a, b = np.zeros(20), np.zeros(20)
        for k in range(often):
            a[k % 20] += value
            for j in range(k):
                if j % 3 == 1:
                    b[(j + k) % 20] = a[j % 20] + 1
            a, b = b, a
        kept = a.copy()
        if often % 2 == 0:
            kept = b.copy()
            kept[often % 20] = 5
        out.append((kept * np.arange(1, 21) - b).sum())
    return np.array(out)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., np.ndarray]]] = {
    "clipped": (_clipped, _clipped_in_numpy),
    "exchanged": (_exchanged, _exchanged_in_numpy),
}


def check(name: str) -> None:
    """Run a program in the session that is open, and compare it with NumPy."""
    make, expected = PROGRAMS[name]
    rng = np.random.default_rng(4)
    x, n = rng.uniform(0.05, 1.5, N).astype("f4"), rng.integers(0, 17, N).astype("i4")
    y = np.zeros(N, "f4")
    make(x, n, y)(x, n, y)
    sg.sync()
    np.testing.assert_allclose(y, expected(x.astype("f8"), n), rtol=1e-4, atol=1e-4)
