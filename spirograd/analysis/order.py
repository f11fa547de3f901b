"""A description of what `CompileOptions.deterministic` changes in the tasks of a kernel, for `kernel.explain()`."""

from __future__ import annotations

from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, TempRef, ref_of
from spirograd.ir.temp_kinds import TempKind

_PREFIX = "limbs_of_"  # of the names of temporaries that hold superaccumulators


def limbs_name(name: str) -> str:
    """Return the name of the temporary that holds superaccumulators for memory with this name."""
    return f"{_PREFIX}{name}"


def changes_for_order(before: Kernel, after: Kernel) -> tuple[str, ...]:
    """Return a sentence for each task of ``before`` that runs in another way in ``after``, or whose accumulators are sums of floats."""
    now = {op.attr.name: op for op in after.body.ops if op.code is ops.task}
    lines = []
    for op in before.body.ops:
        if op.code is not ops.task or op.attr.kind != "range_for":
            continue
        place = "" if op.loc is None else f", {op.loc}"
        for what in _changes(op, now[op.attr.name]):
            lines.append(f"task {op.attr.name}{place}: deterministic, {what}")
    return tuple(lines)


def _changes(before: Op, after: Op) -> list[str]:
    if after.attr.kind == "serial":
        return ["one thread runs the iterations in order"]
    refs = [ref for ref in map(ref_of, after.regions[1].walk()) if isinstance(ref, TempRef) and ref.kind is TempKind.LIMBS]
    summed = sorted({ref.name.removeprefix(_PREFIX) for ref in refs})
    changes = [f"adds to {', '.join(f'`{name}`' for name in summed)} exactly, as integers"] if summed else []
    if any(r.dtype.is_float and r.kind in ("add", "mul") for r in before.attr.reductions):
        changes.append("reduces parts of the range that do not depend on the launch, and adds these exactly")
    return changes
