"""The arrays that each launch compares, because passes assume them to be disjoint (`ArrayRef.disjoint`)."""

from __future__ import annotations

from math import prod

from spirograd.base.artifact import DisjointArray, Effects
from spirograd.base.dtypes import storage
from spirograd.ir.nodes import ArrayRef, Kernel

# An array argument, by its number, in one of its roles.
Array = tuple[int, str]


def array_of(ref: ArrayRef) -> Array:
    return ref.arg, ref.role


def compared_arrays(kernel: Kernel, effects: Effects) -> tuple[DisjointArray, ...]:
    """Return the arrays with marks, which each launch compares, or none if ``kernel``, which has these effects, writes none of them."""
    refs = {array_of(ref): ref for _, ref in kernel.accesses if isinstance(ref, ArrayRef) and ref.disjoint}
    written = {(index, part) for kind, index, part in effects.all_written() if kind == "array"}
    arrays = []
    for index, role in sorted(refs):
        ref = refs[index, role]
        nbytes = prod(ref.element_shape) * storage(ref.dtype).size
        arrays.append(DisjointArray(index, role, ref.ndim, nbytes, not written.isdisjoint({(index, role), (index, "")})))
    return tuple(arrays) if len(arrays) > 1 and any(array.written for array in arrays) else ()
