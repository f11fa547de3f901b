"""One difference between spirograd and the Taichi family."""

from __future__ import annotations

from typing import Any, NamedTuple


class Difference(NamedTuple):
    """``theirs``, ``ours``: the cells of the table. ``outcomes``: of ``program`` on quadrants and on spirograd; None where no program of a
    few lines shows the difference."""

    situation: str
    theirs: str
    ours: str
    program: str = ""
    outcomes: tuple[str, str] | None = None
    options: dict[str, Any] = {}
