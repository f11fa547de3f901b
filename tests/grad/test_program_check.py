"""`sg.ad.gradcheck` of whole programs: rows for each input, in f32 and f64."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
N = 4
START = np.linspace(0.2, 1.4, N)


def pendulums(t: Any, wrong: bool = False, **form: Any) -> Any:
    """A program of pendulums of type ``t``; with a gradient that is too large by 4 % for one element, if it is to be ``wrong``."""
    start, speed, rate, loss = (sg.field(t, shape, needs_grad=True) for shape in (N, N, (), ()))

    @sg.kernel
    def step():
        for i in start:
            speed[i] -= rate[None] * sg.sin(start[i])
            start[i] += rate[None] * speed[i]

    @sg.kernel
    def measure():
        for i in start:
            loss[None] += sg.cos(start[i])

    @sg.kernel
    def spoil():
        start.grad[2] = start.grad[2] * 1.04

    @sg.ad.grad_replaced
    def nothing():
        pass

    @sg.ad.grad_for(nothing)
    def too_much():
        spoil()

    def simulate(steps=30):
        speed.fill(0.0)
        if wrong:
            nothing()
        for _ in range(steps):
            step()
        measure()

    return sg.ad.program(simulate, form.get("inputs", {"start": start, "rate": rate}), loss)


@pytest.mark.parametrize("t", [sg.f32, sg.f64])
def test_a_row_for_each_input(t: Any) -> None:
    needs.of_type(t)
    result = sg.ad.gradcheck(pendulums(t), {"start": START, "rate": 0.1}, steps=12)
    assert result and result.kernel == "simulate"
    assert [(row.name, row.compared, row.elements) for row in result.rows] == [("inputs['start']", N, N), ("inputs['rate']", 1, 1)]
    assert all(row.error < (1e-2 if t is sg.f32 else 1e-6) * max(abs(row.difference), 0.1) for row in result.rows)
    assert result.rows[1].index == ()


@pytest.mark.parametrize("t", [sg.f32, sg.f64])
def test_a_wrong_gradient_is_found(t: Any) -> None:
    needs.of_type(t)
    program, values = pendulums(t, wrong=True), {"start": START, "rate": 0.1}
    result = sg.ad.gradcheck(program, values, raise_exception=False)
    row = result.rows[0]
    assert not result and row.first_wrong == row.index == (2,) and abs(row.gradient / row.difference - 1.04) < 0.01
    with pytest.raises(sg.SpirogradAssertionError, match=r"the gradient of program `simulate` by `inputs\['start'\]` is not"):
        sg.ad.gradcheck(program, values)


def test_what_is_no_program() -> None:
    with pytest.raises(sg.SpirogradTypeError, match="takes a kernel or a program, not int"):
        sg.ad.gradcheck(3)
