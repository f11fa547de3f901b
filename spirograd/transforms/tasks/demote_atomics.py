"""Uncontended atomics become a load, an operation and a store."""

from __future__ import annotations

from spirograd.analysis.effects import may_alias
from spirograd.analysis.injectivity import determines, invariant_values
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Ref, Region, accesses_of, rank, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.context import PassContext


def demote_atomics(kernel: Kernel, ctx: PassContext) -> Kernel:
    """In serial tasks all atomics; in parallel ones those at an element that belongs to its iteration alone.

    An element does if the indices determine the iteration (`analysis.injectivity`; those of a vector's entries count for nothing), and for
    every other write of the task to that memory those indices do that are the same in both: steps from ``x[t, i]`` to ``x[t + 1, i]``.
    """
    return _Demote().kernel(kernel)


class _Demote(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.private: set[Op] = set()
        self.handlers = {ops.task: self._task, ops.atomic: self._atomic}

    def _task(self, op: Op) -> Op:
        body = op.regions[-2] if op.attr.kind == "range_for" else op.regions[0]
        if ops.atomic not in body.codes:
            return self.b.append(op)
        atomics = [x for x in body.walk() if x.code is ops.atomic]
        self.private = set(atomics) if op.attr.kind == "serial" else _private(op.regions[0], body, atomics)
        return self.copy(op) if self.private else self.b.append(op)

    def _atomic(self, op: Op) -> Op:
        if op not in self.private:
            return self.copy(op)
        kind, ref = op.attr
        *indices, value = self.args(op)
        old = self.b.load(ref, *indices)
        new = value if kind == "exchange" else self.b.emit(ops.COMBINE[kind], old, value)
        self.b.store(ref, *indices, new)
        return old


def _private(bounds: Region, body: Region, atomics: list[Op]) -> set[Op]:
    """The atomics at elements that one iteration alone writes."""
    index = body.params[0]
    writes = [x for x in body.walk() if x.code.effect in ("write", "atomic") and ref_of(x) is not None]
    called = {ref for x in body.walk() if x.code is ops.call_memory for effect, ref in accesses_of(x) if effect != "read"}
    invariant = invariant_values(body)
    rivals_of: dict[Ref, list[Op]] = {}
    out = set()
    for op in atomics:
        ref = _ref(op)
        rivals = rivals_of.get(ref)
        if rivals is None:
            rivals = rivals_of[ref] = [w for w in writes if may_alias(ref, _ref(w))]
        if any(may_alias(ref, other) for other in called):
            continue
        if all(_ref(w) == ref and determines(_common(op, w), index, invariant, bounds.results[:2]) for w in rivals):
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
