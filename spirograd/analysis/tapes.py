"""The tapes of a kernel, by number, and which task each belongs to."""

from __future__ import annotations

from spirograd.base.artifact import TapeInfo
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, TapeRef


def tapes_of(kernel: Kernel) -> dict[TapeRef, TapeInfo]:
    """The tapes of ``kernel``, a list of tasks, in order of first appearance: the position of each is its number."""
    found: dict[TapeRef, TapeInfo] = {}
    for task in kernel.body.ops:
        if task.code is not ops.task:
            continue
        owner = None if task.attr.kind == "serial" else task.attr.name
        for region in task.regions:
            for op in region.walk():
                ref = op.attr
                if isinstance(ref, TapeRef) and ref not in found:
                    found[ref] = TapeInfo(ref.name, ref.dtype, ref.width, ref.capacity, owner)
    return found
