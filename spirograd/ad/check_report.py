"""The report of a comparison of gradients with finite differences."""

from __future__ import annotations

from dataclasses import field

from spirograd.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What was compared of one memory: the element that is worst (relative to the tolerance), its gradient and the finite difference."""

    name: str
    compared: int
    elements: int
    index: tuple[int, ...]
    gradient: float
    difference: float
    first_wrong: tuple[int, ...] | None

    @property
    def error(self) -> float:
        return abs(self.gradient - self.difference)


@dataclass(frozen=True, slots=True)
class GradCheck:
    """The result of `gradcheck`: true if every gradient is within its tolerance. Prints as a table."""

    kernel: str
    rows: tuple[Row, ...] = field(default=())

    def __bool__(self) -> bool:
        return all(row.first_wrong is None for row in self.rows)

    def __str__(self) -> str:
        head = ("memory", "compared", "largest error", "at", "gradient", "difference", "")
        lines = [head]
        for r in self.rows:
            compared = f"{r.compared} of {r.elements}"
            verdict = "ok" if r.first_wrong is None else f"WRONG, first at {list(r.first_wrong)}"
            lines.append((r.name, compared, f"{r.error:.2e}", str(list(r.index)), f"{r.gradient:.8g}", f"{r.difference:.8g}", verdict))
        widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)
