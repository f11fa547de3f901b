"""Readable names for the entries of an argument block: those of the fields and arguments that they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from spirograd.base.artifact import Slot
from spirograd.ir.nodes import BufferRef, FieldRef, Kernel

# Of a tree with more fields than this only the first ones are named.
_MOST = 3


def slot_names(kernel: Kernel, slots: Iterable[Slot]) -> dict[Slot, str]:
    """A name for each of ``slots``, made of letters, digits and underscores; no two are the same. ``kernel``: IR of any level."""
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
        found = trees.get(slot.index, [])
        rest = f"_and_{len(found) - _MOST}_more" if len(found) > _MOST else ""
        return "_".join(found[:_MOST]) + rest if found else f"tree_{slot.index}"
    if slot.kind in ("array", "scalar", "shape"):
        # IR made by hand may have slots without arguments.
        name = kernel.args[slot.index].name if slot.index < len(kernel.args) else f"{slot.kind}_{slot.index}"
        if slot.kind == "shape":
            return f"{name}_shape{slot.axis}"
        return name if slot.role == "primal" else f"{name}_{slot.role}"
    return slot.kind


def _tree_names(kernel: Kernel) -> dict[int, list[str]]:
    """The names of the fields of each tree that ``kernel`` touches, in order of appearance."""
    found: dict[int, dict[str, None]] = {}
    for _, ref in kernel.accesses:
        if isinstance(ref, FieldRef):
            found.setdefault(ref.tree, {})[ref.name] = None
        elif isinstance(ref, BufferRef) and ref.slot.kind == "tree":
            found.setdefault(ref.slot.index, {})[ref.name] = None
    return {tree: list(names) for tree, names in found.items()}
