"""Stepping through a kernel on the interpreter."""

from __future__ import annotations

from typing import Any

import pytest

import spirograd as sg


@sg.kernel
def collatz(n: sg.i32) -> sg.i32:
    steps = 0
    while n_of(n, steps) != 1:
        steps += 1
    return steps


@sg.func
def n_of(n: sg.i32, steps: sg.i32) -> sg.i32:
    x = n
    for _ in range(steps):
        if x % 2 == 0:
            x = x // 2
        else:
            x = 3 * x + 1
    return x


@pytest.mark.archs("interpreter")
def test_every_operation_is_seen_with_its_value_and_line(session: Any) -> None:
    seen: list[tuple[str, int, Any]] = []

    def on_op(op: Any, values: Any) -> None:
        if op.loc is not None:
            seen.append((op.code.name, op.loc.line, values[op] if op.code.name in ("add", "mul", "ne") else None))

    assert collatz.step(on_op, 6) == 8
    assert {"add", "mul", "while", "for"} <= {name for name, _, _ in seen}
    additions = [value for name, line, value in seen if name == "add" and line == collatz.function.__code__.co_firstlineno + 4]
    assert additions == [1, 2, 3, 4, 5, 6, 7, 8]
    assert collatz(7) == 16  # stepping leaves nothing behind


@pytest.mark.archs("cpu", "vulkan")
def test_other_back_ends_cannot_step(session: Any) -> None:
    with pytest.raises(sg.SpirogradRuntimeError, match="only the interpreter"):
        collatz.step(lambda op, values: None, 6)
