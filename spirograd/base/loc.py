"""Source locations: the place in the user's Python that an operation comes from."""

from __future__ import annotations

from spirograd.base.constraints import Index
from spirograd.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Loc:
    """A span of a source file (lines from 1, columns from 0), and the call that inlined it, if any."""

    file: str
    line: Index
    col: Index = 0
    end_line: Index = 0
    end_col: Index = 0
    function: str = ""
    caller: Loc | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def chain(self) -> list[Loc]:
        """Return this location and those of the calls around it, innermost first."""
        out: list[Loc] = [self]
        while out[-1].caller is not None:
            out.append(out[-1].caller)
        return out
