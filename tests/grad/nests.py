"""Nested checkpoints where they are not needed, to compare them with plain tapes."""

from __future__ import annotations

from typing import Any

from spirograd.base.nesting import Nesting


def nest(kernel: Any, levels: int, length: int) -> tuple[int, ...]:
    """Have ``kernel.grad``, which was launched before, use nested checkpoints of ``levels`` levels of ``length`` iterations for all loops
    with tapes, or (1 level) none; gives the numbers of these loops."""
    kernel.grad._last.native.forget()
    variants = kernel.grad._last.variants
    numbers = tuple(sorted({record.number for record in variants.plain.derivative.records}))
    if levels == 1 or not numbers:
        variants.current = variants.plain
    else:
        variants.current = variants._planned(variants._make, Nesting(tuple([(n, levels) for n in numbers]), length))
    return numbers
