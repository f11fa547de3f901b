"""Byte offsets of the temporaries of a launch in the buffer that holds them."""

from __future__ import annotations

from math import prod

from spirograd.base.dtypes import storage
from spirograd.base.sizes.size_nodes import Add, Extent, Mul, Size
from spirograd.ir.nodes import ArrayArg, Kernel, TempRef


def temp_refs(kernel: Kernel) -> tuple[TempRef, ...]:
    """Return the temporaries of ``kernel``: return values first, then the others in order of first appearance."""
    seen: dict[TempRef, None] = dict.fromkeys(kernel.returns)
    for _, ref in kernel.accesses:
        if isinstance(ref, TempRef):
            seen.setdefault(ref)
    return tuple(seen)


def temp_offsets(kernel: Kernel) -> tuple[dict[TempRef, int], int]:
    """Return the byte offset of every temporary, naturally aligned, and the size in bytes (a multiple of 8) of all whose size is known.
    Those that grow with arrays begin there, one after the other (`growing_temps`)."""
    offsets: dict[TempRef, int] = {}
    end = 0
    refs = temp_refs(kernel)
    for ref in refs:
        if ref.array < 0:
            size = storage(ref.dtype).size
            end = -(-end // size) * size
            offsets[ref] = end
            end += size * prod(ref.shape)
    end = -(-end // 8) * 8
    return offsets | {ref: end for ref in refs if ref.array >= 0}, end


def growing_temps(kernel: Kernel) -> tuple[TempRef, ...]:
    """Return the temporaries whose size depends on arrays, in the order in which they lie in memory. All have one type."""
    return tuple([ref for ref in temp_refs(kernel) if ref.array >= 0])


def growth_of_temps(kernel: Kernel) -> Size:
    """Return the bytes of `growing_temps`."""
    total: Size = 0
    for ref in growing_temps(kernel):
        arg = kernel.args[ref.array]
        assert isinstance(arg, ArrayArg)
        elements: Size = 1
        for axis in range(arg.ndim):
            elements = Extent(ref.array, axis) if elements == 1 else Mul(elements, Extent(ref.array, axis))
        nbytes = Mul(Add(elements, 1), storage(ref.dtype).size * prod(ref.shape))
        total = nbytes if total == 0 else Add(total, nbytes)
    return total
