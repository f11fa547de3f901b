"""Byte offsets of the temporaries of a launch in the buffer that holds them."""

from __future__ import annotations

from math import prod

from spirograd.base.dtypes import storage
from spirograd.ir.nodes import Kernel, TempRef


def temp_refs(kernel: Kernel) -> tuple[TempRef, ...]:
    """Return the temporaries of ``kernel``: return values first, then the others in order of first appearance."""
    seen: dict[TempRef, None] = dict.fromkeys(kernel.returns)
    for _, ref in kernel.accesses:
        if isinstance(ref, TempRef):
            seen.setdefault(ref)
    return tuple(seen)


def temp_offsets(kernel: Kernel) -> tuple[dict[TempRef, int], int]:
    """Return the byte offset of every temporary, naturally aligned, and the size of all of them in bytes (a multiple of 8)."""
    offsets: dict[TempRef, int] = {}
    end = 0
    for ref in temp_refs(kernel):
        size = storage(ref.dtype).size
        end = -(-end // size) * size
        offsets[ref] = end
        end += size * prod(ref.shape)
    return offsets, -(-end // 8) * 8
