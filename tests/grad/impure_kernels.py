"""Kernels that no function of another framework can be: they use, draw or write what is not among their arguments and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import spirograd as sg

LINE = sg.types.NDArray[sg.f32, 1]


@dataclass(frozen=True)
class Impure:
    """``made``: makes the kernel in the current session. ``message``: what errors say of it."""

    made: Callable[[], Any]
    message: str


def uses_field() -> Any:
    field = sg.field(sg.f32, shape=4)

    @sg.kernel
    def kernel(a: LINE, b: LINE):
        for i in a:
            b[i] = a[i] * field[0]

    return kernel


def uses_array() -> Any:
    array = sg.ndarray(sg.f32, 4)

    @sg.kernel
    def kernel(a: LINE, b: LINE):
        for i in a:
            b[i] = a[i] * array[0]

    return kernel


def draws() -> Any:
    @sg.kernel
    def kernel(a: LINE, b: LINE):
        for i in a:
            b[i] = a[i] * sg.random()

    return kernel


def writes_input() -> Any:
    @sg.kernel
    def kernel(a: LINE, b: LINE):
        for i in a:
            a[i] = 1.0
            b[i] = a[i]

    return kernel


KERNELS = {
    "field": Impure(uses_field, r"uses the field `field`[^$]*b\[i\] = a\[i\] \* field\[0\]"),
    "array": Impure(uses_array, "uses the ndarray `array`"),
    "random": Impure(draws, "draws random numbers"),
    "input": Impure(writes_input, "writes to `a`, which is not among the outputs"),
}
