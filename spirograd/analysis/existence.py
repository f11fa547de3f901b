"""Existence of accesses: whether an element surely exists, and whether a loop surely runs.

Passes that move, combine or privatise accesses use this before they add an access where the program may have none: see docs/ir.md.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from spirograd.ir import ops
from spirograd.ir.integer_ranges import Range, range_of
from spirograd.ir.nodes import FieldRef, Op, Ref, TempRef


def exists(ref: Ref, indices: Sequence[Op], ranges: MutableMapping[Op, Range]) -> bool:
    """Return whether the element of ``ref`` at ``indices`` surely exists. Extents of fields and temporaries are known. ``ranges``: as in
    `range_of`."""
    if not isinstance(ref, (FieldRef, TempRef)):
        return False
    extents = (*ref.shape, *ref.element_shape) if isinstance(ref, FieldRef) else ref.shape
    origin = ref.layout.origin if isinstance(ref, FieldRef) else ()
    firsts = (*origin, *[0] * (len(extents) - len(origin)))
    return all(range_of(k, ranges).within(first, first + n - 1) for k, first, n in zip(indices, firsts, extents))


def has_trips(loop: Op) -> bool:
    """Return whether a `for` surely has an iteration."""
    return bool(constant_trips(*loop.args[:2]))


def constant_trips(begin: Op, end: Op) -> int | None:
    """Return the trip count of a loop with these bounds if they are constants, else None."""
    return max(int(end.attr) - int(begin.attr), 0) if begin.code is end.code is ops.const else None
