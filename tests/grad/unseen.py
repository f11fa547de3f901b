"""Memory that was handed out, and kernels that read it: what tests of unseen writes share."""

from __future__ import annotations

from typing import Any

import pytest

import spirograd as sg

N = 5


def view_of(memory: Any) -> Any:
    """A view of the memory itself; the test is skipped where there is none."""
    try:
        return memory.to_numpy(copy=False)
    except sg.SpirogradValueError:
        pytest.skip("missing memory that the host can address: not on this device")


def memory_of(kind: str, shape: Any = N, dtype: Any = sg.f32, needs_grad: bool = True) -> Any:
    return (sg.field if kind == "field" else sg.ndarray)(dtype, shape=shape, needs_grad=needs_grad)


@sg.kernel
def weighted_field(w: sg.template(), s: sg.template(), loss: sg.template()):
    for i in s:
        loss[None] += w[i] * s[i]


@sg.kernel
def weighted_array(w: sg.types.ndarray(), s: sg.types.ndarray(), loss: sg.types.ndarray()):
    for i in range(s.shape[0]):
        loss[None] += w[i] * s[i]


@sg.kernel
def squares_field(x: sg.template(), y: sg.template(), factor: sg.f32):
    for i in x:
        y[i] = factor * x[i] * x[i]


@sg.kernel
def squares_array(x: sg.types.ndarray(), y: sg.types.ndarray(), factor: sg.f32):
    for i in range(x.shape[0]):
        y[i] = factor * x[i] * x[i]


WEIGHTED = {"field": weighted_field, "array": weighted_array}
SQUARES = {"field": squares_field, "array": squares_array}
KINDS = pytest.mark.parametrize("kind", ["field", "array"])
