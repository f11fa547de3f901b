"""Words of docstrings, comments, messages and pages: phrases that no native writer would use do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("spirograd", "benchmarks", "ci", "examples", "tools", "validation")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("*.md"), *sorted((ROOT / "examples").rglob("*.md"))]
# Phrase -> what to write instead.
PHRASES = {
    "leave it away": "omit it",
    "leave them away": "omit them",
    "without a word": "silently",
}
# The same for pages and docstrings.
SENTENCES = {**PHRASES, "so many": "the number itself, or `count`"}
# Docstrings say what something does, or is: they have a subject or begin with a verb.
OPENING = re.compile(r"(Of|That of|Those of) ")


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            doc = ast.get_docstring(node)
            if doc is not None:
                yield node.body[0].lineno, doc


def test_phrases_of_sources() -> None:
    """In messages, comments and docstrings."""
    problems = []
    for path in SOURCES:
        text = " ".join(path.read_text(encoding="utf-8").split())
        problems += [f"{path.relative_to(ROOT)}: {phrase!r}: {better}" for phrase, better in PHRASES.items() if phrase in text.lower()]
    assert problems == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_phrases_of_pages(path: Path) -> None:
    text = " ".join(path.read_text(encoding="utf-8").lower().split())
    assert [f"{phrase!r}: {better}" for phrase, better in SENTENCES.items() if phrase in text] == []


def test_docstrings() -> None:
    problems: list[str] = []
    for path in SOURCES:
        for line, doc in _docstrings(path):
            words = " ".join(doc.split())
            if OPENING.match(words) or any(phrase in words.lower() for phrase in SENTENCES):
                problems.append(f"{path.relative_to(ROOT)}:{line}: {words[:80]}")
    assert problems == []
