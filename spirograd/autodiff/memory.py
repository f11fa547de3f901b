"""What a gradient kernel reads of primal memory, and whether it still finds it there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from spirograd.analysis.sizes import size_of
from spirograd.autodiff.derivative import Access, Need
from spirograd.autodiff.needs import Conflict, needs, not_final, outer_key, too_late
from spirograd.autodiff.prepare.elements import same_memory
from spirograd.autodiff.sweep import OLD_VALUE, STATE
from spirograd.base.loc import Loc
from spirograd.base.sizes import Size
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Ref, TempRef, ref_of
from spirograd.ir.rewrite import Rewriter

_OUTER = (FieldRef, ArrayRef)
_EXTREMA = frozenset(("min", "max"))


def memory_needs(primal: Kernel, gradient: Kernel) -> tuple[tuple[Need, ...], tuple[Conflict, ...]]:
    """The needs of ``gradient``, made from ``primal``, and what cannot be had again; one need for each memory and first index."""
    loads = _replayed(primal, gradient)
    found, conflicts = needs(primal, [op for op in loads if op.code is ops.load])
    finals = [op for op in loads if op.code is not ops.load]
    conflicts += not_final(primal, finals)
    by_memory = {outer_key(need.ref): need for need in found}
    out: dict[Need, None] = {}
    for op in loads:
        ref = ref_of(op)
        assert isinstance(ref, _OUTER)
        if op.code is not ops.load:
            out[Need(ref, "after", op.loc, first=first_index(op))] = None
            continue
        need = by_memory.get(outer_key(ref))
        if need is not None:
            out[replace(need, ref=ref, first=first_index(op))] = None
    mixed = tuple(_mixed(out, loads))
    return tuple(out), (*conflicts, *mixed)


def old_values(primal: Kernel, gradient: Kernel) -> tuple[Conflict, ...]:
    """The atomics of ``primal`` whose old values ``gradient`` needs: run again, in another order of iterations, they would be others."""
    lost = {op.loc for op in gradient.walk() if op.code is ops.load and isinstance(op.attr, TempRef) and op.attr.name.startswith(OLD_VALUE)}
    found = [op for op in primal.walk() if op.code.effect == "atomic" and op.loc in lost] if lost else []
    return tuple([Conflict(ref_of(op), op, op.loc, op.loc) for op in found])  # type: ignore[arg-type]


def late_temps(primal: Kernel, gradient: Kernel) -> tuple[Conflict, ...]:
    """Reads of temporaries that come too late in ``gradient``: what the temporary held in the primal was replaced afterwards."""
    read = _read(gradient, (TempRef,))
    loads = [op for op in primal.walk() if op.code is ops.load and (op.attr, op.loc) in read]
    return (*too_late(primal, loads), *not_final(primal, [op for op in primal.walk() if _is_extremum(op) and (ref_of(op), op.loc) in read]))


def own_names(gradient: Kernel) -> Kernel:
    """``gradient`` with memory under its own name, whatever the state in which it is read."""
    return _OwnNames().kernel(gradient)


class _OwnNames(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.load: self._load}

    def _load(self, op: Op) -> Op:
        ref, state = _named(op.attr)
        return self.b.load(ref, *self.args(op)) if state else self.copy(op)


def _named(ref: Any) -> tuple[Any, str]:
    """Memory under its own name, and the state in which it is read."""
    name, _, state = ref.name.partition(STATE)
    return (replace(ref, name=name), state) if name and state else (ref, "")


def _read(gradient: Kernel, kinds: tuple[type, ...]) -> set[tuple[Ref, Loc | None]]:
    """The primal memory that ``gradient`` reads in a certain state, and where the source reads it."""
    found = set()
    for op in gradient.walk():
        if op.code is ops.load and isinstance(op.attr, kinds):
            ref, state = _named(op.attr)
            if state or not isinstance(ref, TempRef):
                found.add((ref, op.loc))
    return found


def memory_accesses(primal: Kernel) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """What ``primal`` reads, and what it writes, one entry for each memory and first index. Atomics do both."""
    reads: dict[tuple[object, Size | None], Access] = {}
    writes: dict[tuple[object, Size | None], Access] = {}
    for op in primal.walk():
        ref = ref_of(op)
        if isinstance(ref, _OUTER) and ref.role == "primal" and op.code.effect in ("read", "write", "atomic"):
            access = Access(ref, op.loc, first_index(op))
            for found, effects in ((reads, ("read", "atomic")), (writes, ("write", "atomic"))):
                if op.code.effect in effects:
                    found.setdefault((ref, access.first), access)
    return tuple(reads.values()), tuple(writes.values())


def first_index(op: Op) -> Size | None:
    """The first index of an access, where the host can know it."""
    ref = ref_of(op)
    axes = len(ref.shape) if isinstance(ref, FieldRef) else ref.ndim if isinstance(ref, ArrayRef) else 0
    return size_of(op.args[0]) if axes else None


def _replayed(primal: Kernel, gradient: Kernel) -> list[Op]:
    """The accesses of ``primal`` whose values ``gradient`` reads again: those at the places in the source that its loads come from."""
    read = _read(gradient, _OUTER)
    found = []
    for op in primal.walk():
        reads = op.code is ops.load or _is_extremum(op)
        if reads and (ref_of(op), op.loc) in read:
            found.append(op)
    return found


def _is_extremum(op: Op) -> bool:
    return op.code is ops.atomic and op.attr[0] in _EXTREMA


def _mixed(found: Iterable[Need], loads: Iterable[Op]) -> Iterable[Conflict]:
    """Memory that would have to be in two states."""
    after = [need for need in found if need.when == "after"]
    for need in found:
        for other in after:
            if need.when == "before" and need.overwritten is not None and same_memory(need.ref, other.ref):
                yield from [Conflict(need.ref, op, need.loc, other.loc) for op in loads if op.loc == need.loc and op.attr == need.ref]
