"""Memory in the interpreter: addresses to bytes, references and indices to element numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Protocol

import numpy as np

from spirograd.base.arrays import Array
from spirograd.base.artifact import Slot
from spirograd.base.dtypes import storage
from spirograd.ir.addresses import NUMBERS, cell_offset, component_number
from spirograd.ir.nodes import ArrayRef, FieldRef, Ref


class AddressSpace(Protocol):
    """The memory that the interpreter reads and writes."""

    def resolve(self, address: int) -> Array:
        """Return the writable bytes (uint8) from ``address`` to the end of its allocation. Raise LookupError if there is no allocation."""


def resolve(memory: AddressSpace, block: bytes, slot: Slot) -> Array:
    """Return the bytes behind a buffer slot, or no bytes if its address is null or freed: then any access is out of range."""
    address = int.from_bytes(block[slot.offset : slot.offset + 8], "little")
    try:
        return memory.resolve(address)
    except LookupError:
        return np.zeros(0, np.uint8)


def array_extents(ref: ArrayRef, axes: tuple[Slot | None, ...], block: bytes, elements: int) -> tuple[int, ...]:
    """Return the extents of an array argument. The first one follows from the size of its memory if the block lacks it."""
    outer = [-1 if axis is None else int.from_bytes(block[axis.offset : axis.offset + 4], "little", signed=True) for axis in axes]
    rest = prod(outer[1:]) * prod(ref.element_shape)
    if outer and outer[0] < 0:
        outer[0] = elements // rest if rest > 0 else 0
    return (*outer, *ref.element_shape)


def numbering(ref: Ref, rank: int) -> tuple[Callable[[list[int]], int] | None, tuple[int, ...]]:
    """Return the function from indices (less the origin) to an element number, None for row-major order, and the origin."""
    zero = (0,) * rank
    if not isinstance(ref, FieldRef):
        return None, zero
    outer, size, layout = len(ref.shape), storage(ref.dtype).size, ref.layout
    origin = (*layout.origin, *zero)[:rank] if layout.origin else zero
    shape = ref.element_shape
    if layout.components == (0,) and _row_major(ref, size):
        return None, origin

    def number(index: list[int]) -> int:
        cell = cell_offset(layout, index, NUMBERS) or 0
        return (cell + layout.components[component_number(index[outer:], shape)]) // size

    return number, origin


def _row_major(ref: FieldRef, size: int) -> bool:
    """Return whether the elements lie densely in row-major order from the start of the buffer."""
    strides = {term.axis: term.stride for term in ref.layout.terms if term.div == 1 and term.mod == 0}
    if len(strides) != len(ref.layout.terms):
        return False
    return all(strides.get(k, 0) == size * prod(ref.shape[k + 1 :]) for k, n in enumerate(ref.shape) if n > 1)
