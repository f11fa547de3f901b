"""Passes, derivatives, algorithms and the session ask for properties of a target, not for its name or its code generator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "spirograd"
# A comparison with a generator or with the name of a target or back end.
_ASKS = re.compile(r'Generator\.[A-Z_]+|(arch|target_name)\s*(==|!=|in|not in)\s*[("]')
_PARTS = ("transforms", "analysis", "autodiff", "derivatives", "algorithms", "ad", "lang", "session.py")
_ALLOWED = {'config.arch == "python"'}  # a mode of the session: its device is the interpreter's


@pytest.mark.parametrize("part", _PARTS)
def test_nothing_asks_for_a_target_by_name(part: str) -> None:
    root = PACKAGE / part
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in (sorted(root.rglob("*.py")) if root.is_dir() else [root])
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _ASKS.search(line) and not any(allowed in line for allowed in _ALLOWED)
    ]
    assert not found, "\n".join(found)
