"""The API reference: it has each public name, and each has a docstring."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pages import ROOT, prose

from spirograd.base.later import Later

DOCS = ROOT / "docs"
SIMT = tuple(f"spirograd.simt.{name}" for name in ("block", "subgroup", "warp", "grid"))
MODULES = ("spirograd", "spirograd.ad", "spirograd.errors", "spirograd.math", "spirograd.types", *SIMT)
MODULES += ("spirograd.algorithms", "spirograd.aot", "spirograd.distributed")
_MENTIONED = re.compile(r"`((?:sg|spirograd)\.[\w.]+)`")
_DIRECTIVE = re.compile(r"^::: (spirograd[\w.]*)\n(?: +options:\n +members: \[([\w, ]*)\]\n)?", re.MULTILINE)


def resolve(path: str) -> Any:
    """The object of a dotted path that begins with a module."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(path)


def directives() -> Iterator[tuple[str, list[str]]]:
    """Paths that the API reference shows the docstrings of, and members of these."""
    for page in (DOCS / "api").glob("*.md"):
        for path, members in _DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            yield path, members.split(", ") if members else []


def test_every_public_name_is_in_the_api_reference():
    shown = Counter(path for path, _ in directives())
    assert [path for path, count in shown.items() if count > 1 or isinstance(resolve(path), ModuleType)] == []
    text = "\n".join(prose(page.read_text(encoding="utf-8")) for page in (DOCS / "api").glob("*.md"))
    named = {path.replace("sg.", "spirograd.", 1) if path.startswith("sg.") else path for path in _MENTIONED.findall(text)}
    shown_objects = {id(resolve(path)) for path in shown}
    missing = []
    for module in map(importlib.import_module, MODULES):
        for public in module.__all__:
            path, value = f"{module.__name__}.{public}", getattr(module, public)
            top = f"spirograd.{public}"  # `sg.types.f32` is described as `sg.f32`
            if isinstance(value, (ModuleType, Later)) or {path, top} & (named | set(shown)) or id(value) in shown_objects:
                continue
            missing.append(path)
    assert missing == []


def test_the_api_reference_has_docstrings():
    """Where there is none, mkdocstrings shows nothing."""
    without = []
    for path, members in directives():
        value = resolve(path)
        without += [f"{path}.{member}" for member in ["", *members] if not (getattr(value, member) if member else value).__doc__]
    assert without == []
