"""Elements that several iterations update: right where the result is defined by memory, refused where it depends on the order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from grad.check import Program, check

import spirograd as sg
from spirograd.base.errors import SpirogradCompilationError, SpirogradUnsupportedError

N = 7
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]


def fields(t: Any) -> tuple[Any, Any, Any, Any]:
    """Three rows and a scalar."""
    return (*[sg.field(t, shape=N, needs_grad=True) for _ in range(3)], sg.field(t, shape=(), needs_grad=True))


# --- right -----------------------------------------------------------------------------------------------------------------


def running_sum_in_order(t: Any) -> Program:
    x, y, _, total = fields(t)

    @sg.kernel
    def run():
        for _ in range(1):
            for i in range(N):
                before = sg.atomic_add(total[None], x[i])
                y[i] = before * before

    return Program(run, [x, y, total], tape=True)


def sums_of_own_elements(t: Any) -> Program:
    x, y, z, _ = fields(t)

    @sg.kernel
    def run():
        for i in x:
            a = sg.atomic_add(z[i], x[i])
            b = sg.atomic_add(z[i], x[i] * a)
            y[i] = a * b

    return Program(run, [x, y, z], tape=True)


def maximum_after_a_store(t: Any) -> Program:
    x, y, _, top = fields(t)

    @sg.kernel
    def run():
        for _ in range(1):
            top[None] = x[3]
        for i in x:
            sg.atomic_max(top[None], x[i] * y[i])
        for i in x:
            y[i] = top[None]

    return Program(run, [x, y, top], tape=True)


def maximum_in_two_parts(t: Any) -> Program:
    x, y, z, top = fields(t)

    @sg.kernel
    def run():
        for i in x:
            sg.atomic_max(top[None], x[i])
        for i in x:
            sg.atomic_max(top[None], z[i] * t(2.0))
        for i in y:
            y[i] = top[None] * x[i]

    return Program(run, [x, y, z, top], tape=True)


RIGHT = [running_sum_in_order, sums_of_own_elements, maximum_after_a_store, maximum_in_two_parts]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.__name__)
def test_right(case: Callable[[Any], Program]) -> None:
    check(case, sg.f32)


# --- refused ---------------------------------------------------------------------------------------------------------------


def running_sum(t: Any) -> Any:
    x, y, _, total = fields(t)

    @sg.kernel
    def run():
        for i in x:
            before = sg.atomic_add(total[None], x[i])
            y[i] = before * before

    return run


def running_sum_in_an_inner_loop(t: Any) -> Any:
    x, y, _, total = fields(t)

    @sg.kernel
    def run():
        for i in x:
            for j in range(3):
                y[i] += x[j] * sg.atomic_add(total[None], x[i])

    return run


def maximum_read_on_the_way(t: Any) -> Any:
    x, y, z, top = fields(t)

    @sg.kernel
    def run():
        for i in x:
            sg.atomic_max(top[None], x[i])
        for i in y:
            y[i] = top[None] * x[i]
        for i in x:
            sg.atomic_max(top[None], z[i])

    return run


def own_maximum_read_on_the_way(t: Any) -> Any:
    x, y, z, _ = fields(t)

    @sg.kernel
    def run():
        for i in x:
            sg.atomic_max(y[i], x[i])
            z[i] = y[i] * y[i]
            sg.atomic_max(y[i], x[(i + 1) % N])

    return run


def old_maximum(t: Any) -> Any:
    x, y, z, _ = fields(t)

    @sg.kernel
    def run():
        for i in x:
            sg.atomic_max(y[i], x[i])
            z[i] = sg.atomic_max(y[i], x[(i + 1) % N])

    return run


def running_maximum(t: Any) -> Any:
    x, y, z, _ = fields(t)

    @sg.kernel
    def run():
        for _ in range(1):
            for j in range(N):
                sg.atomic_max(y[j % 2], x[j])
                z[j] = y[j % 2] * x[j]

    return run


def maximum_reset_in_a_loop(t: Any) -> Any:
    x, y, z, _ = fields(t)

    @sg.kernel
    def run():
        for _ in range(1):
            for j in range(N):
                y[j % 2] = z[j]
                sg.atomic_max(y[j % 2], x[j])

    return run


def local_maximum_read_on_the_way(t: Any) -> Any:
    x, y, z, total = fields(t)

    @sg.kernel
    def run():
        top = t(0.0)
        for i in x:
            sg.atomic_max(top, x[i])
        for i in y:
            y[i] = top * x[i]
        for i in x:
            sg.atomic_max(top, z[i])
        total[None] = top

    return run


REFUSED = [
    running_sum,
    running_sum_in_an_inner_loop,
    maximum_read_on_the_way,
    own_maximum_read_on_the_way,
    old_maximum,
    running_maximum,
    maximum_reset_in_a_loop,
    local_maximum_read_on_the_way,
]


def test_a_running_sum_in_memory_without_gradient() -> None:
    x, y, _, _ = fields(sg.f32)
    total = sg.field(sg.f32, shape=())

    @sg.kernel
    def run():
        for i in x:
            before = sg.atomic_add(total[None], x[i])
            y[i] = before * before

    with pytest.raises(SpirogradCompilationError, match="gradients end"), sg.ad.Tape():
        run()


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_refused(make: Callable[[Any], Any]) -> None:
    run = make(sg.f32)
    with pytest.raises(SpirogradUnsupportedError, match="atomic"), sg.ad.Tape():  # shows the line of the atomic
        run()
