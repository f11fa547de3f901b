"""Size expressions: plain data that the host evaluates at launch, without the IR.

A size is ``int`` or a tuple ``(kind, ...)``, of other sizes a, b ...:

- ``("arg", i)`` scalar argument i; ``("shape", i, axis)`` extent of array argument i, never negative; ``("bound", v)`` the number that
  variable v of a ``max_over`` around it has
- ``("memory", kind, i, offset, dtype, key, indices)`` the integer at byte ``offset`` (a size) of field tree ("tree") or array argument
  ("array") i; 0 where that lies outside of the memory. ``key``: of the field (`FieldRef.key`; 0 for arrays), ``indices``: which element of
  it that is, for people
- ``("add" | "sub" | "mul" | "min" | "max" | "floordiv" | "mod", a, b)``; division by 0 gives 0
- ``("if_less", a, b, x)`` x if a < b, else 0
- ``("max_over", v, begin, end, body)`` the largest of 0 and what ``body`` is for each v from ``begin`` to before ``end``

Numbers are those of mathematics: nothing wraps. Sizes compare by value, and pickle.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spirograd.base.size_parts import Size, leaves, needs_memory, needs_whole, parts, rebuilt, variables, walk
from spirograd.base.size_ranges import largest

__all__ = ["BINARY_KINDS", "Bytes", "Size", "evaluate", "leaves", "needs_memory", "needs_whole", "parts", "rebuilt", "variables", "walk"]

# The bytes of field tree ("tree") or array argument ("array") number i, as they lie in memory.
Bytes = Callable[[str, int], NDArray[np.uint8]]

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
    size: Size,
    scalar: Callable[[int], int],
    extent: Callable[[int, int], int],
    memory: Callable[[str, int, int, Any], int] | None = None,
    whole: Bytes | None = None,
) -> int:
    """The value of ``size``, given readers of scalar arguments, array extents, and memory.

    ``memory``: the integer of (kind, number, byte offset, type), 0 outside of the memory: for reads outside of ranges. ``whole``: for
    reads that change along a ``max_over``. Each is needed only where `leaves` has such reads. Ranges take memory in proportion to their
    nesting, not to their length.
    """
    if isinstance(size, int):
        return size
    kind = size[0]
    if kind == "arg":
        return scalar(size[1])
    if kind == "shape":
        return extent(size[1], size[2])
    combine = _BINARY.get(kind)
    if combine is not None:
        return combine(evaluate(size[1], scalar, extent, memory, whole), evaluate(size[2], scalar, extent, memory, whole))
    if kind == "memory":
        assert memory is not None, size
        offset = evaluate(size[3], scalar, extent, memory, whole)
        return 0 if offset < 0 else memory(size[1], size[2], offset, size[4])
    if kind == "if_less":
        less = evaluate(size[1], scalar, extent, memory, whole) < evaluate(size[2], scalar, extent, memory, whole)
        return evaluate(size[3], scalar, extent, memory, whole) if less else 0
    return largest(size, lambda inner: evaluate(inner, scalar, extent, memory, whole), whole)
