"""The address of an element of a field in the buffer of its tree: one computation over numbers, over sizes and over operations of the
IR."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from spirograd.base.records import dataclass
from spirograd.base.sizes.size_nodes import Add, FloorDiv, Mod, Mul, Size
from spirograd.ir.nodes import Layout

T = TypeVar("T")


@dataclass(frozen=True)
class AddressArithmetic(Generic[T]):
    """Arithmetic of addresses. Second operands of all but ``add`` are constants above 0."""

    add: Callable[[T, T], T]
    mul: Callable[[T, int], T]
    div: Callable[[T, int], T]
    mod: Callable[[T, int], T]


NUMBERS: AddressArithmetic[int] = AddressArithmetic(operator.add, operator.mul, operator.floordiv, operator.mod)
SIZES: AddressArithmetic[Size] = AddressArithmetic(Add, Mul, FloorDiv, Mod)


def cell_offset(layout: Layout, index: Sequence[T], by: AddressArithmetic[T], unit: int = 1) -> T | None:
    """Return the sum of the terms of ``layout`` in units of ``unit`` bytes, or None if there are no terms. ``index``: the index less the
    origin. The caller adds the offset of the component."""
    total: T | None = None
    for term in layout.terms:
        part = index[term.axis]
        if term.div != 1:
            part = by.div(part, term.div)
        if term.mod:
            part = by.mod(part, term.mod)
        part = by.mul(part, term.stride // unit)
        total = part if total is None else by.add(total, part)
    return total


def component_number(index: Sequence[int], element_shape: Sequence[int]) -> int:
    """Return the row-major number of a component. `Layout.components` has its offset under this number."""
    number = 0
    for i, extent in zip(index, element_shape):
        number = number * extent + i
    return number
