"""Elements that a `while` reads and that are overwritten in place afterwards: values that no memory keeps, and that several loads give;
and loops whose conditions read such elements, so that how many values are saved follows only from what the kernel writes.

Compared with central differences, in f64, of the same programs in NumPy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import spirograd as sg

N = 4
V, Y = np.linspace(0.403, 1.107, 2 * N).reshape(N, 2), np.linspace(0.3, 0.9, N)


@sg.kernel
def one_component(v: sg.template(), y: sg.template()):
    for i in y:
        a = 1.0
        q = 0
        while q < 2 and v[i][0] < 3.0:
            q += 1
            a += 0.3 * (sg.sin(a) * (v[i][0] * v[i][0]))
            y[i] += a * v[i][0]
        v[i][0] += 0.3 * (v[i][1] * v[i][0])
        a = 0.5 * ((y[i] * v[i][0]) * a)
        y[i] += v[i][0] * a


def one_component_of(v: list[float], y: float) -> tuple[list[float], float]:
    a = 1.0
    for _ in range(2):
        a += 0.3 * (math.sin(a) * (v[0] * v[0]))
        y += a * v[0]
    v = [v[0] + 0.3 * (v[1] * v[0]), v[1]]
    a = 0.5 * ((y * v[0]) * a)
    return v, y + v[0] * a


@sg.kernel
def indexed(v: sg.template(), y: sg.template()):
    for i in y:
        a = 1.0
        c = int(v[i][0] * 3.0) & 1
        q = 0
        while q < 2 and v[i][c] < 3.0:
            q += 1
            a += 0.3 * (sg.sin(a) * (v[i][c] * v[i][1]))
        v[i][c] += 0.3 * (v[i][0] * (v[i][1] * v[i][c]))
        a = 0.5 * (y[i] * v[i][0] * a)
        y[i] += v[i][0] * a


def indexed_of(v: list[float], y: float) -> tuple[list[float], float]:
    a, c, v = 1.0, int(v[0] * 3.0) & 1, list(v)
    for _ in range(2):
        a += 0.3 * (math.sin(a) * (v[c] * v[1]))
    v[c] += 0.3 * (v[0] * (v[1] * v[c]))
    a = 0.5 * (y * v[0] * a)
    return v, y + v[0] * a


@sg.kernel
def loops_in_each_other(v: sg.template(), y: sg.template()):
    for i in y:
        for _ in range(3):
            a = 1.0
            while a < 4.0:
                a += 0.7 + v[i][0] * v[i][0] * v[i][1]
            v[i][1] = v[i][1] * 0.5 + 0.1 * a * v[i][0]
            v[i][0] *= 0.9 * v[i][1]
            y[i] += a * v[i][0] * v[i][0]
        v[i] *= v[i][0] + 1.0


def loops_in_each_other_of(v: list[float], y: float) -> tuple[list[float], float]:
    for _ in range(3):
        a = 1.0
        while a < 4.0:
            a += 0.7 + v[0] * v[0] * v[1]
        v = [v[0], v[1] * 0.5 + 0.1 * a * v[0]]
        v = [v[0] * 0.9 * v[1], v[1]]
        y += a * v[0] * v[0]
    return [v[0] * (v[0] + 1.0), v[1] * (v[0] + 1.0)], y


@sg.kernel
def more_iterations(v: sg.template(), y: sg.template()):
    for i in y:
        c = int(v[i][0] * 3.0) & 1
        v[i][c] *= 0.3
        q = 0
        while q < 6 and v[i][c] < 0.4:  # no iteration for what memory holds before the kernel
            q += 1
            y[i] += v[i][c] * v[i][1] * v[i][0]
            v[i][1] = sg.sin(v[i][1] + 0.1 * v[i][c])
            v[i][1 - c] *= 0.9 * y[i]
            v[i][c] = 0.1 * v[i][0] * v[i][0]


def more_iterations_of(v: list[float], y: float) -> tuple[list[float], float]:
    c, v = int(v[0] * 3.0) & 1, list(v)
    v[c] *= 0.3
    q = 0
    while q < 6 and v[c] < 0.4:
        q += 1
        y += v[c] * v[1] * v[0]
        v[1] = math.sin(v[1] + 0.1 * v[c])
        v[1 - c] *= 0.9 * y
        v[c] = 0.1 * v[0] * v[0]
    return v, y


PROGRAMS = {
    "one component": (one_component, one_component_of),
    "indexed at run time": (indexed, indexed_of),
    "more iterations than memory tells": (more_iterations, more_iterations_of),
    "loops in each other": (loops_in_each_other, loops_in_each_other_of),
}


def total(function: Any, v: np.ndarray, y: np.ndarray) -> float:
    results = [function(list(one), other) for one, other in zip(v, y)]
    return sum(1.5 * a + 0.7 * b + 2.0 * c for (a, b), c in results)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("arrays", [False, True])
def test_gradients(session: Any, name: str, arrays: bool) -> None:
    kernel, function = PROGRAMS[name]
    v = sg.Vector.ndarray(2, sg.f32, N, needs_grad=True) if arrays else sg.Vector.field(2, sg.f32, N, needs_grad=True)
    y = sg.ndarray(sg.f32, N, needs_grad=True) if arrays else sg.field(sg.f32, N, needs_grad=True)
    v.from_numpy(V.astype(np.float32))
    y.from_numpy(Y.astype(np.float32))
    with sg.ad.Tape() as tape:
        kernel(v, y)
    v.grad.from_numpy(np.tile(np.array([1.5, 0.7], np.float32), (N, 1)))
    y.grad.fill(2.0)
    tape.grad()
    for memory, start in ((v, V), (y, Y)):
        wanted = np.zeros(start.shape)
        for index in np.ndindex(start.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = start.copy()
                moved[index] += step
                ends.append(total(function, moved, Y) if start is V else total(function, V, moved))
            wanted[index] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(memory.grad.to_numpy(), wanted, rtol=2e-4, atol=1e-4)
