"""The pages of the documentation, and their Python blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Block:
    """A Python block: number of its first line, source, what it is said to print (None: not said)."""

    line: int
    source: str
    printed: str | None


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    end = 0
    for match in BLOCK.finditer(text):
        if match[1] == "python":
            found.append(Block(text[: match.start()].count("\n") + 1, match[2], None))
        elif match[1] == "text" and found and not text[end : match.start()].strip():
            found[-1].printed = match[2]
        end = match.end()
    return found


def program(text: str) -> str:
    """The Python blocks of a page as one program, whose lines are those of the page."""
    lines = [""] * (text.count("\n") + 1)
    for block in blocks(text):
        lines[block.line : block.line + block.source.count("\n")] = block.source.splitlines()
    return "\n".join(lines)


WITH_CODE = [page for page in PAGES if blocks(page.read_text(encoding="utf-8"))]


def name(page: Path) -> str:
    """A page by its path, as the name of a test or a file: unlike ``page.name`` it is unique."""
    return "-".join(page.relative_to(ROOT).parts)


def prose(text: str) -> str:
    """The text of a page without its blocks of code."""
    return BLOCK.sub("", text)
