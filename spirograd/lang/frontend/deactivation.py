"""`deactivate_all` of one sparse node, from Python: a kernel over its active cells, or over the cells around its lists."""

from __future__ import annotations

from typing import Any

from spirograd.lang.annotations import template
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


def deactivate_cells(node: Any) -> None:
    """Deactivate all cells of a sparse node; have all its lists no entries."""
    if node.kind != "dynamic":
        _deactivate_cells(node)
    elif node.above.axis_numbers:
        _empty_lists(node, node.above)
    else:
        _empty_list(node)
