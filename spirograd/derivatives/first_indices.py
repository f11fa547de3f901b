"""The memory that a kernel accesses, by first indices, where the host can know them at a launch (a time step, as a rule)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spirograd.autodiff.memory_states import first_index
from spirograd.base.sizes.size_nodes import Size
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, ref_of

Outer = FieldRef | ArrayRef


def accesses_by_first_index(kernel: Kernel, effects: Collection[str]) -> Sequence[tuple[Outer, Size | None]]:
    """Return the primal memory that operations of ``effects`` of ``kernel`` (kernel IR) access, with each first index; None where the
    host does not know the index."""
    accesses: dict[tuple[Outer, Size | None], None] = {}
    for region, known in (*[(function.body, False) for function in kernel.functions], (kernel.body, True)):
        for op in region.walk():
            ref = ref_of(op)
            if isinstance(ref, (FieldRef, ArrayRef)) and ref.role == "primal" and op.code.effect in effects:
                accesses[ref, first_index(op) if known else None] = None
    return tuple([(ref, first) for ref, first in accesses if first is None or (ref, None) not in accesses])
