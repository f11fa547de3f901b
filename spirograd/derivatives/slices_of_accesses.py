"""The memory that a kernel accesses, by slices at one index of one axis, where the host can know the index at launch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spirograd.autodiff.derivative import Slice
from spirograd.autodiff.memory_states import slice_of
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, ref_of

Outer = FieldRef | ArrayRef


def accesses_by_slice(kernel: Kernel, effects: Collection[str]) -> Sequence[tuple[Outer, Slice | None]]:
    """Return the primal memory that operations of ``effects`` of ``kernel`` (kernel IR) access, with each slice; None where the host does
    not know one."""
    accesses: dict[tuple[Outer, Slice | None], None] = {}
    for region, known in (*[(function.body, False) for function in kernel.functions], (kernel.body, True)):
        for op in region.walk():
            ref = ref_of(op)
            if isinstance(ref, (FieldRef, ArrayRef)) and ref.role == "primal" and op.code.effect in effects:
                accesses[ref, slice_of(op) if known else None] = None
    return tuple([(ref, at) for ref, at in accesses if at is None or (ref, None) not in accesses])
