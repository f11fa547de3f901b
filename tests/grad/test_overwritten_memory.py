"""Memory that a kernel overwrites and its gradient needs: a tape saves it; a bare `.grad()` is refused at the line marked ``# NEEDED``."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest
from grad.check import Program, check, check_replay
from grad.refusals import refused

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session")]
N = 7


def xy(t: Any, n: int = N) -> tuple[Any, Any]:
    return sg.field(t, shape=n, needs_grad=True), sg.field(t, shape=n, needs_grad=True)


def read_then_write(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            y[i] = sg.sin(y[i]) * x[i]  # NEEDED

    return Program(run, [x, y], tape=True)


def in_place_step(t: Any) -> Program:
    """Time steps of an oscillator in one kernel, in place."""
    at, speed = xy(t)

    @sg.kernel
    def run(n: sg.i32):
        for i in at:
            for step in range(n):
                speed[i] -= sg.sin(at[i]) * t(0.1)  # NEEDED
                at[i] += speed[i] * speed[i] * t(0.1)

    return Program(run, [at, speed], [5], tape=True)


def scan(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for once in range(1):
            for i in range(1, N):
                y[i] = y[i - 1] * x[i] + sg.sin(y[i])  # NEEDED

    return Program(run, [x, y], tape=True)


def scan_in_serial_code(t: Any) -> Program:
    x, _ = xy(t)

    @sg.kernel
    def run(n: sg.i32):
        sg.loop_config(serialize=True)
        for i in range(1, n):
            x[i] += x[i - 1] * x[i - 1] * t(0.7)  # NEEDED

    return Program(run, [x], [N], tape=True)


def scan_into_another_array(t: Any) -> Program:
    """The prefix product: a need of ``y`` as it becomes, which is not proved, so that a tape notes what is read."""
    x, y = xy(t)

    @sg.kernel
    def run():
        for once in range(1):
            y[0] = x[0]
            for i in range(1, N):
                y[i] = y[i - 1] * x[i]  # NEEDED

    return Program(run, [x, y], tape=True)


def swap(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            a = x[i]  # NEEDED
            x[i] = y[i] * a
            y[i] = sg.exp(a)

    return Program(run, [x, y], tape=True)


def two_tasks_in_place(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            y[i] = x[i] * x[i]  # NEEDED
        for i in x:
            x[i] = y[(i + 1) % N] * y[i]

    return Program(run, [x, y], tape=True)


def element_through_a_loop(t: Any) -> Program:
    """An accumulator in memory, multiplied."""
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            for j in range(5):
                y[i] = y[i] * x[j] + t(0.2)  # NEEDED

    return Program(run, [x, y], tape=True)


def rows_of_a_matrix(t: Any) -> Program:
    """Elimination in place."""
    a = sg.field(t, shape=(3, 3), needs_grad=True)

    @sg.kernel
    def run():
        for once in range(1):
            for k in range(3):
                for i in range(k + 1, 3):
                    f = a[i, k] / (a[k, k] + t(3.0))  # NEEDED
                    for j in range(k, 3):
                        a[i, j] -= f * a[k, j]

    return Program(run, [a], tape=True)


def bounds_that_the_kernel_overwrites(t: Any) -> Program:
    x, y = xy(t)
    n = sg.field(sg.i32, shape=N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(n[i]):  # NEEDED
                v = sg.sin(v) * x[j]
            n[i] = 1
            y[i] = v

    return Program(run, [x, y], prepare=lambda trial: n.from_numpy(np.arange(N, dtype=np.int32)), tape=True)


def branch_on_what_is_overwritten(t: Any) -> Program:
    x, y = xy(t)
    flag = sg.field(sg.i32, shape=N)

    @sg.kernel
    def run():
        for i in x:
            if flag[i] == 1:  # NEEDED
                y[i] += x[i] * x[i]
            flag[i] = 1 - flag[i]

    return Program(run, [x, y], prepare=lambda trial: flag.from_numpy(np.arange(N, dtype=np.int32) % 2), tape=True)


OVERWRITING = [
    read_then_write,
    in_place_step,
    scan,
    scan_in_serial_code,
    scan_into_another_array,
    swap,
    two_tasks_in_place,
    element_through_a_loop,
    rows_of_a_matrix,
    bounds_that_the_kernel_overwrites,
    branch_on_what_is_overwritten,
]


@pytest.mark.parametrize("case", OVERWRITING, ids=lambda case: case.__name__)
def test_overwritten_memory_is_saved_by_a_tape(case: Any) -> None:
    check(case, sg.f32)


@pytest.mark.parametrize("case", OVERWRITING, ids=lambda case: case.__name__)
def test_overwritten_memory_is_saved_by_a_replay(case: Any) -> None:
    check_replay(case)


@pytest.mark.parametrize("case", OVERWRITING, ids=lambda case: case.__name__)
def test_overwritten_memory_is_refused_without_a_tape(case: Any) -> None:
    program = case(sg.f32)
    program.run(program.values(0), 0)
    refused(lambda: program.kernel.grad(*program.args), case, "NEEDED", "overwrites", "sg.ad.Tape")


def test_a_later_kernel_overwrites_what_an_earlier_one_needs() -> None:
    x, y = xy(sg.f32)
    loss = sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def square():
        for i in x:
            y[i] = x[i] * x[i]

    @sg.kernel
    def change():
        for i in x:
            x[i] = sg.sin(x[i]) + y[i]

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i] * x[i] * y[i]

    values = np.linspace(0.3, 1.1, N).astype(np.float32)
    for _ in range(2):
        x.from_numpy(values)
        y.fill(0)
        loss.fill(0)
        with sg.ad.Tape(loss=loss):
            square()
            change()
            square()
            change()
            total()
        torch = needs.package("torch")
        a = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        b = a * a
        c = torch.sin(a) + b
        d = c * c
        e = torch.sin(c) + d
        (e * e * d).sum().backward()
        np.testing.assert_allclose(x.grad.to_numpy(), a.grad.numpy(), rtol=1e-3)


def test_the_host_overwrites_what_a_kernel_needs() -> None:
    x, _ = xy(sg.f32)
    loss = sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def add():
        for i in x:
            loss[None] += x[i] * x[i]

    x.fill(3.0)
    with sg.ad.Tape(loss=loss):
        add()
        x.fill(100.0)
        x[1] = 50.0
    np.testing.assert_allclose(x.grad.to_numpy(), 6.0)  # by x as it was when the tape began

    x.fill(3.0)
    loss.fill(0)
    with sg.ad.Tape(loss=loss):
        add()
        add()
    np.testing.assert_allclose(x.grad.to_numpy(), 12.0)
