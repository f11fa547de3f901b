"""Evaluation of symbolic sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, SupportsInt

from spirograd.base.sizes.size_nodes import Add, Arg, Binary, Element, Extent, FloorDiv, IfLess, Max, Min, Mod, Mul, Size, Sub

if TYPE_CHECKING:

    class Shaped(Protocol):
        """An array argument, as far as sizes depend on it."""

        @property
        def shape(self) -> tuple[int, ...]: ...


def floordiv(a: int, b: int) -> int:
    return a // b if b else 0


def mod(a: int, b: int) -> int:
    return a % b if b else 0


OPERATIONS: dict[type[Binary], Callable[[int, int], int]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    Min: min,
    Max: max,
    FloorDiv: floordiv,
    Mod: mod,
}
# Reads the integer at a non-negative byte offset; 0 if it lies outside of the memory.
ReadElement = Callable[[Element, int], int]


def evaluate(size: Size, scalars: Sequence[SupportsInt], arrays: Sequence[Shaped | None], read: ReadElement | None = None) -> int:
    """Return the value of ``size`` for scalar arguments and array arguments, which have a ``shape``.

    ``read`` is required if `needs_memory`. ``size`` must not contain `MaxOver`, because only kernels evaluate ranges.
    """
    if isinstance(size, int):
        return size
    if isinstance(size, Binary):
        return OPERATIONS[type(size)](evaluate(size.a, scalars, arrays, read), evaluate(size.b, scalars, arrays, read))
    if isinstance(size, Arg):
        return int(scalars[size.number])
    if isinstance(size, Extent):
        array = arrays[size.array]
        assert array is not None
        return array.shape[size.axis]
    if isinstance(size, IfLess):
        less = evaluate(size.a, scalars, arrays, read) < evaluate(size.b, scalars, arrays, read)
        return evaluate(size.value, scalars, arrays, read) if less else 0
    assert isinstance(size, Element) and read is not None, size
    offset = evaluate(size.offset, scalars, arrays, read)
    return 0 if offset < 0 else read(size, offset)
