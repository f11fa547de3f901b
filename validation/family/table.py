"""The table of examples, in Markdown."""

from __future__ import annotations

import argparse
import datetime
import platform

from validation.family.running import TOLERANCE, Compared


def markdown(results: list[Compared], options: argparse.Namespace) -> str:
    """One row for each example; above it what ran where."""
    head = (
        f"Taken on {datetime.date.today():%d %B %Y}, {platform.machine()}, back end `{options.arch}`; Taichi on the CPU of the same "
        f"machine. Fields are compared after {options.frames} frames, with one thread and the same random numbers: the largest difference "
        f"relative to the largest magnitude of the field. Fields equal to {TOLERANCE:g} are equal; of others, those are apart by rounding "
        "that Taichi computes as differently when it rounds otherwise. Times are those of one frame with all threads.\n\n"
    )
    rows = ["| example | Taichi | spirograd | fields | times as fast |", "|---|---|---|---|---|"]
    return head + "\n".join(rows + [_row(compared) for compared in results]) + "\n"


def _row(c: Compared) -> str:
    ours = fields = speed = ""
    if c.taichi.ran:
        ours = _how(c.ours.ran, c.ours.reason or c.ours.ended)
        fields = c.fields if c.ours.ran else ""
    if c.frames:
        speed = f"{c.frames[0] / c.frames[1]:.2f} ({c.frames[0] * 1e3:.1f} / {c.frames[1] * 1e3:.1f} ms)"
    return f"| {c.program.name} | {_how(c.taichi.ran, c.taichi.reason or c.taichi.ended)} | {ours} | {fields} | {speed} |"


def _how(ran: bool, reason: str) -> str:
    return "runs" if ran else reason.replace("|", "\\|")[:160]


def totals(results: list[Compared]) -> str:
    """The last line."""
    there = [c for c in results if c.taichi.ran]
    ran = [c for c in there if c.ours.ran]
    return (
        f"{len(results)} examples, {len(there)} run on Taichi, {len(ran)} on spirograd, "
        f"{sum(bool(c.differing) for c in ran)} of them with other numbers"
    )
