"""Plain text tables, without optional packages."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Format rows as columns aligned to the left; the last one may have any width."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [head, ["-" * w for w in widths], *rows]
    return "\n".join(indent + "  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)
