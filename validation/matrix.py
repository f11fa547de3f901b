"""The results as one table: Markdown to commit and read in a terminal, HTML with colours."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path

from validation.case import Case
from validation.compiling import REFUSED, Compiled
from validation.running import Run
from validation.tools import ABSENT, CHECKS, FAILED, LIMIT, NOT_APPLICABLE, OK, Verdict

_MARKS = {OK: "ok", FAILED: "**FAILED**", LIMIT: "limit", ABSENT: "-", NOT_APPLICABLE: "n/a", REFUSED: "refused"}
_COLOURS = {OK: "#d9f2dd", FAILED: "#f7b5ae", LIMIT: "#fdeec2", ABSENT: "#eee", NOT_APPLICABLE: "#eee", REFUSED: "#dfe8f7"}
_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em; } table { border-collapse: collapse; }
th, td { border: 1px solid #ccc; padding: 2px 8px; text-align: left; white-space: nowrap; }
th { position: sticky; top: 0; background: #fff; } td small { color: #555; } pre { white-space: pre-wrap; }
"""


@dataclass(slots=True)
class Row:
    """All that is known of a case: by profile, and by back end."""

    case: Case
    compiled: dict[str, Compiled] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)

    @property
    def failures(self) -> list[str]:
        """One line for each thing that failed."""
        found = [
            f"{profile}, {check}: {verdict.text}"
            for profile, compiled in self.compiled.items()
            for check, verdict in compiled.verdicts.items()
            if verdict.status == FAILED
        ]
        return found + [f"{arch}: {run.text}" for arch, run in self.runs.items() if run.status == FAILED]

    def cells(self, profiles: list[str], archs: list[str]) -> list[tuple[str, str, str]]:
        """(status, small print, reason) of each column."""
        out = []
        for profile in profiles:
            compiled = self.compiled[profile]
            first = compiled.verdicts.get("compile", Verdict(OK))
            size = f"{compiled.modules} x, {compiled.nbytes:,} B" if compiled.modules else ""
            valid = compiled.verdicts.get("valid", first) if first.status == OK else first
            out.append((valid.status, size, valid.text or ", ".join(sorted(compiled.capabilities))))
            for check in list(CHECKS)[1:]:
                verdict = compiled.verdicts.get(check, Verdict(first.status if first.status != OK else ABSENT))
                out.append((verdict.status, "", verdict.text))
        for arch in archs:
            run = self.runs[arch]
            out.append((run.status, f"{run.seconds * 1e3:.0f} ms" if run.seconds else "", run.text))
        return out


def headings(profiles: list[str], archs: list[str]) -> list[str]:
    checks = list(CHECKS)[1:]
    return ["case", *[name for p in profiles for name in (f"{p}: valid", *checks)], *archs]


def totals(rows: list[Row], profiles: list[str], archs: list[str]) -> list[str]:
    """A line for each column: how many of each status."""
    columns = list(zip(*[row.cells(profiles, archs) for row in rows])) if rows else []
    out, profile = [], ""
    for name, column in zip(headings(profiles, archs)[1:], columns):
        profile = name.split(":")[0] if ":" in name else "" if name in archs else profile
        counts = {status: sum(cell[0] == status for cell in column) for status in _MARKS}
        label = name if ":" in name or not profile else f"{profile}: {name}"
        out.append(f"{label}: " + ", ".join(f"{n} {status}" for status, n in counts.items() if n))
    return out


def _ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: not row.failures)


def write_markdown(rows: list[Row], profiles: list[str], archs: list[str], path: Path) -> None:
    """The table; failures first."""
    names = headings(profiles, archs)
    lines = ["# Validation", "", *[f"- {line}" for line in totals(rows, profiles, archs)], ""]
    lines += ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in _ordered(rows):
        cells = [f"{_MARKS[status]}{' ' + small if small else ''}" for status, small, _ in row.cells(profiles, archs)]
        lines.append(f"| {row.case.name} | " + " | ".join(cells) + " |")
    for row in _ordered(rows):
        lines += [f"\n## {row.case.name}\n\n{row.case.place}\n\n    " + "\n    ".join(row.failures)] if row.failures else []
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_html(rows: list[Row], profiles: list[str], archs: list[str], path: Path) -> None:
    """The same, with colours, and the reason of each cell when the pointer is on it."""
    parts = [f"<!doctype html><meta charset=utf-8><title>Validation</title><style>{_STYLE}</style><h1>Validation</h1><ul>"]
    parts += [f"<li>{html.escape(line)}" for line in totals(rows, profiles, archs)]
    parts.append("</ul><table><tr>" + "".join(f"<th>{html.escape(name)}" for name in headings(profiles, archs)))
    for row in _ordered(rows):
        parts.append(f'<tr><td title="{html.escape(row.case.place)}">{html.escape(row.case.name)}')
        for status, small, why in row.cells(profiles, archs):
            style = f'style="background:{_COLOURS[status]}" title="{html.escape(why)}"'
            parts.append(f"<td {style}>{status} <small>{html.escape(small)}</small>")
    parts.append("</table>")
    for row in _ordered(rows):
        if row.failures:
            text = html.escape("\n".join(row.failures))
            parts.append(f"<h2>{html.escape(row.case.name)}</h2><p>{html.escape(row.case.place)}<pre>{text}</pre>")
    path.write_text("".join(parts), encoding="utf-8")
