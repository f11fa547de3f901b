"""Docstrings of public names: each function, class, method and property has one, which speaks of every parameter and error."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from spirograd.base import errors
from spirograd.base.later import Later

MODULES = (
    *("spirograd", "spirograd.ad", "spirograd.algorithms", "spirograd.errors", "spirograd.linalg", "spirograd.math", "spirograd.profiler"),
    *("spirograd.tools", "spirograd.types", "spirograd.simt", "spirograd.simt.block", "spirograd.simt.grid", "spirograd.simt.subgroup"),
    *("spirograd.simt.warp", "spirograd.aot", "spirograd.distributed", "spirograd.optim", "spirograd.optim.lr_scheduler"),
)
# Operands, and parameters that mean the same everywhere.
_PLAIN = frozenset(("self", "cls", "dtype", "name", "x", "a", "b", "y", "n", "m"))
# Classes whose instances other functions make.
_MADE = "made by"
_REFERENCE = re.compile(r"`([A-Za-z_][\w.]*)`")


class Documented(NamedTuple):
    """A public name. ``owner``: its module, or its class."""

    owner: str
    name: str
    value: Any

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.value) or ""


def public(module: str) -> Iterator[Documented]:
    found = importlib.import_module(module)
    for name in found.__all__:
        value = getattr(found, name)
        if isinstance(value, Later) or not (inspect.isroutine(value) or inspect.isclass(value)):
            continue
        yield Documented(module, name, value)
        if inspect.isclass(value) and value.__module__.startswith("spirograd"):
            for member, what in vars(value).items():
                if not member.startswith("_") and (inspect.isroutine(what) or isinstance(what, property)):
                    yield Documented(name, member, getattr(value, member))


@pytest.fixture(scope="module")
def all_public() -> list[Documented]:
    return [documented for module in MODULES for documented in public(module)]


def parameters(documented: Documented) -> list[str]:
    """Of a function, or of the constructor of a class that users call."""
    value = documented.value
    if isinstance(value, property) or (inspect.isclass(value) and ("__init__" not in vars(value) or _MADE in documented.doc)):
        return []
    try:
        signature = inspect.signature(documented.value)
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in signature.parameters.values() if p.kind not in variadic and not p.name.startswith("_")]


def speaks_of(doc: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", doc) is not None


def test_all_have_docstrings(all_public: list[Documented]) -> None:
    assert sorted({f"{d.owner}.{d.name}" for d in all_public if not d.doc.strip()}) == []
    assert [module for module in MODULES if not (importlib.import_module(module).__doc__ or "").strip()] == []


def test_parameters_are_described(all_public: list[Documented]) -> None:
    """In the docstring, or in that of a name which the docstring refers to, as in "as of `field`"."""
    docs: dict[str, str] = {}
    for d in all_public:
        docs[d.name] = docs.get(d.name, "") + d.doc
        docs[f"{d.owner}.{d.name}"] = d.doc
    missing = set()
    for d in all_public:
        reached = d.doc + "".join(docs.get(reference, "") for reference in _REFERENCE.findall(d.doc))
        missing |= {f"{d.owner}.{d.name}: {p}" for p in parameters(d) if p not in _PLAIN and not speaks_of(reached, p)}
    assert sorted(missing) == []


def raised_by(value: Any) -> set[str]:
    """The errors that the source of a function raises itself."""
    function = inspect.unwrap(value.fget if isinstance(value, property) else value)
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return set()
    return {name for name in re.findall(r"raise (\w+)\(", source) if hasattr(errors, name)}


def test_errors_are_described(all_public: list[Documented]) -> None:
    """By name, or by that of a built-in error of Python that they are."""
    missing = set()
    for d in all_public:
        if inspect.isclass(d.value):
            continue
        for name in raised_by(d.value):
            names = [c.__name__ for c in getattr(errors, name).__mro__ if c.__name__ not in ("Exception", "BaseException", "object")]
            if not any(speaks_of(d.doc, n) for n in names):
                missing.add(f"{d.owner}.{d.name}: {name}")
    assert sorted(missing) == []
