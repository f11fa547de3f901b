"""Checks of the indices of every access to a field, an array or a shared array."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.artifact import FAULT_MAX_OPERANDS, FaultSite
from spirograd.base.dtypes import VOID, DType, Vec, i32
from spirograd.ir import ops
from spirograd.ir.array_layouts import in_program_order
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, SharedRef, rank, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def check_bounds(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Emit a `check` before each access whose indices are not known to be in range, and at run-time indices of local vectors.

    An access that fails is skipped: a load gives 0, and so does an atomic.
    """
    return _CheckBounds().kernel(kernel)


class _CheckBounds(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        for code in (ops.load, ops.store, ops.atomic, ops.cas):
            self.handlers[code] = self._access
        for code in (ops.extract, ops.insert):
            self.handlers[code] = self._component

    def _component(self, op: Op) -> Op:
        """Check an access to an element of a local vector or matrix. An index out of range accesses some element, so the access need not be
        skipped."""
        new = self.copy(op)
        vector, index = new.args[:2]
        assert isinstance(vector.type, Vec)
        inside = self._inside([index], [0], [vector.type.n])
        if inside is not None:
            message = f"index ({{0}}) out of range of a local vector or matrix of {vector.type.n} entries"
            self.b.emit(ops.check, inside, index, attr=FaultSite("bounds", message, (_dtype(index),), op.loc), type=VOID)
        return new

    def _access(self, op: Op) -> Op | None:
        ref = ref_of(op)
        if not isinstance(ref, (FieldRef, ArrayRef, SharedRef)):
            return self.copy(op)
        args, axes = self.args(op), rank(ref)
        indices = args[:axes]
        origin = (*(ref.layout.origin if isinstance(ref, FieldRef) else ()), *[0] * axes)[:axes]
        extents = self._extents(ref)
        inside = self._inside(indices, origin, extents)
        if inside is None:
            return self.copy(op)
        b = self.b
        b.emit(ops.check, inside, *self._operands(indices, extents), attr=_site(op, ref, indices, origin, extents), type=VOID)
        b.begin()
        done = b.append(Op(op.code, op.type, args, op.attr, (), op.loc))
        value = () if op.code is ops.store else (done,)
        then = b.end(value)
        b.begin()
        orelse = b.end((b.const(0, ref.dtype),) if value else ())
        results = b.if_(inside, then, orelse)
        return results[0] if results else None

    def _extents(self, ref: FieldRef | ArrayRef | SharedRef) -> list[int | Op]:
        if isinstance(ref, SharedRef):
            return [ref.length]
        if isinstance(ref, FieldRef):
            return [*ref.shape, *ref.element_shape]
        outer = [self.b.emit(ops.shape, attr=(ref.arg, axis), type=i32) for axis in range(ref.ndim)]
        return [*outer, *ref.element_shape]

    def _inside(self, indices: Sequence[Op], origin: Sequence[int], extents: Sequence[int | Op]) -> Op | None:
        """Return whether all indices are in range, or None if they are known to be."""
        b = self.b
        inside: Op | None = None
        for index, low, extent in zip(indices, origin, extents):
            if isinstance(extent, int) and index.code is ops.const and low <= index.attr < low + extent:
                continue
            t = _dtype(index)
            high = b.const(low + extent, t) if isinstance(extent, int) else b.cast(extent, t)
            ok = b.emit(ops.and_, b.emit(ops.ge, index, b.const(low, t)), b.emit(ops.lt, index, high))
            inside = ok if inside is None else b.emit(ops.and_, inside, ok)
        return inside

    def _operands(self, indices: Sequence[Op], extents: Sequence[int | Op]) -> list[Op]:
        return [*indices, *[e for e in extents if not isinstance(e, int)]][:FAULT_MAX_OPERANDS]


def _dtype(op: Op) -> DType:
    assert isinstance(op.type, DType)
    return op.type


def _site(
    op: Op, ref: FieldRef | ArrayRef | SharedRef, indices: Sequence[Op], origin: Sequence[int], extents: Sequence[int | Op]
) -> FaultSite:
    """Return the fault site, whose message shows the value and the range of each index."""
    shown = [f"{{{k}}}" if k < FAULT_MAX_OPERANDS else "?" for k in range(len(indices))]
    ranges, operand = [], len(indices)
    for low, extent in zip(origin, extents):
        if isinstance(extent, int):
            ranges.append(f"[{low}, {low + extent})")
        else:
            ranges.append(f"[0, {{{operand}}})" if operand < FAULT_MAX_OPERANDS else "[0, ?)")
            operand += 1
    role = "" if isinstance(ref, SharedRef) or ref.role == "primal" else f".{ref.role}"
    what = "field" if isinstance(ref, FieldRef) else "array" if isinstance(ref, ArrayRef) else "shared array"
    if isinstance(ref, ArrayRef):
        shown, ranges = in_program_order(ref.layout, shown), in_program_order(ref.layout, ranges)
    message = f"index ({', '.join(shown)}) out of range of {what} `{ref.name}{role}`: {' x '.join(ranges)}"
    dtypes = [_dtype(i) for i in indices] + [i32 for e in extents if not isinstance(e, int)]
    return FaultSite("bounds", message, tuple(dtypes[:FAULT_MAX_OPERANDS]), op.loc)
