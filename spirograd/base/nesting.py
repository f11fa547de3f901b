"""Nested checkpoints of a gradient, as a record: which loops have them, and with how many levels."""

from __future__ import annotations

from typing import Annotated

from spirograd.base.constraints import Index, Within
from spirograd.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Nesting:
    """Which loops become nests. ``levels``: of how many loops, by the number of the loop (see `loop_numbers`). ``length``: how many
    iterations each but the outermost has at most, a power of two."""

    levels: tuple[tuple[Index, Annotated[int, Within(1, 64)]], ...]
    length: Annotated[int, Within(1, 1 << 30)]

    def entries(self, number: int, iterations: int) -> int:
        """How many iterations of a loop with so many have an entry at a time, in the adstacks of all levels."""
        level = dict(self.levels).get(number, 1)
        return -(-iterations // int(self.length ** (level - 1))) + (level - 1) * self.length
