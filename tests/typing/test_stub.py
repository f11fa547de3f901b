"""The stub of the language repeats the signature of `field`, of which checkers need one for each kind of element: it is the same."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spirograd as sg
from spirograd.lang.struct import StructType

STUB = Path(sg.__file__).parent / "lang" / "typed.pyi"
Parameters = list[tuple[str, str]]  # names and defaults, as text; "": none


def in_stub(name: str) -> list[Parameters]:
    """Of each function or method with this name, ``cls`` and ``self`` aside."""
    found = []
    for node in ast.walk(ast.parse(STUB.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            names = [a.arg for a in node.args.args]
            defaults = [""] * (len(names) - len(node.args.defaults)) + [ast.unparse(d) for d in node.args.defaults]
            named = [(a.arg, "" if d is None else ast.unparse(d)) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults)]
            found.append([pair for pair in (*zip(names, defaults), *named) if pair[0] not in ("self", "cls")])
    return found


def in_source(function: Callable[..., Any], without: tuple[str, ...] = ("self",)) -> Parameters:
    given = [p for p in inspect.signature(function).parameters.values() if p.name not in without]
    return [(p.name, "" if p.default is p.empty else repr(p.default)) for p in given]


def test_field() -> None:
    method, *overloads = sorted(in_stub("field"), key=lambda parameters: parameters[0][0] == "dtype")
    assert len(overloads) == 3
    for overload in overloads:
        assert overload == in_source(sg.field)
    assert [name for name, _ in method] == [name for name, _ in in_source(StructType.field)]
