"""Lines of stages and the lines of Python that they come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from spirograd.base.records import dataclass

# (file, line) of Python, as the compiler knows them.
Place = tuple[str, int]


@dataclass(slots=True)
class Places:
    """Numbers for places, so that a stage says in one small number where a line comes from."""

    all: list[Place] = field(default_factory=list)
    _numbers: dict[Place, int] = field(default_factory=dict)

    def number(self, place: Place | None) -> int:
        """The number of ``place``; -1 for none."""
        if place is None:
            return -1
        found = self._numbers.get(place)
        if found is None:
            found = self._numbers[place] = len(self.all)
            self.all.append(place)
        return found

    def numbers(self, places: Iterable[Place | None]) -> list[int]:
        return [self.number(place) for place in places]


@dataclass(frozen=True, slots=True)
class Listing:
    """The lines of one stage, the place of each, and what the reader should know about it (why there is no text, or no places).

    ``also``: number of a line -> places that it comes from besides, where one line computes what several lines of Python say.
    """

    lines: list[str]
    places: list[Place | None]
    note: str = ""
    also: dict[int, list[Place]] = field(default_factory=dict)
