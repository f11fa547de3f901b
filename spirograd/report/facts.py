"""Facts about a kernel besides its stages: arguments, the argument block, dispatches."""

from __future__ import annotations

from spirograd.base.artifact import CompiledKernel, Slot, TaskInfo
from spirograd.base.dtypes import i32, u32, u64
from spirograd.base.sizes.size_text import size_text
from spirograd.base.targets import Target
from spirograd.ir.nodes import ArrayArg, Kernel
from spirograd.ir.size_names import size_names
from spirograd.ir.slot_names import slot_names


def signature(kernel: Kernel) -> str:
    """Return the signature as ``name(argument: type, ...)``."""
    parts = []
    for argument in kernel.args:
        text = argument.dtype.name
        if isinstance(argument, ArrayArg):
            shape = "".join(f"<{n}>" for n in argument.element_shape)
            text += f"{shape}[{', '.join(':' * argument.ndim)}]"
        parts.append(f"{argument.name}: {text}")
    return f"{kernel.name}({', '.join(parts)})"


def block_rows(compiled: CompiledKernel, kernel: Kernel) -> list[dict[str, object]]:
    """Return the entries of the argument block, each with the tasks whose descriptor sets bind it: ``task:binding``."""
    names = slot_names(kernel, compiled.args.slots)
    rows = []
    for slot in compiled.args.slots:
        bound = [
            f"{task.name}:{k}{' (shared)' if len(offsets) > 1 else ''}"
            for task in compiled.tasks
            for k, offsets in enumerate(task.bindings)
            if slot.offset in offsets
        ]
        rows.append({"offset": slot.offset, "kind": slot.kind, "name": names[slot], "type": _slot_type(slot), "bindings": bound})
    return rows


def _slot_type(slot: Slot) -> str:
    if slot.is_buffer:
        return f"address ({u64.name})"
    return (slot.dtype or (u32 if slot.kind in ("seed", "launch") else i32)).name


def dispatch(task: TaskInfo, kernel: Kernel, target: Target, max_groups: int) -> dict[str, str]:
    """Return the dispatch of a task: its ``bounds``, how they are ``known``, ``groups`` and ``group_size``; empty if it has none."""
    if task.kind == "serial":
        return {"bounds": "one invocation", "known": "constant", "groups": "1", "group_size": "1"}
    begin, end = task.begin, task.end
    if begin is None or end is None:
        known, bounds, count = "device", "computed by the task", ""
    else:
        known = "constant" if isinstance(begin, int) and isinstance(end, int) else "argument"
        names = size_names(kernel)
        low, high = size_text(begin, names), size_text(end, names)
        bounds, count = f"{low} .. {high}", high if begin == 0 else f"{high} - {low}"
    if not target.invocations:
        return {"bounds": bounds, "known": known, "groups": "", "group_size": ""}
    limit = task.max_groups or max_groups
    each = task.group_size * task.coarsening
    if isinstance(begin, int) and isinstance(end, int):
        groups = str(min(-(-max(end - begin, 0) // each), limit))
    else:
        count = f"({count})" if " " in count else count
        groups = f"min(ceil({count} / {each}), {limit})" if count else f"{limit}"
    return {"bounds": bounds, "known": known, "groups": f"at most {groups}", "group_size": str(task.group_size)}
