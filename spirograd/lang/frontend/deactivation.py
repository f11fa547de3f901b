"""`deactivate_all` of one sparse node, from Python: a kernel over its active cells."""

from __future__ import annotations

from typing import Any

from spirograd.lang.annotations import template
from spirograd.lang.forms import deactivate, grouped
from spirograd.lang.frontend.decorators import kernel


@kernel
def _deactivate_cells(node: template()) -> None:  # type: ignore[valid-type]
    for cell in grouped(node):
        deactivate(node, cell)


def deactivate_cells(node: Any) -> None:
    """Deactivate all cells of a sparse node."""
    _deactivate_cells(node)

