"""Expressions other than operators, accesses and calls: constants, displays, comprehensions, assignment expressions."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from spirograd.lang.frontend.runtime_values import contains_runtime, is_runtime
from spirograd.lang.frontend.tracer import Handler, Tracer
from spirograd.lang.frontend.unrolling import bind_static, static_items
from spirograd.lang.frontend.variables import assign, lookup
from spirograd.lang.scalar import describe, type_error


def values_of(t: Tracer, nodes: list[ast.expr]) -> list[object]:
    """Return the values of expressions, of which starred ones have several."""
    out: list[object] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            out += list(t.expression(node.value))
        else:
            out.append(t.expression(node))
    return out


def arguments(t: Tracer, node: ast.Call) -> tuple[list[object], dict[str, object]]:
    """Return the values of the arguments of a call, by position and by name."""
    args = values_of(t, node.args)
    kwargs: dict[str, object] = {}
    for keyword in node.keywords:
        value = t.expression(keyword.value)
        if keyword.arg is None:
            kwargs.update(value)
        else:
            kwargs[keyword.arg] = value
    return args, kwargs


def display(t: Tracer, x: object) -> object:
    """Return ``x``, and record the block in which a list, dict or set is made: it can be changed only there."""
    if isinstance(x, (list, dict, set)):
        t.displays[id(x)] = (x, t.b.depth)
        if t.captures.reads is not None and not isinstance(x, list):
            t.captures.reads.compare(*x)
    return x


def _dictionary(t: Tracer, node: ast.Dict) -> dict[object, object]:
    out: dict[object, object] = {}
    for key_node, value_node in zip(node.keys, node.values):
        key = None if key_node is None else t.expression(key_node)
        value = t.expression(value_node)
        if key_node is not None:
            if contains_runtime(key):
                raise t.syntax_error("the keys of a dict must be known while compiling", key_node, "write them as strings")
            out[key] = value
        elif isinstance(value, Mapping):
            out.update(value)
        else:
            raise type_error(f"`**` takes a dict, not {describe(value)}")
    return out


def _comprehension(t: Tracer, generators: list[ast.comprehension], *elements: ast.expr) -> list[Any]:
    """Return the items of a comprehension. Its targets are variables of its own; what it does to others stays."""
    targets = {n.id for g in generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
    hidden = {name: t.frame.variables[name] for name in targets if name in t.frame.variables}
    out = _items(t, generators, elements)
    for name in targets:
        t.frame.variables.pop(name, None)
    t.frame.variables.update(hidden)
    return out


def _items(t: Tracer, generators: list[ast.comprehension], elements: tuple[ast.expr, ...]) -> list[object]:
    if not generators:
        values = [t.expression(e) for e in elements]
        return [values[0] if len(values) == 1 else tuple(values)]
    out: list[object] = []
    first = generators[0]
    for item in static_items(t, first.iter):
        bind_static(t, first.target, item)
        conditions = [t.expression(c) for c in first.ifs]
        if any(is_runtime(c) for c in conditions):
            raise t.syntax_error("the condition of a comprehension must be known while compiling", first.ifs[0], "use a loop with an `if`")
        if all(conditions):
            out += _items(t, generators[1:], elements)
    return out


def _walrus(t: Tracer, node: ast.NamedExpr) -> object:
    assign(t, node.target.id, t.expression(node.value))
    return lookup(t, node.target)


HANDLERS: dict[type[ast.AST], Handler] = {
    ast.Constant: lambda t, node: node.value,
    ast.Tuple: lambda t, node: tuple(values_of(t, node.elts)),
    ast.List: lambda t, node: display(t, values_of(t, node.elts)),
    ast.Dict: lambda t, node: display(t, _dictionary(t, node)),
    ast.ListComp: lambda t, node: display(t, _comprehension(t, node.generators, node.elt)),
    ast.GeneratorExp: lambda t, node: _comprehension(t, node.generators, node.elt),
    ast.SetComp: lambda t, node: display(t, set(_comprehension(t, node.generators, node.elt))),
    ast.DictComp: lambda t, node: display(t, dict(_comprehension(t, node.generators, node.key, node.value))),
    ast.NamedExpr: _walrus,
}
