"""Whether two parallel loops may run as one: each iteration of the first followed by the same iteration of the second.

They may if every element that one of them writes and the other touches belongs to one iteration of both, so that the order in which a
single element is accessed stays what it was. What does not show that is taken to forbid it.
"""

from __future__ import annotations

from collections.abc import Iterator

from spirograd.analysis.effects import may_alias, nested, touches, writes
from spirograd.analysis.injectivity import determines, invariant_values
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Ref, Region, ref_of

_WRITING = frozenset(("write", "atomic"))
# Updates of which any order gives the same bits, on integers.
_COMMUTING = frozenset(("add", "mul", "min", "max", "and", "or", "xor"))


def obstacle(loop: Op, fast_math: bool) -> str | None:
    """Why a parallel loop is fused with no other; None if it may be. ``fast_math``: sums that a loop carries may be taken in any order."""
    if loop.attr.alone:
        return "its kernel asks for one dispatch per loop"
    for op in loop.regions[0].walk():
        if op.code.effect in ("check", "print", "barrier"):
            return f"it has a {op.code.effect}, and these keep their order"
        if op.code is ops.call_memory:
            return "it calls a function that accesses memory"
        if _is_inexact_sum(op) and not _is_private(op, loop):
            return "it adds up floats, whose sum depends on the order"
        carried = op.type if op.code in (ops.for_, ops.while_) and isinstance(op.type, tuple) else ()
        if fast_math and any(isinstance(t, DType) and t.is_float for t in carried):
            return "an inner loop adds up floats, in any order with fast math"
    return None


def conflict(a: Op, b: Op, through_memory: bool) -> str | None:
    """Why loop ``b`` cannot be fused with loop ``a``, which runs before it; None if it can. Both have no `obstacle`. ``through_memory``:
    whether loops may be fused of which one writes what the other touches."""
    pair = _Pair(a, b)
    if not all(pair.same(x, y) for x, y in zip(a.args, b.args)):
        return "the index spaces may differ"
    if a.attr.group_size != b.attr.group_size:
        return "the sizes of their workgroups differ"
    used = [_used(loop.regions[0]) for loop in (a, b)]
    for x in _accesses(a):
        for y in _accesses(b):
            if x.code.effect not in _WRITING and y.code.effect not in _WRITING:
                continue
            ref, other = _ref(x), _ref(y)
            if not may_alias(ref, other) or pair.differ(x, y):
                continue
            if ref != other:
                return f"`{ref.name}` and `{other.name}` may overlap"
            if pair.belong_together(x, y):
                if not through_memory:
                    return f"both access `{ref.name}`, which one of them writes"
            elif not _commute(x, y, used):
                return f"an iteration of one may access what another iteration of the other accesses in `{ref.name}`"
    return None


def commutes(loop: Op, op: Op) -> bool:
    """Whether a parallel loop without an `obstacle` may run after ``op``, which stands behind it, rather than before."""
    if any(inner.code.effect in ("check", "barrier") for inner in nested(op)):
        return False
    mine, written = touches(loop), writes(loop)
    changed, seen = writes(op), touches(op)
    return not any(may_alias(x, y) for x in mine for y in changed) and not any(may_alias(x, y) for x in written for y in seen)


class _Pair:
    """Two loops with their indices taken for the same."""

    def __init__(self, a: Op, b: Op) -> None:
        self.index, self.other = a.regions[0].params[0], b.regions[0].params[0]
        self.invariant = invariant_values(a.regions[0])
        self.bounds = a.args[:2]
        self.known: dict[tuple[Op, Op], bool] = {}

    def same(self, x: Op, y: Op) -> bool:
        """Whether ``x`` in an iteration of the first loop is ``y`` in that of the second: the same arithmetic on the same values."""
        if x is y or (x is self.index and y is self.other):
            return True
        if (x, y) not in self.known:
            alike = x.code is y.code and x.type == y.type and repr(x.attr) == repr(y.attr) and len(x.args) == len(y.args)
            pure = x.code.effect == "pure" and x.code not in (ops.result, ops.param) and not x.regions
            self.known[x, y] = alike and pure and all(self.same(u, v) for u, v in zip(x.args, y.args))
        return self.known[x, y]

    def belong_together(self, x: Op, y: Op) -> bool:
        """Whether two accesses to one memory meet only if they are of the same iteration."""
        common = [u for u, v in zip(_indices(x), _indices(y)) if self.same(u, v)]
        return determines(common, self.index, self.invariant, self.bounds)

    def differ(self, x: Op, y: Op) -> bool:
        """Whether two accesses are to different elements, by constant indices, such as components of vectors."""
        return _ref(x) == _ref(y) and any(
            u.code is ops.const and v.code is ops.const and u.attr != v.attr for u, v in zip(_indices(x), _indices(y))
        )


def _accesses(loop: Op) -> Iterator[Op]:
    return (op for op in loop.regions[0].walk() if ref_of(op) is not None)


def _ref(op: Op) -> Ref:
    ref = ref_of(op)
    assert ref is not None
    return ref


def _indices(op: Op) -> tuple[Op, ...]:
    return op.args[:-1] if op.code in (ops.store, ops.atomic) else op.args


def _used(body: Region) -> set[Op]:
    return {a for op in body.walk() for a in op.args}


def _commute(x: Op, y: Op, used: list[set[Op]]) -> bool:
    """Whether two accesses update memory in the same way, and nobody looks at the values in between."""
    if x.code is not ops.atomic or y.code is not ops.atomic or x.attr[0] != y.attr[0] or x in used[0] or y in used[1]:
        return False
    return x.attr[0] in _COMMUTING and not x.attr[1].dtype.is_float


def _is_inexact_sum(op: Op) -> bool:
    return op.code is ops.atomic and op.attr[0] in ("add", "mul") and op.attr[1].dtype.is_float


def _is_private(op: Op, loop: Op) -> bool:
    """Whether an access is to an element of its iteration."""
    body = loop.regions[0]
    return determines(_indices(op), body.params[0], invariant_values(body), loop.args[:2])
