"""Files of golden cases: lines `<name>: <setting>`, then cases: `=== <title>`, a source, `---`, and the text that is expected of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    title: str
    source: str
    expected: str


def read(path: Path) -> tuple[dict[str, str], list[Case]]:
    """The settings and the cases of a file."""
    head, *parts = path.read_text().split("\n=== ")
    settings = dict(line.split(": ", 1) for line in head.splitlines() if line.strip())
    cases = []
    for part in parts:
        title, rest = part.split("\n", 1)
        source, _, expected = rest.partition("\n---\n")
        cases.append(Case(title, source.strip("\n") + "\n", expected.strip() + "\n"))
    return settings, cases


def write(path: Path, settings: dict[str, str], cases: list[Case]) -> None:
    """The file that `read` reads so."""
    head = "\n".join(f"{key}: {value}" for key, value in settings.items())
    path.write_text(head + "\n" + "".join(f"\n=== {c.title}\n{c.source}---\n{c.expected}" for c in cases))
