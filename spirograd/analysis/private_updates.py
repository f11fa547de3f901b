"""Uncontended atomics of a parallel loop: those that update an element which belongs to one iteration only."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.analysis.effects import may_alias
from spirograd.analysis.injectivity import determines
from spirograd.analysis.loop_invariants import Invariants, contents
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Op, Ref, Region, accesses_of, rank, ref_of


def private_updates(body: Region, bounds: Sequence[Op]) -> set[Op]:
    """The atomics of a loop over ``bounds`` at elements that one iteration alone writes.

    An element is if the indices determine the iteration (`analysis.injectivity`; those of a vector's entries count for nothing), and for
    every other write of the loop to that memory those indices do that are the same in both: steps from ``x[t, i]`` to ``x[t + 1, i]``.
    """
    if ops.atomic not in body.codes:
        return set()
    everything = list(body.walk())
    writes = [x for x in everything if x.code.effect in ("write", "atomic") and ref_of(x) is not None]
    called = {ref for x in everything if x.code is ops.call_memory for effect, ref in accesses_of(x) if effect != "read"}
    invariant = Invariants(contents(body))
    rivals_of: dict[Ref, list[Op]] = {}
    out = set()
    for op in everything:
        if op.code is not ops.atomic:
            continue
        ref = _ref(op)
        rivals = rivals_of.get(ref)
        if rivals is None:
            rivals = rivals_of[ref] = [w for w in writes if may_alias(ref, _ref(w))]
        if any(may_alias(ref, other) for other in called):
            continue
        if all(_ref(w) == ref and determines(_common(op, w), body.params[0], invariant, bounds) for w in rivals):
            out.add(op)
    return out


def _ref(op: Op) -> Ref:
    ref = ref_of(op)
    assert ref is not None
    return ref


def _element(op: Op) -> tuple[Op, ...]:
    """The indices of the element that ``op`` accesses, those of its entries left out."""
    ref = _ref(op)
    inner = len(ref.element_shape) if isinstance(ref, (FieldRef, ArrayRef)) else 0
    return op.args[: rank(ref) - inner]


def _common(a: Op, b: Op) -> list[Op]:
    """The indices, each along its axis, in which two accesses of one memory agree."""
    return [x for x, y in zip(_element(a), _element(b)) if x is y]
