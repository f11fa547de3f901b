"""A check under `CompileOptions.deterministic`: parallel loops have no operations whose results depend on the order of the iterations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, Kernel, Op, Region, SharedRef, TempRef, accesses_of, ref_of
from spirograd.ir.temp_kinds import TempKind
from spirograd.transforms.pass_context import PassContext

_PACKAGE = Path(__file__).resolve().parents[2]
# Modules of the package whose atomics return old values on which no result depends: each value goes to its place whatever the order.
_ORDERED = {str(_PACKAGE / "algorithms" / name) for name in ("one_sweep.py", "sorting.py")}
# Integers of the compiler, whose order shows in no value: see `TempKind`.
_COUNTERS = frozenset((TempKind.CAPACITY, TempKind.GUARD_COUNT, TempKind.CLAIMS, TempKind.LIMBS, TempKind.LIMB_RANGE))
_MODE = "`init(deterministic=True)` gives the same bits on each run"


def check_order(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Return ``kernel`` unchanged. Raise SpirogradUnsupportedError for the first atomic of a parallel task whose result depends on the
    order of the iterations."""
    for task in kernel.body.ops:
        if task.code is ops.task and task.attr.kind == "range_for":
            for region in task.regions[1:]:
                for op, problem, hint in unordered(region):
                    raise SpirogradUnsupportedError(f"{_MODE}, but {problem}", op.loc, hint)
    return kernel


def unordered(region: Region) -> Iterator[tuple[Op, str, str]]:
    """Yield the operations of a parallel loop whose results depend on the order of the iterations, other than sums of floats in memory
    (`is_sum`): each with a description, and what to do."""
    updating = [op for op in region.walk() if any(effect == "atomic" for effect, _ in accesses_of(op))]
    used = {a for op in region.walk() for a in op.args} if updating else set()
    for op in updating:
        reason = None if op.loc is not None and op.loc.file in _ORDERED else _reason(op, op in used)
        if reason is not None:
            yield (op, *reason)


def is_sum(op: Op) -> bool:
    """Return whether ``op`` is an atomic addition to floats outside of shared memory, which `exact_sums` replaces."""
    ref = ref_of(op)
    return op.code is ops.atomic and op.attr[0] == "add" and ref is not None and ref.dtype.is_float and not isinstance(ref, SharedRef)


def _reason(op: Op, used: bool) -> tuple[str, str] | None:
    """Return why the result of ``op`` depends on the order, and what to do; None if it does not."""
    if op.code is ops.claim:
        return None
    if op.code is ops.call_memory:
        return f"the real function `{op.attr.name}` has atomics", "make it a `sg.func`, which is inlined"
    ref = ref_of(op)
    assert ref is not None
    name = f"`{ref.name}`"
    if op.code is ops.cas:
        return f"the iteration that a compare-and-swap of {name} lets pass differs from run to run", "use sums, minima or maxima"
    if (isinstance(ref, TempRef) and ref.kind in _COUNTERS) or isinstance(ref, AdstackRef):
        return None
    kind = op.attr[0]
    if kind == "exchange":
        if op.primal is not None:  # The derivative of a store takes the adjoint of an element that one iteration writes.
            return None
        return f"the last of several exchanges of {name} differs from run to run", "let one iteration write each element"
    if used:
        return (
            f"the old value of {name} that this atomic `{kind}` returns depends on the order of the iterations",
            "compute places by a prefix sum (`sg.algorithms.PrefixSumExecutor`), or put `sg.loop_config(serialize=True)` before the loop",
        )
    if not ref.dtype.is_float or kind in ("min", "max") or is_sum(op):
        return None
    if isinstance(ref, SharedRef):
        return (
            f"additions to the shared array {name} round in an order that differs from run to run",
            "add with `sg.simt.block.reduce_add`, or let one thread add",
        )
    return f"the products of an atomic `{kind}` of {name} round in an order that differs from run to run", "add logarithms"
