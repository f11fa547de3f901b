"""The comparison of the arrays of a launch: whether some overlap that the code of a kernel assumes to be disjoint."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

from spirograd.base.arguments import ROLE_ATTRIBUTES
from spirograd.base.artifact import DisjointArray
from spirograd.base.sizes import python_expressions as x
from spirograd.base.sizes.python_expressions import Expression

if TYPE_CHECKING:
    from spirograd.base.protocols import Place

# The largest number of arrays that are compared in pairs; more are sorted by their addresses.
_MOST_IN_PAIRS = 8
# A function of the arrays of a launch.
OverlapTest = Callable[[Sequence["Place | None"]], bool]


def overlap_test(arrays: Sequence[DisjointArray]) -> OverlapTest | None:
    """Return the test whether any two of ``arrays``, of which the kernel writes one, overlap; None if there are none. For few arrays it is
    one Python expression, like the argument block."""
    if not arrays:
        return None
    if len(arrays) > _MOST_IN_PAIRS:
        return functools.partial(_some_overlap, arrays)
    pairs = [x.both(_ends_behind(a, b), _ends_behind(b, a)) for a, b in combinations(arrays, 2) if a.written or b.written]
    return x.function(("a",), x.either(*pairs))


def _some_overlap(arrays: Sequence[DisjointArray], bindings: Sequence[Place | None]) -> bool:
    """Return whether an array begins before the end of one with a lower address, unless the kernel writes neither."""
    end = end_of_written = 0
    for start, stop, written in sorted([(*span(array, bindings[array.index]), array.written) for array in arrays]):
        if start < (end if written else end_of_written):
            return True
        end = max(end, stop)
        if written:
            end_of_written = max(end_of_written, stop)
    return False


def span(array: DisjointArray, binding: Place | None) -> tuple[int, int]:
    """Return the address of an array of a launch, and the end of its memory."""
    assert binding is not None, array
    start: int = getattr(binding, ROLE_ATTRIBUTES[array.role])
    return start, start + prod(binding.shape[: array.ndim]) * array.nbytes


def _ends_behind(a: DisjointArray, b: DisjointArray) -> Expression:
    """Return the condition that array ``a`` ends behind the start of ``b``."""
    nbytes = x.number(a.nbytes)
    for axis in range(a.ndim):
        nbytes = x.binary(ast.Mult(), nbytes, x.extent(a.index, axis))
    return x.compare(_start(b), ast.Lt(), x.binary(ast.Add(), _start(a), nbytes))


def _start(array: DisjointArray) -> Expression:
    return x.attribute(x.item(x.name("a"), x.number(array.index)), ROLE_ATTRIBUTES[array.role])
