"""Which accesses may be made though the program might not make them: whether an element surely exists, and whether a loop surely runs.

A pass that moves, combines or privatises accesses asks before it makes one where the program may make none: see docs/ir.md.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from spirograd.ir import ops
from spirograd.ir.integer_ranges import Range, range_of
from spirograd.ir.nodes import FieldRef, Op, Ref, TempRef


def exists(ref: Ref, indices: Sequence[Op], ranges: MutableMapping[Op, Range]) -> bool:
    """Whether the element of ``ref`` at ``indices`` surely exists: of fields and temporaries, whose extents are known. ``ranges``: as for
    `range_of`."""
    if not isinstance(ref, (FieldRef, TempRef)):
        return False
    extents = (*ref.shape, *ref.element_shape) if isinstance(ref, FieldRef) else ref.shape
    origin = ref.layout.origin if isinstance(ref, FieldRef) else ()
    firsts = (*origin, *[0] * (len(extents) - len(origin)))
    return all(range_of(k, ranges).within(first, first + n - 1) for k, first, n in zip(indices, firsts, extents))


def has_trips(loop: Op) -> bool:
    """Whether a `for` surely has an iteration."""
    return bool(constant_trips(*loop.args[:2]))


def constant_trips(begin: Op, end: Op) -> int | None:
    """The trip count of a loop with these bounds, if they are constants."""
    return max(int(end.attr) - int(begin.attr), 0) if begin.code is end.code is ops.const else None
