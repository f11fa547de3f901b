"""Accesses that a guard keeps out are made by no pass: their index is far out of range, where an access would end the process."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from fuzz.run import load

import spirograd as sg

FAR = 1 << 28
UPDATES = {
    "add": "{x} += v",
    "max": "sg.atomic_max({x}, v)",
    "min": "sg.atomic_min({x}, v)",
    "and": "{x} &= v",
    "or": "{x} |= v",
    "xor": "{x} ^= v",
    "mul": "{x} *= v",
    "keep": "{x} = {x} + v",
    "load": "y[i] += {x} + v",
}
GUARD = "if 0 <= k and k < 6:"
LOOPS = {
    "range": ("for i in range(n):", GUARD),
    "field": ("for i in y:", GUARD),
    "axes": ("for i, j in sg.ndrange(n, 2):", "if k >= 0:", "if k < 6:"),
    "inner": ("for i in range(n):", "for j in range(3):", GUARD),
    "no iteration inside": ("for i in range(n):", "for j in range(m):"),
    "while": ("for i in range(n):", "j = m + 1", "while j > 0:", "j -= 1", GUARD),
    "serial": ("sg.loop_config(serialize=True)", "for i in range(n):", GUARD),
    "no iteration": ("for i in range(m):",),
    "data": ("for i in range(n):", "if y[i] > 0:"),
}
MEMORIES = {"field": "x[k]", "vectors": "x[k][1]", "array": "x[k]", "rows": "x[k, 1]"}


def kernel(update: str, loop: str, memory: str, x: Any, y: Any) -> Any:
    axes = {"array": 1, "rows": 2}.get(memory, 0)
    parameter = f"x: sg.types.NDArray[sg.{x.dtype}, {axes}], " if axes else ""
    value = "v = i + 1" if x.dtype == sg.i32 or update == "load" else "v = y[i]"
    lines, indent = ["@sg.kernel", f"def work({parameter}n: sg.i32, k: sg.i32, m: sg.i32):"], 1
    for line in (*LOOPS[loop], value, UPDATES[update].format(x=MEMORIES[memory])):
        lines.append("    " * indent + line)
        indent += line.endswith(":")
    return load("\n".join(lines) + "\n", {"y": y} if axes else {"x": x, "y": y}, "work")


def memories(memory: str, dtype: Any, grad: bool) -> tuple[Any, Any]:
    y = sg.field(dtype, shape=8, needs_grad=grad)
    if memory == "vectors":
        return sg.Vector.field(2, dtype, shape=6, needs_grad=grad), y
    if memory == "field":
        return sg.field(dtype, shape=6, needs_grad=grad), y
    return sg.ndarray(dtype, (6, 2) if memory == "rows" else 6, needs_grad=grad), y


COMBINATIONS = [
    *[(update, loop, "array") for update, loop in itertools.product(UPDATES, LOOPS)],
    *[(update, loop, "field") for update, loop in itertools.product(("add", "max", "keep"), LOOPS)],
    *[(update, "range", memory) for update, memory in itertools.product(("add", "min", "load"), ("vectors", "rows"))],
]


@pytest.mark.parametrize("update", UPDATES)
def test_far_out_of_range(update: str, session: Any) -> None:
    for other, loop, memory in COMBINATIONS:
        if other != update:
            continue
        x, y = memories(memory, sg.i32 if update in ("and", "or", "xor") else sg.f32, False)
        x.fill(2)
        work = kernel(update, loop, memory, x, y)
        for k in (FAR, -FAR):
            work(*([x] if memory in ("array", "rows") else []), 8, k, 0)
        assert (x.to_numpy() == 2).all() and not y.to_numpy().any(), (update, loop, memory)


@pytest.mark.parametrize("update", ["add", "keep", "load"])
def test_gradients(update: str, session: Any) -> None:
    for loop, memory in itertools.product(LOOPS, ("field", "array")):
        if (update, loop) == ("load", "data"):  # needs what it overwrites
            continue
        x, y = memories(memory, sg.f32, True)
        x.grad.fill(1)
        y.grad.fill(1)
        work = kernel(update, loop, memory, x, y)
        work.grad(*([x] if memory == "array" else []), 8, FAR, 0)
        assert (x.grad.to_numpy() == 1).all() and (y.grad.to_numpy() == 1).all(), (update, loop, memory)


@pytest.mark.parametrize("empty", [True, False])
def test_what_no_iteration_updates_stays_as_it_is(empty: bool, session: Any) -> None:
    """A minimum of a NaN and infinity is infinity, and the sum of -0.0 and 0.0 is 0.0: neither is of an update that there is not."""
    low, total = sg.field(sg.f32, shape=()), sg.field(sg.f32, shape=())
    low[None], total[None] = np.nan, -0.0

    @sg.kernel
    def work(n: sg.i32, t: sg.i32):
        for i in range(n):
            if i > t:
                sg.atomic_min(low[None], sg.cast(i, sg.f32))
                total[None] += 1.0

    work(0 if empty else 100, 100)
    assert np.isnan(low[None])
    assert total[None] == 0 and np.signbit(total[None])


def test_what_a_loop_does_not_store_is_not_written(session: Any) -> None:
    """The element keeps a NaN with its own bits."""
    x = sg.field(sg.f32, shape=4)

    @sg.kernel
    def work(m: sg.i32, t: sg.i32):
        for i in range(4):
            for j in range(m):
                if j > t:
                    x[i] = x[i] * 2 + 1

    work(0, 0)
    work(5, 7)
    assert not x.to_numpy().any()
    work(3, 1)
    assert (x.to_numpy() == 1).all()
