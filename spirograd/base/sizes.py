"""Size expressions: plain data that the host evaluates at launch, without the IR.

A size is ``int`` or a tuple ``(kind, ...)``: ``("arg", i)`` scalar argument i, ``("shape", i, axis)`` extent of array argument i,
``("memory", kind, i, offset, dtype)`` the integer at byte ``offset`` of field tree (kind "tree") or array argument ("array") i,
``("add" | "sub" | "mul" | "min" | "max" | "floordiv" | "mod", a, b)``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Union

Size = Union[int, tuple[Any, ...]]

_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "min": min,
    "max": max,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
}
BINARY_KINDS = frozenset(_BINARY)


def evaluate(
    size: Size, scalar: Callable[[int], int], extent: Callable[[int, int], int], memory: Callable[[str, int, int, Any], int] | None = None
) -> int:
    """The value of ``size``, given readers of scalar arguments, array extents, and memory (kind, number, byte offset, type)."""
    if isinstance(size, int):
        return size
    kind = size[0]
    if kind == "arg":
        return scalar(size[1])
    if kind == "shape":
        return extent(size[1], size[2])
    if kind == "memory":
        assert memory is not None, size
        return memory(*size[1:])
    return _BINARY[kind](evaluate(size[1], scalar, extent, memory), evaluate(size[2], scalar, extent, memory))
