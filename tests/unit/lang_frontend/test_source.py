"""Finding the source of functions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import spirograd as sg

FIRST = "@sg.kernel\ndef first(n: sg.i32) -> sg.i32:\n    return n + 1\n"
SECOND = "@sg.kernel\ndef second(n: sg.i32) -> sg.i32:\n    return n + 2\n"


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.archs("interpreter")
def test_a_file_that_changed_after_its_import_is_noticed(session: Any, tmp_path: Path) -> None:
    path = tmp_path / "moving.py"
    path.write_text("import spirograd as sg\n" + FIRST + SECOND)
    module = load(path)
    path.write_text("import spirograd as sg\n" + SECOND + FIRST)
    with pytest.raises(sg.SpirogradSyntaxError, match="not where it was"):
        module.first(1)
