"""The memory of fields, as text."""

from __future__ import annotations

from spirograd.lang.data import tree
from spirograd.lang.data.nodes import Place, SNode


def fields() -> str:
    """Return the nodes of all field trees that have memory in the running session, with the bytes of a cell of each."""
    trees = sorted([t for t in tuple(tree.with_memory) if t.has_memory()], key=lambda t: t.id)
    lines = [line for t in trees for line in (f"tree {t.id}: {t.nbytes} bytes", *_nodes(t.root, 1))]
    return "\n".join([*lines, f"{sum(t.nbytes for t in trees)} bytes in {len(trees)} field trees"])


def _nodes(node: SNode, level: int) -> list[str]:
    lines = []
    for inner in node.children:
        if isinstance(inner, Place):
            inner.field.take_name()
            lines.append(f"{'  ' * level}{inner.field.name}: {inner.dtype}")
        else:
            lines.append(f"{'  ' * level}{inner.kind} {list(inner.extents)}: {inner.cell_size} bytes a cell")
            lines += _nodes(inner, level + 1)
    return lines
