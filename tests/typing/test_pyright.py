"""Pyright accepts a typical program, and finds the mistakes in another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def check(program: Path) -> list[tuple[int, str]]:
    """(line, message) of what pyright finds in ``program``."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(program)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.stdout.startswith("{"), run.stdout + run.stderr
    found = json.loads(run.stdout)["generalDiagnostics"]
    return [(d["range"]["start"]["line"] + 1, d["message"]) for d in found if d["severity"] == "error"]


@pytest.mark.needs("pyright")
def test_program_has_no_errors() -> None:
    assert check(HERE / "program.py") == []


@pytest.mark.needs("pyright")
def test_mistakes_are_found() -> None:
    lines = (HERE / "wrong.py").read_text().splitlines()
    wanted = [number for number, line in enumerate(lines, 1) if line.endswith("# error")]
    assert sorted({line for line, _ in check(HERE / "wrong.py")}) == wanted
