"""Nested checkpoints where they are not needed, to compare them with plain tapes."""

from __future__ import annotations

from typing import Any

from spirograd.base.nesting import Nesting


def nest(kernel: Any, levels: int, length: int) -> tuple[int, ...]:
    """Have ``kernel.grad``, which was launched before, use nested checkpoints of ``levels`` levels of ``length`` iterations for all loops
    with tapes, or (1 level) none; gives the numbers of these loops."""
    kernel.grad._last.native.forget()
    checkpoints = kernel.grad._last.checkpoints
    numbers = tuple(sorted({record.number for record in checkpoints.plain.derivative.records}))
    if levels == 1 or not numbers:
        checkpoints.current = checkpoints.plain
    else:
        checkpoints.current = checkpoints._planned(checkpoints._make, Nesting(tuple([(n, levels) for n in numbers]), length))
    return numbers
