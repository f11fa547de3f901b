"""The record of the nested checkpoints of a gradient: which loops have them, and with how many levels."""

from __future__ import annotations

from typing import Annotated

from spirograd.base.constraints import Index, Within
from spirograd.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Nesting:
    """The loops that become nests. ``levels``: the depth of each nest, by the number of the loop (see `loop_numbers`). ``length``: the
    largest trip count, a power of two, of each loop of a nest but the outermost."""

    levels: tuple[tuple[Index, Annotated[int, Within(1, 64)]], ...]
    length: Annotated[int, Within(1, 1 << 30)]

    def entries(self, number: int, iterations: int) -> int:
        """Return how many of a loop's iterations have an entry at a time, in the adstacks of all levels."""
        level = dict(self.levels).get(number, 1)
        return -(-iterations // int(self.length ** (level - 1))) + (level - 1) * self.length
