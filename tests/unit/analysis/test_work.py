"""Bytes and operations of tasks, against what the source says."""

from __future__ import annotations

import pytest

import spirograd as sg
from spirograd.base.artifact import Work


def work(kernel) -> list[Work]:
    kernel()
    return [task.work for task in kernel._last.plan.compiled.tasks]


@pytest.fixture(autouse=True)
def session():
    sg.init(arch=sg.cpu)
    yield
    sg.reset()


def test_what_counts():
    x, y, n = sg.field(sg.f64, shape=16), sg.field(sg.i32, shape=16), sg.field(sg.i32, shape=())
    v = sg.Vector.field(3, sg.f32, shape=16)

    @sg.kernel
    def plain():
        for i in x:
            x[i] = sg.sin(x[i]) + 2.0 * n[None]  # n is one place for all

    @sg.kernel
    def integers():
        for i in y:
            y[i] = y[i] * 3 + i

    @sg.kernel
    def vectors():
        for i in v:
            v[i] = v[i] * 2.0

    @sg.kernel
    def atomics():
        for i in y:
            y[y[i] % 16] += 1

    assert work(plain) == [Work(16, 3, True)]
    assert work(integers) == [Work(8, 0, True)]
    assert work(vectors) == [Work(24, 3, True)]
    assert work(atomics) == [Work(12, 0, True)]


def test_loops_and_branches():
    x, n = sg.field(sg.f32, shape=16), sg.field(sg.i32, shape=())

    @sg.kernel
    def known():
        for i in x:
            s = 0.0
            for j in range(16):
                s += x[j]
            x[i] = s

    @sg.kernel
    def unknown():
        for i in x:
            s = 0.0
            for j in range(n[None]):
                s += x[j]
            x[i] = s

    @sg.kernel
    def branches():
        for i in x:
            if x[i] > 1.0:
                x[i] = x[i] * 2.0 + 1.0
            else:
                x[(i + 1) % 16] = 3.0

    assert work(known) == [Work(4 * 16 + 4, 16, True)]
    assert work(unknown) == [Work(8, 1, False)]
    (found,) = work(branches)
    assert found.exact and found.nbytes == 8 and found.operations in (1, 2)  # a product and a sum may be one operation
