"""Every public name has a docstring of its own: functions, classes, methods and properties that users call."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from spirograd.base.later import Later

MODULES = (
    *("spirograd", "spirograd.ad", "spirograd.algorithms", "spirograd.errors", "spirograd.math", "spirograd.types"),
    *("spirograd.simt.block", "spirograd.simt.subgroup", "spirograd.simt.warp", "spirograd.simt.grid"),
)


def public(module: str) -> list[tuple[str, Any]]:
    found = importlib.import_module(module)
    return [(name, getattr(found, name)) for name in found.__all__ if not isinstance(getattr(found, name), Later)]


@pytest.mark.parametrize("module", MODULES)
def test_functions_and_classes_have_docstrings(module: str) -> None:
    described = [(name, value) for name, value in public(module) if inspect.isroutine(value) or inspect.isclass(value)]
    assert [name for name, value in described if not (value.__doc__ or "").strip()] == []
    assert (importlib.import_module(module).__doc__ or "").strip()


@pytest.mark.parametrize("module", MODULES)
def test_methods_have_docstrings(module: str) -> None:
    """Those that a class defines itself; what starts with an underscore is not public."""
    without = []
    for _, value in public(module):
        if inspect.isclass(value):
            for member, what in vars(value).items():
                is_callable = inspect.isroutine(what) or isinstance(what, property)
                if is_callable and not member.startswith("_") and not inspect.getdoc(getattr(value, member)):
                    without.append(f"{value.__qualname__}.{member}")
    assert sorted(set(without)) == []
