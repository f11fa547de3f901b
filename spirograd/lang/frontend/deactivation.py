"""`deactivate_all` of one sparse node, from Python: a kernel over its active cells, or over the cells around its lists."""

from __future__ import annotations

from spirograd.lang.annotations import template
from spirograd.lang.data.nodes import Dynamic, SNode
from spirograd.lang.forms import deactivate, grouped
from spirograd.lang.frontend.decorators import kernel


@kernel
def _deactivate_cells(node: template()) -> None:  # type: ignore[valid-type]
    for cell in grouped(node):
        deactivate(node, cell)


@kernel
def _empty_lists(node: template(), around: template()) -> None:  # type: ignore[valid-type]
    for cell in grouped(around):
        deactivate(node, cell)


@kernel
def _empty_list(node: template()) -> None:  # type: ignore[valid-type]
    deactivate(node, None)


def deactivate_cells(node: SNode) -> None:
    """Deactivate all cells of a sparse node; have all its lists no entries."""
    if not isinstance(node, Dynamic):
        _deactivate_cells(node)
    elif node.above is not None and node.above.axis_numbers:
        _empty_lists(node, node.above)
    else:
        _empty_list(node)
