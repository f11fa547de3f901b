"""The table: a line of Markdown for each row, goals, and what is said below."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.columns import Column
from benchmarks.gpu.rows import Row


def milliseconds(seconds: float) -> str:
    """Three digits, in microseconds below 0.1 ms."""
    if seconds >= 1:
        return f"{seconds * 1e3:,.0f} ms"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.3g} us"


class Table:
    """Rows as they come. Ratios are of the first column."""

    def __init__(self, columns: list[Column], full: bool) -> None:
        self.columns, self.full = columns, full
        self.lines: list[str] = []
        self.notes: list[str] = []
        self._rows: dict[str, dict[str, Any]] = {}
        self._first: dict[str, float] = {}  # seconds of the first column by row
        self._copy = 0.0  # rate of the fastest copy

    def head(self) -> list[str]:
        names = [column.name for column in self.columns]
        heads = ["program", *names, f"{names[0]} / best other", "goal", f"{names[0]} / goal"]
        return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]

    def add(self, row: Row) -> str:
        """The line of a row that was measured."""
        size = row.full if self.full else row.small
        best = {column.name: way.best for column in self.columns if (way := column.best)}
        others = [best[column.name] for column in self.columns if not column.ours and column.name in best]
        ours = best.get(self.columns[0].name)
        amount = row.amount(size) if row.amount else None
        if row.name == "copy" and amount:
            self._copy = max((amount / seconds for seconds in best.values()), default=0.0)
        if ours:
            self._first[row.name] = ours
        goal = self._goal(row, amount)
        cells = [row.title if self.full else f"{row.name} {size}", *(self._cell(row, column, amount) for column in self.columns)]
        cells.append(f"{ours / min(others):.2f}" if ours and others else "")
        cells += [_goal_text(row) if self.full else "", f"{ours / goal:.2f}" if ours and goal else ""]
        self._say(row)
        self._rows[row.name] = {
            "size": size, "amount": amount, "unit": row.unit, "goal": goal,
            "columns": {column.name: [way.as_json() for way in column.ways or ()] for column in self.columns},
        }  # fmt: skip
        self.lines.append(f"| {' | '.join(cells)} |")
        if row.name == "eight_by_hand":
            self._by_hand()
        return self.lines[-1]

    def _cell(self, row: Row, column: Column, amount: float | None) -> str:
        way = column.best
        if way is None:
            return "-" if column.ways is None else "failed"
        rate = f", {amount / way.best:.3g} {row.unit}" if amount else ""
        return milliseconds(way.best) + rate

    def _goal(self, row: Row, amount: float | None) -> float | None:
        """Seconds."""
        if not row.goal or not self.full:
            return None
        if row.goal_of == "ms":
            return row.goal * 1e-3
        if row.goal_of == "rate" and amount:
            return amount / row.goal
        if row.goal_of == "copy" and amount and self._copy:
            return amount / (row.goal * self._copy)
        return None

    def _by_hand(self) -> None:
        """How loops that spirograd fuses compare with one loop, which is measured after them."""
        for column in self.columns:
            pair = [self._rows.get(name, {}).get("columns", {}).get(column.name) for name in ("eight_loops", "eight_by_hand")]
            best = [min((way["best"] for way in ways or () if "best" in way), default=None) for ways in pair]
            if best[0] and best[1]:
                self.notes.append(f"eight loops, {column.name}: {best[0] / best[1]:.2f} times as long as by hand (goal: 1.1)")

    def _say(self, row: Row) -> None:
        """What failed, and which of several ways was the fastest."""
        for column in self.columns:
            way = column.best
            if way and way.label and len(column.ways or ()) > 1:
                self.notes.append(f"{row.title}, {column.name}: {way.label}")
            for failed in (way for way in column.ways or () if way.error):
                label = f" ({failed.label})" if failed.label else ""
                self.notes.append(f"{row.title}, {column.name}{label}: {failed.error}")

    def as_json(self) -> dict[str, Any]:
        return {"columns": {column.name: column.version for column in self.columns}, "rows": self._rows, "notes": self.notes}


def _goal_text(row: Row) -> str:
    if not row.goal:
        return ""
    if row.goal_of == "copy":
        return f"{row.goal:g} of the fastest copy"
    if row.goal_of.startswith("row "):
        return f"{row.goal:g} x by hand"
    return f"{row.goal:,g} {row.unit}" if row.goal_of == "rate" else milliseconds(row.goal * 1e-3)
