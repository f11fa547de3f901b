"""Readable names for the entries of an argument block: the names of the fields and arguments that the entries hold."""

from __future__ import annotations

import re
from collections.abc import Iterable

from spirograd.base.artifact import Slot
from spirograd.ir.nodes import BufferRef, FieldRef, Kernel

# The most fields of a tree that are named.
_MOST = 3


def slot_names(kernel: Kernel, slots: Iterable[Slot]) -> dict[Slot, str]:
    """Return a name for each of ``slots``: letters, digits and underscores, with no two names the same. ``kernel``: IR of any level."""
    trees = _tree_names(kernel)
    names: dict[Slot, str] = {}
    taken: set[str] = set()
    for slot in slots:
        base = re.sub(r"\W+", "_", _name(kernel, trees, slot)).strip("_") or slot.kind
        name = base if base not in taken else f"{base}_at{slot.offset}"
        taken.add(name)
        names[slot] = name
    return names


def _name(kernel: Kernel, trees: dict[int, list[str]], slot: Slot) -> str:
    if slot.kind == "tree":
        names = trees.get(slot.index, [])
        rest = f"_and_{len(names) - _MOST}_more" if len(names) > _MOST else ""
        return "_".join(names[:_MOST]) + rest if names else f"tree_{slot.index}"
    if slot.kind in ("array", "scalar", "shape"):
        # IR that is written by hand may have slots without arguments.
        name = kernel.args[slot.index].name if slot.index < len(kernel.args) else f"{slot.kind}_{slot.index}"
        if slot.kind == "shape":
            return f"{name}_shape{slot.axis}"
        return name if slot.role == "primal" else f"{name}_{slot.role}"
    return slot.kind


def _tree_names(kernel: Kernel) -> dict[int, list[str]]:
    """Return the names of the fields of each tree that ``kernel`` accesses, in order of appearance."""
    trees: dict[int, dict[str, None]] = {}
    for _, ref in kernel.accesses:
        if isinstance(ref, FieldRef):
            trees.setdefault(ref.tree, {})[ref.name] = None
        elif isinstance(ref, BufferRef) and ref.slot.kind == "tree":
            trees.setdefault(ref.slot.index, {})[ref.name] = None
    return {tree: list(names) for tree, names in trees.items()}
