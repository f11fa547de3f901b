"""Results as lines, as Markdown and as a picture; a bar while they come."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.goals import GOALS, Limits
from benchmarks.measure import Measured, Times

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "failed"
    scale, unit = next((u for u in _UNITS if seconds >= u[0]), _UNITS[-1])
    return f"{seconds / scale:.2f} {unit}"


class Table:
    """A line for each case: the times of all columns, second / first, the goal, and the limit of the machine beside the first."""

    def __init__(self, names: list[str], limits: Limits, peer: bool, of: str, markdown: bool) -> None:
        self.names, self.limits, self.peer, self.of, self.markdown = names, limits, peer, of, markdown
        heads = [*names, *([f"{names[1]} / {names[0]}"] if len(names) > 1 else []), "goal", "limit"]
        self.lines: list[str] = []
        self._widths = [30, *(max(12, len(head)) for head in heads[:-2]), 20, 18]
        self._print(["", *heads])
        if markdown:
            self._say("|---" * (len(heads) + 1) + "|")

    def _say(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def _print(self, cells: list[str]) -> None:
        if self.markdown:
            self._say(f"| {' | '.join(cells)} |")
        else:
            padded = [cell.rjust(width) if k else cell.ljust(width) for k, (cell, width) in enumerate(zip(cells, self._widths))]
            self._say("  ".join(padded).rstrip())

    def add(self, found: Measured) -> None:
        for case, times in found.times.items():
            best = [of_column.best(self.of) for of_column in times]
            self._print([case, *map(duration, best), *self._ratio(best), self._goal(case, best), self._limit(case, best[0])])
            for name, of_column in zip(self.names, times):
                if of_column.error:
                    print(f"{case}: {name}: {of_column.error}", file=sys.stderr)
        for name, values in found.tapes.items():
            texts = ["failed" if value is None else f"{value:,.0f}" for value in values]
            self._print([f"{name} (bytes)", *texts, *self._ratio(values), "", ""])
        for name, (upper, lower) in found.ratios.items():
            values = [_quotient(u.best(self.of), d.best(self.of)) for u, d in zip(found.times[upper], found.times[lower])]
            self.numbers(name, ["failed" if value is None else f"{value:.2f} x" for value in values])

    def numbers(self, name: str, texts: list[str]) -> None:
        """A line without goals."""
        self._print([name, *texts, *[""] * (len(self.names) > 1), "", ""])

    def _ratio(self, values: list[float | None]) -> list[str]:
        if len(values) < 2:
            return []
        ratio = _quotient(values[1], values[0])
        return ["" if ratio is None else f"{ratio:.2f} x"]

    def _goal(self, case: str, best: list[float | None]) -> str:
        goal = GOALS.get(case)
        if goal is None or self.names[0] != "cpu":
            return ""
        unknown = best[0] is None or (self.of == "cpu" and goal.seconds is not None)  # such goals are of the clock
        met = None if unknown else goal.met(best[0], best[-1] if self.peer else None)
        return goal.text() + {True: ", met", False: ", missed", None: ""}[met]

    def _limit(self, case: str, seconds: float | None) -> str:
        least = self.limits.seconds(case) if self.names[0] == "cpu" and self.of == "wall" else None
        return f"{duration(least)}, {seconds / least:.1f} x" if least and seconds else ""


def _quotient(upper: float | None, lower: float | None) -> float | None:
    return upper / lower if upper is not None and lower else None


class Bar:
    """How far the work is, on a terminal; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self._shown, self._start = total, sys.stderr.isatty(), time.monotonic()

    def show(self, done: float, what: str) -> None:
        if self._shown:
            part = min(1.0, done / self.total)
            seconds = time.monotonic() - self._start
            rest = f", about {seconds / part - seconds:.0f} s left" if part > 0.05 else ""
            text = f"[{'#' * int(30 * part):30}] {what}: {part * 100:.0f} %{rest}"
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def plotting(why: str) -> Any:
    """matplotlib's pyplot; None without it, which is said."""
    try:
        import matplotlib
    except ImportError:
        print(f"no picture of {why}: matplotlib is not installed (it is in the extra [demo])", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def write_chart(results: dict[str, list[Times]], names: list[str], limit: Callable[[str], float | None], path: Path) -> None:
    """How many times as long the second column takes, and a mark where the limit of the machine is, as a PNG."""
    best = {case: [of.best() for of in times] for case, times in results.items()}
    ratios = {case: second / first for case, (first, second, *_) in best.items() if first and second}
    pyplot = plotting("the ratios") if ratios else None
    if pyplot is None:
        return
    figure, axes = pyplot.subplots(figsize=(8, 0.3 * len(ratios) + 1))
    axes.barh(list(ratios), list(ratios.values()), color=["#3b7" if ratio >= 1 else "#c54" for ratio in ratios.values()])
    for row, case in enumerate(ratios):
        least, second = limit(case), best[case][1]
        if least and second:
            axes.plot([second / least] * 2, [row - 0.4, row + 0.4], color="black", linewidth=2)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel(f"{names[1]} / {names[0]} (right of 1: {names[0]} takes less; black marks: the limit of the machine)")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
