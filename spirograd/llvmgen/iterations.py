"""Emits a range task, one iteration after the other; `lanes` and `distributed` run iterations in other ways."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.dtypes import Type
from spirograd.ir.nodes import Region
from spirograd.llvmgen.emit_control import counted_loop
from spirograd.llvmgen.parts import PartsEmitter


class TaskEmitter(PartsEmitter):
    """Emits the function of a range task."""

    def iterations(
        self, index: Type, begin: str, end: str, types: Sequence[Type], initial: Sequence[str], body: Region, suffix: str
    ) -> list[str]:
        """The iterations of the parallel loop from ``begin`` to ``end``: as `counted_loop`."""
        return counted_loop(self, index, begin, end, types, initial, body, suffix)
