"""Nested checkpoints where they are not needed, to compare them with plain tapes."""

from __future__ import annotations

from typing import Any

from spirograd.base.nesting import Nesting


def nest(kernel: Any, levels: int, length: int) -> tuple[int, ...]:
    """Have ``kernel.grad``, which was launched before, use nested checkpoints of ``levels`` levels of ``length`` iterations for all loops
    with tapes, or (1 level) none; gives the numbers of these loops."""
    kernel.grad._last.native.forget()
    ways = kernel.grad._last.ways
    numbers = tuple(sorted({record.number for record in ways.plain.derivative.records}))
    if levels == 1 or not numbers:
        ways.current = ways.plain
    else:
        ways.current = ways._planned(ways._make, Nesting(tuple([(n, levels) for n in numbers]), length))
    return numbers
