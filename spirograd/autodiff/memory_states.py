"""The states of primal memory that a gradient kernel reads (before or after the primal), and the loads whose values are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spirograd.analysis.sizes import size_of
from spirograd.autodiff.derivative import PrimalAccess, Residual, Slice
from spirograd.autodiff.residuals import Conflict, not_final, outer_key, residuals, too_late
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Ref, TempRef, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.temp_kinds import TempKind

_OUTER = (FieldRef, ArrayRef)


def memory_residuals(primal: Kernel, gradient: Kernel) -> tuple[tuple[Residual, ...], tuple[Conflict, ...]]:
    """Return the residuals of ``gradient``, the gradient kernel of ``primal``, one for each memory and slice, and the loads whose values
    are lost."""
    accesses = _repeated(primal, gradient, lambda ref: isinstance(ref, _OUTER))
    finals = [op for op in accesses if op.code is not ops.load]
    served, conflicts = residuals(primal, [op for op in accesses if op.code is ops.load], finals)
    conflicts += not_final(primal, finals)
    by_memory = {outer_key(residual.ref): residual for residual in served}
    out: dict[Residual, None] = {}
    for op in accesses:
        ref = ref_of(op)
        assert isinstance(ref, _OUTER)
        if op.code is not ops.load:
            out[Residual(ref, "after", op.loc, at=slice_of(op))] = None
            continue
        residual = by_memory.get(outer_key(ref))
        if residual is not None:
            out[replace(residual, ref=ref, at=slice_of(op))] = None
    return tuple(out), conflicts


def old_values(primal: Kernel, gradient: Kernel) -> tuple[Conflict, ...]:
    """Return the atomics of ``primal`` whose old values ``gradient`` needs. Recomputation in another order of iterations would give other
    values."""
    repeated = _repeated(primal, gradient, lambda ref: isinstance(ref, TempRef) and ref.kind is TempKind.OLD_VALUE)
    return tuple([Conflict(ref_of(op), op, op.loc, op.loc) for op in repeated])  # type: ignore[arg-type]


def late_temps(primal: Kernel, gradient: Kernel) -> tuple[Conflict, ...]:
    """Return the reads of temporaries whose values are lost in ``gradient``, because the primal overwrites the temporary after the read."""
    repeated = _repeated(primal, gradient, lambda ref: isinstance(ref, TempRef) and bool(ref.state))
    loads, finals = [op for op in repeated if op.code is ops.load], [op for op in repeated if op.code is not ops.load]
    return (*too_late(primal, loads), *not_final(primal, finals))


def unserved(primal: Kernel, refs: Iterable[Ref]) -> tuple[Conflict, ...]:
    """Return the loads of ``primal`` from the memory and the temporaries ``refs`` whose values would be lost if the gradient needed all of
    them."""
    wanted = {_identity(ref) for ref in refs}
    loads = [op for op in primal.walk() if op.code is ops.load and _identity(op.attr) in wanted]
    outer = [op for op in loads if isinstance(op.attr, _OUTER)]
    return (*residuals(primal, outer)[1], *too_late(primal, [op for op in loads if op not in set(outer)]))


def _identity(ref: Ref) -> object:
    """Return a key that references to one memory have in common, in all states."""
    return outer_key(ref) if isinstance(ref, _OUTER) else replace(ref, state="") if isinstance(ref, TempRef) else ref


def without_states(gradient: Kernel) -> Kernel:
    """Return ``gradient`` with a single reference to each memory, in place of one for each state."""
    return _WithoutStates().kernel(gradient)


class _WithoutStates(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.load: self._load}

    def _load(self, op: Op) -> Op:
        ref = op.attr
        if isinstance(ref, (FieldRef, ArrayRef, TempRef)) and ref.state:
            return self.b.load(replace(ref, state=""), *self.args(op))
        return self.copy(op)


def _repeated(primal: Kernel, gradient: Kernel, read: Callable[[Ref], bool]) -> list[Op]:
    """Return the accesses of ``primal``, in order, that are repeated by loads of ``gradient`` from memory that ``read`` accepts."""
    wanted = {op.primal for op in gradient.walk() if op.code is ops.load and read(op.attr)}
    return [op for op in primal.walk() if op in wanted]


def memory_accesses(primal: Kernel) -> tuple[tuple[PrimalAccess, ...], tuple[PrimalAccess, ...]]:
    """Return the reads and the writes of ``primal``, one entry for each memory and slice. Atomics are both."""
    reads: dict[tuple[object, Slice | None], PrimalAccess] = {}
    writes: dict[tuple[object, Slice | None], PrimalAccess] = {}
    for op in primal.walk():
        ref = ref_of(op)
        if isinstance(ref, _OUTER) and ref.role == "primal" and op.code.effect in ("read", "write", "atomic"):
            access = PrimalAccess(ref, op.loc, slice_of(op))
            for accesses, effects in ((reads, ("read", "atomic")), (writes, ("write", "atomic"))):
                if op.code.effect in effects:
                    accesses.setdefault((ref, access.at), access)
    return tuple(reads.values()), tuple(writes.values())


def slice_of(op: Op) -> Slice | None:
    """Return the slice that an access is in, if the host can know one: along the first axis whose index depends on the launch, else along
    the first one with a constant index."""
    ref = ref_of(op)
    axes = len(ref.shape) if isinstance(ref, FieldRef) else ref.ndim if isinstance(ref, ArrayRef) else 0
    number = ref.program_axis if isinstance(ref, ArrayRef) else int
    slices = [Slice(number(axis), size) for axis, index in enumerate(op.args[:axes]) if (size := size_of(index)) is not None]
    return next((at for at in slices if not isinstance(at.index, int)), slices[0] if slices else None)
