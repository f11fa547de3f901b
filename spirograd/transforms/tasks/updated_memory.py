"""Memory that the iterations of a task only update, by atomics of one kind, and the numbers of its elements: for copies of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Union

from spirograd.analysis.effects import region_of
from spirograd.base.dtypes import i32, u32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayRef, FieldRef, Op, Region, accesses_of

Updated = Union[FieldRef, ArrayRef]


class Extents:
    """The elements of a field or an array, numbered in row-major order."""

    def __init__(self, b: Builder, ref: Updated) -> None:
        self._b = b
        self._extents: list[int | Op] = [*_shape(b, ref), *ref.element_shape]
        origin = ref.layout.origin if isinstance(ref, FieldRef) else ()
        self._origin = [*(origin or (0,) * (len(self._extents) - len(ref.element_shape))), *(0,) * len(ref.element_shape)]

    def total(self) -> Op:
        """Return the number of elements (i32)."""
        b, known, total = self._b, math.prod([n for n in self._extents if isinstance(n, int)]), None
        for extent in self._extents:
            if isinstance(extent, Op):
                total = extent if total is None else b.emit(ops.mul, total, extent)
        return b.const(known) if total is None else total if known == 1 else b.emit(ops.mul, total, b.const(known))

    def number(self, indices: tuple[Op, ...], end: int | Op) -> Op:
        """Return the number of an element (i32), at most ``end``, which stands for indices out of range."""
        b = self._b
        total: Op | None = None
        for index, extent, first in zip(indices, self._extents, self._origin):
            term = _plus(b, b.cast(index, i32), -first)
            total = term if total is None else b.emit(ops.add, b.emit(ops.mul, total, _value(b, extent)), term)
        total = total or b.const(0)
        unsigned = b.emit(ops.bitcast, total, type=u32)
        inside = b.emit(ops.min_, unsigned, b.const(end, u32) if isinstance(end, int) else b.emit(ops.bitcast, end, type=u32))
        return b.emit(ops.bitcast, inside, type=i32)

    def indices(self, number: Op) -> tuple[Op, ...]:
        """Return the indices of an element."""
        b = self._b
        digits: list[Op] = []
        for extent, first in reversed(list(zip(self._extents, self._origin))):
            last = len(digits) == len(self._extents) - 1
            index = number if last else b.emit(ops.irem, number, _value(b, extent))
            number = number if last else b.emit(ops.idiv, number, _value(b, extent))
            digits.insert(0, _plus(b, index, first))
        return tuple(digits)


def _shape(b: Builder, ref: Updated) -> Sequence[int | Op]:
    if isinstance(ref, FieldRef):
        return ref.shape
    return [b.emit(ops.shape, attr=(ref.arg, axis), type=i32) for axis in range(ref.ndim)]


def _value(b: Builder, extent: int | Op) -> Op:
    return b.const(extent) if isinstance(extent, int) else extent


def length_of(ref: FieldRef) -> int:
    """Return the number of elements of a field."""
    return math.prod((*ref.shape, *ref.element_shape))


def _plus(b: Builder, index: Op, offset: int) -> Op:
    return b.emit(ops.add, index, b.const(offset)) if offset else index


def only_updated(body: Region) -> dict[Updated, str]:
    """Return the fields and arrays that ``body`` accesses by atomics of one kind only, whose results nothing uses, with this kind. Arrays
    are assumed not to overlap, because a loop that updates an element and also reads it has no defined result."""
    everything = list(body.walk())
    used = {a for op in everything for a in op.args}
    kinds_of: dict[Updated, set[str]] = {}
    for op in everything:
        for _, ref in accesses_of(op):
            if isinstance(ref, (FieldRef, ArrayRef)):
                kinds_of.setdefault(ref, set()).add(op.attr[0] if op.code is ops.atomic and op not in used else "")
    regions = [region_of(ref, separate_arrays=True) for ref in kinds_of]
    return {
        ref: min(kinds)
        for (ref, kinds), region in zip(kinds_of.items(), regions)
        if len(kinds) == 1 and "" not in kinds and regions.count(region) == 1 and not (isinstance(ref, ArrayRef) and ref.wide)
    }
