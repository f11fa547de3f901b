"""What tells the iterations of a task that have tapes from those that have none: conditions of every kind; see `test_sparse`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import needs
import numpy as np
import pytest
from grad.chains import AMPLIFIED, advance
from grad.guarded import Data, N, masks

import spirograd as sg

THIRD = 1 / 3

# Each gives the kernel, how to write the data so that a mask comes true, and what becomes of the other elements.

Guard = tuple[Any, Callable[[np.ndarray, np.random.Generator], None], float]


def compound(data: Data) -> Guard:
    x, y, trips, a, b = data.x, data.y, data.trips, data.a, data.b

    @sg.kernel
    def run():
        for i in x:
            if (a[i] > 0.25 and b[i] % 3 == 1) or a[i] < -0.5:
                v = x[i]
                for _ in range(trips[i]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

    def write(on: np.ndarray, rng: np.random.Generator) -> None:
        which = rng.integers(0, 2, data.n)
        a.from_numpy(np.where(on, np.where(which, 0.5, -1.0), np.where(which, 0.5, 0.0)).astype(np.float32))
        b.from_numpy(np.where(on, 3 * which + 1, np.where(which, 3, 1)).astype(np.int32))

    return run, write, 0.0


def arithmetic(data: Data) -> Guard:
    x, y, trips, a, b = data.x, data.y, data.trips, data.a, data.b

    @sg.kernel
    def run():
        for i in x:
            if 3.0 * a[i] - b[i] * b[i] + sg.sqrt(a[i]) > 0.5:
                v = x[i]
                for _ in range(trips[i]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

    def write(on: np.ndarray, rng: np.random.Generator) -> None:
        b.from_numpy(rng.integers(-3, 4, data.n).astype(np.int32))
        a.from_numpy((np.where(on, 4.0, 0.0) + (b.to_numpy() ** 2 - 0.25) * on / 3).astype(np.float32))

    return run, write, 0.0


def indirect(data: Data) -> Guard:
    x, y, trips, b, at = data.x, data.y, data.trips, data.b, data.at

    @sg.kernel
    def run():
        for i in x:
            if b[at[at[i]]] > 5:
                v = x[i]
                for _ in range(trips[i]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

    def write(on: np.ndarray, rng: np.random.Generator) -> None:
        order = rng.permutation(data.n)
        values = np.zeros(data.n, np.int32)
        values[order[order]] = np.where(on, 9, 5)
        at.from_numpy(order.astype(np.int32))
        b.from_numpy(values)

    return run, write, 0.0


def double(data: Data) -> Guard:
    """Numbers that are the same in f32."""
    x, y, trips, d = data.x, data.y, data.trips, data.d
    limit = sg.field(sg.f64, ())
    limit[None] = THIRD

    @sg.kernel
    def run():
        for i in x:
            if d[i] > limit[None]:
                v = x[i]
                for _ in range(trips[i]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

    def write(on: np.ndarray, rng: np.random.Generator) -> None:
        d.from_numpy(np.where(on, np.nextafter(THIRD, 1), THIRD))

    return run, write, 0.0


def nested(data: Data) -> Guard:
    x, y, trips, a, b = data.x, data.y, data.trips, data.a, data.b

    @sg.kernel
    def run():
        for i in x:
            if a[i] > 0.0:
                y[i] = AMPLIFIED * x[i]
                if b[i] > 0:
                    if i >= 0:
                        v = x[i]
                        for _ in range(trips[i]):
                            v = advance(v)
                        y[i] = AMPLIFIED * v
                else:
                    y[i] = 3.0 * x[i]
            else:
                y[i] = 3.0 * x[i]

    def write(on: np.ndarray, rng: np.random.Generator) -> None:
        which = rng.integers(0, 2, data.n)
        a.from_numpy(np.where(on | (which == 1), 1.0, 0.0).astype(np.float32))
        b.from_numpy(np.where(on, 1, -which).astype(np.int32))

    return run, write, 3.0


def otherwise(data: Data) -> Guard:
    """In the last branch of a chain."""
    x, y, trips, b = data.x, data.y, data.trips, data.b

    @sg.kernel
    def run():
        for i in x:
            if b[i] == 0:
                y[i] = 3.0 * x[i]
            elif b[i] == 1:
                y[i] = x[i] + 2.0 * x[i]
            else:
                v = x[i]
                for _ in range(trips[i]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

    def write(on: np.ndarray, rng: np.random.Generator) -> None:
        b.from_numpy(np.where(on, 2, rng.integers(0, 2, data.n)).astype(np.int32))

    return run, write, 3.0


def after_other_work(data: Data) -> Guard:
    """The condition comes from a loop, which has no tape; and there is more after it."""
    x, y, trips, b = data.x, data.y, data.trips, data.b

    @sg.kernel
    def run():
        for i in x:
            total = 0
            for k in range(4):
                total += (b[i] >> k) & 1
            v = 3.0 * x[i]
            if total >= 2:
                v = x[i]
                for _ in range(trips[i]):
                    v = advance(v)
                v = 0.5 * v * AMPLIFIED
                v *= 2.0
            y[i] += v

    def write(on: np.ndarray, rng: np.random.Generator) -> None:
        b.from_numpy(np.where(on, rng.choice([3, 5, 14, 15], data.n), rng.choice([0, 1, 2, 8], data.n)).astype(np.int32))

    return run, write, 3.0


def skipped(data: Data) -> Guard:
    """`continue`, in a loop over ranges that does not begin with 0."""
    x, y, trips, b, n = data.x, data.y, data.trips, data.b, data.n

    @sg.kernel
    def run():
        for k in range(5, n + 5):
            i = k - 5
            if b[i] < 1:
                continue
            v = x[i]
            for _ in range(trips[i]):
                v = advance(v)
            y[i] = AMPLIFIED * v

    def write(on: np.ndarray, rng: np.random.Generator) -> None:
        b.from_numpy(on.astype(np.int32))

    return run, write, 0.0


GUARDS = [compound, arithmetic, indirect, double, nested, otherwise, after_other_work, skipped]


@pytest.mark.vulkan_or_wgpu
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.__name__)
def test_conditions(guard: Callable[[Data], Guard]) -> None:
    """Some pass, none, all, one; and so on, as launch follows launch."""
    if guard is double:
        needs.of_type(sg.f64)
    data = Data(N, f64=guard is double)
    run, write, off = guard(data)
    rng = np.random.default_rng(3)
    for on in masks(N):
        write(on, rng)
        data.check(run, on, rng.integers(0, 9, N), off)
    data.check(run, on, np.full(N, 30), off)
