"""Marks (`ArrayRef.disjoint`) on the arrays of tasks that read one array after they have written another, for GPUs.

An invocation waits for memory most of its time. It can have many loads under way only if they need not wait for stores, and without marks
a store may be to any array that the program passes. Loads of what the task does not write also move out of loops, and are read through the
cache for constants.
"""

from __future__ import annotations

from spirograd.analysis.compared_arrays import Array, array_of
from spirograd.analysis.effects import WRITING, touches, writes
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, Kernel, Op, Region, accesses_of
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.tasks.disjoint_arrays import mark_disjoint, marked_arrays

# The largest number of arrays with marks in a kernel. Launches sort them, or compare them once if they are always the same.
MOST_SEPARATE = 256
_LOOPS = frozenset((ops.for_, ops.while_))


def separate_arrays(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Mark the arrays of parallel loops that read one after they have written another."""
    if not ctx.options.optimize or ctx.options.overlapping or not ctx.caps.target.tells_disjoint:
        return kernel
    found: set[Array] = set()
    for op in kernel.body.ops:
        if op.code is ops.for_ and op.attr.parallel and _reads_after_another(op.regions[0], set()):
            found |= {array_of(ref) for ref in touches(op) if isinstance(ref, ArrayRef)}
    return mark_disjoint(kernel, found) if len(marked_arrays(kernel) | found) <= MOST_SEPARATE else kernel


def _reads_after_another(region: Region, written: set[Array]) -> bool:
    """Return whether ``region`` reads an array after another array was written. ``written``: the arrays that were written before; those
    that ``region`` writes are added."""
    for op in region.ops:
        for effect, array in _arrays_of(op):
            if effect != "write" and written - {array}:
                return True
            if effect in WRITING:
                written.add(array)
        if op.code in _LOOPS:  # An iteration reads after the one before has written.
            written |= {array_of(ref) for ref in writes(op) if isinstance(ref, ArrayRef)}
        if any(_reads_after_another(inner, written) for inner in op.regions):
            return True
    return False


def _arrays_of(op: Op) -> list[tuple[str, Array]]:
    """Return the arrays that ``op`` itself accesses, each with the effect."""
    return [] if op.code is ops.call_memory else [(effect, array_of(ref)) for effect, ref in accesses_of(op) if isinstance(ref, ArrayRef)]
