"""The table of examples, in Markdown: rows are kept, so that a run of some examples renews theirs."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from pathlib import Path

from validation.family.running import TOLERANCE, Compared, Outcome

Rows = dict[str, list[str]]  # name of the example -> its cells
_BELOW = "## Results\n"  # of this heading of a page is the table
_ENDS = {"late": "no frame within the time limit", "failed": "failed"}


def keep(results: list[Compared], file: Path) -> Rows:
    """All rows of ``file``, with those of ``results`` renewed; writes them back."""
    rows: Rows = json.loads(file.read_text()) if file.exists() else {}
    rows.update({compared.program.name: _cells(compared) for compared in results})
    file.write_text(json.dumps(dict(sorted(rows.items())), indent=0))
    return dict(sorted(rows.items()))


def markdown(rows: Rows, options: argparse.Namespace) -> str:
    """The table, below what ran where and what was counted."""
    head = (
        f"Taken on {datetime.date.today():%d %B %Y}, {platform.machine()}, back end `{options.arch}`; Taichi on the CPU of the same "
        f"machine. {totals(rows)}. Fields are compared after {options.frames} frames, with one thread and the same random numbers: the "
        f"largest difference, relative to the largest magnitude of the field. Up to {TOLERANCE:g} they count as equal; of others, those "
        "are apart by rounding that Taichi computes as differently when it rounds otherwise. Times are of one frame, with all threads.\n\n"
    )
    lines = ["| example | Taichi | spirograd | fields | times as fast |", "|---|---|---|---|---|"]
    return head + "\n".join(lines + [f"| {' | '.join([name, *cells])} |" for name, cells in rows.items()]) + "\n"


def put_into(page: Path, table: str) -> None:
    """Replace what the page has below the heading of the results."""
    text = page.read_text()
    page.write_text(text[: text.index(_BELOW) + len(_BELOW)] + "\n" + table)


def _cells(c: Compared) -> list[str]:
    ours = fields = speed = ""
    if c.taichi.ran:
        ours = _how(c.ours)
        fields = c.fields if c.ours.ran else ""
    if c.frames:
        speed = f"{c.frames[0] / c.frames[1]:.2f} ({c.frames[0] * 1e3:.1f} / {c.frames[1] * 1e3:.1f} ms)"
    return [_how(c.taichi), ours, fields, speed]


def _how(outcome: Outcome) -> str:
    if outcome.ran:
        return "runs"
    return outcome.reason.partition(" / ")[0].replace("|", "\\|")[:200] or _ENDS[outcome.ended]


def totals(rows: Rows) -> str:
    """How many run, in words."""
    there = [cells for cells in rows.values() if cells[0] == "runs"]
    ran = [cells for cells in there if cells[1] == "runs"]
    return (
        f"Of {len(rows)} examples {len(there)} run on Taichi, and {len(ran)} of these on spirograd, "
        f"{sum('differ' in cells[2] for cells in ran)} with other numbers"
    )
