"""Source lines of the lines of stages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from spirograd.base.records import dataclass

# A Python source line: (file, line).
Place = tuple[str, int]


@dataclass(slots=True)
class Places:
    """A numbering of source lines, so that a stage refers to them by small numbers."""

    all: list[Place] = field(default_factory=list)
    _numbers: dict[Place, int] = field(default_factory=dict)

    def number(self, place: Place | None) -> int:
        """Return the number of ``place``; -1 for none."""
        if place is None:
            return -1
        number = self._numbers.get(place)
        if number is None:
            number = self._numbers[place] = len(self.all)
            self.all.append(place)
        return number

    def numbers(self, places: Iterable[Place | None]) -> list[int]:
        return [self.number(place) for place in places]


@dataclass(frozen=True, slots=True)
class Listing:
    """The lines of one stage, the source line of each, and a note for the reader (why there is no text, or no source lines).

    ``also``: further source lines by the number of a line, if one line computes several lines of Python.
    """

    lines: list[str]
    places: list[Place | None]
    note: str = ""
    also: dict[int, list[Place]] = field(default_factory=dict)
