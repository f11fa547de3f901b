"""That a kernel is refused at the right line, in words that help."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import spirograd as sg

Refused = sg.SpirogradCompilationError


def line_of(case: Any, mark: str) -> int:
    """The number of the line of a function that has a mark."""
    lines, first = inspect.getsourcelines(case)
    return first + next(k for k, line in enumerate(lines) if f"# {mark}" in line)


def refused(call: Any, case: Any, mark: str, *words: str) -> None:
    """The call must raise, at the line that is marked, with all words in the message and a hint."""
    with pytest.raises(Refused) as info:
        call()
    text = str(info.value)
    assert info.value.loc is not None and info.value.loc.line == line_of(case, mark), text
    assert "hint" in text.lower(), text
    for word in words:
        assert word in text, text
