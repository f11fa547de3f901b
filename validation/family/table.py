"""The table of examples, in Markdown: it keeps its rows, so that a run of some examples renews theirs."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
from pathlib import Path

from validation.family.running import TOLERANCE, Compared, Outcome

Rows = dict[str, list[str]]  # name of the example -> its cells
_BELOW = "## Results\n"  # of this heading of a page is the table
_HEAD = "| example | Taichi | spirograd | fields | times as fast |\n|---|---|---|---|---|\n"
GOAL = 1.5  # times as fast as Taichi
_LOADED = "while others used the machine, "
_ENDS = {"late": "no frame within the time limit", "failed": "failed"}


def read(file: Path) -> Rows:
    """The rows of the table in ``file``, if there is one."""
    lines = file.read_text().partition(_HEAD)[2].splitlines() if file.exists() else []
    rows = (line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines if line.startswith("| "))
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in rows}


def runs_on_both(rows: Rows, name: str) -> bool:
    """Whether the table says so of this example."""
    return rows.get(name, [])[:2] == ["runs", "runs"]


def renew(rows: Rows, results: list[Compared], times_only: bool = False) -> Rows:
    """``rows``, with those of ``results`` in place of what they were, or with their times."""
    fresh = {c.program.name: [*rows[c.program.name][:-1], c.speed] if times_only else _cells(c) for c in results}
    return dict(sorted({**rows, **fresh}.items()))


def markdown(rows: Rows, options: argparse.Namespace) -> str:
    """The table, below what ran where and what was counted."""
    head = (
        f"Measured on {datetime.date.today():%d %B %Y}, {platform.machine()}, {os.cpu_count()} cores, {_LOADED if _loaded() else ''}"
        f"back end `{options.arch}`; Taichi on the CPU of the same machine. {totals(rows)}. Fields are compared after "
        f"{options.frames} frames, with one thread and the same random numbers: the largest difference, relative to the largest "
        f"magnitude of the field. Up to {TOLERANCE:g} they count as equal; of others, those are apart by rounding that Taichi computes as "
        "differently when it rounds otherwise, or that are equal in double precision. Times are of one frame, with all threads; both "
        f"libraries take turns, and each frame counts with the shortest of {options.rounds} times.\n\n"
    )
    return head + "\n".join([_HEAD.rstrip(), *(f"| {' | '.join([name, *cells])} |" for name, cells in rows.items())]) + "\n"


def write(page: Path, table: str) -> None:
    """Replace what the page has below the heading of the results; make the page if it is missing."""
    text = page.read_text() if page.exists() else _BELOW
    page.write_text(text[: text.index(_BELOW) + len(_BELOW)] + "\n" + table)


def _loaded() -> bool:
    """Whether others use this machine: more is to do than this process does."""
    return os.getloadavg()[1] > 1.5 * (os.cpu_count() or 1)


def _cells(c: Compared) -> list[str]:
    ours = fields = ""
    if c.taichi.ran:
        ours = _how(c.ours)
        fields = c.fields if c.ours.ran else ""
    return [_how(c.taichi), ours, fields, c.speed]


def _how(outcome: Outcome) -> str:
    if outcome.ran:
        return "runs"
    return outcome.reason.partition(" / ")[0].replace("|", "\\|")[:200] or _ENDS[outcome.ended]


def totals(rows: Rows) -> str:
    """How many run, in words."""
    there = [cells for cells in rows.values() if cells[0] == "runs"]
    ran = [cells for cells in there if cells[1] == "runs"]
    differing = sum("differ" in cells[2] for cells in ran)
    counted = f"Of {len(rows)} examples {len(there)} run on Taichi, and {len(ran)} of these on spirograd, {differing} with other numbers"
    return counted + _speeds([float(cells[3].split()[0]) for cells in ran if cells[3]])


def _speeds(factors: list[float]) -> str:
    if not factors:
        return ""
    enough, slower = sum(f >= GOAL for f in factors), sum(f < 1 for f in factors)
    median = f"A frame takes {statistics.median(factors):.2f} times as long on Taichi (median of {len(factors)})"
    return f". {median}; {enough} reach {GOAL} times, {slower} are slower"
