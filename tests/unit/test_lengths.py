"""The rules of the house that a linter does not know: how long files and functions may be."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "spirograd"
FILE, FUNCTION = 600, 60  # lines, at the most


def test_lengths() -> None:
    long: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(PACKAGE)
        if (lines := len(text.splitlines())) > FILE:
            long.append(f"{name} has {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION:
                    long.append(f"{name}:{node.lineno}: `{node.name}` has {lines} lines")
    assert not long, "too long:\n" + "\n".join(long)
