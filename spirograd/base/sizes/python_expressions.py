"""Python functions compiled from syntax trees, for code that runs at each launch. No text is parsed: numbers are constants of the tree, and
all names in it are literals of the callers of this module."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from spirograd.base.sizes.evaluate import floordiv, mod
from spirograd.base.sizes.size_nodes import Add, Arg, Binary, Extent, FloorDiv, IfLess, Max, Min, Mod, Mul, Size, Sub

if TYPE_CHECKING:

    class _Location(TypedDict):
        """The location of a node, which all nodes need."""

        lineno: int
        col_offset: int
        end_lineno: int
        end_col_offset: int


Expression = ast.expr
_AT: _Location = {"lineno": 1, "col_offset": 0, "end_lineno": 1, "end_col_offset": 0}
_LOAD = ast.Load()
_OPERATORS: dict[type[Binary], ast.operator] = {Add: ast.Add(), Sub: ast.Sub(), Mul: ast.Mult(), FloorDiv: ast.FloorDiv(), Mod: ast.Mod()}
_CALLED: dict[type[Binary], str] = {Min: "min", Max: "max", FloorDiv: "floordiv", Mod: "mod"}
# The functions that `size_expression` calls.
_FUNCTIONS: dict[str, object] = {"__builtins__": {}, "floordiv": floordiv, "mod": mod, "min": min, "max": max}


def number(n: int) -> Expression:
    return ast.Constant(int(n), **_AT)


def text(value: str) -> Expression:
    """Return a string constant."""
    return ast.Constant(str(value), **_AT)


NONE: Expression = ast.Constant(None, **_AT)


def name(of: str) -> Expression:
    return ast.Name(of, _LOAD, **_AT)


def item(sequence: Expression, index: Expression) -> Expression:
    return ast.Subscript(sequence, index, _LOAD, **_AT)


def attribute(of: Expression, called: str) -> Expression:
    return ast.Attribute(of, called, _LOAD, **_AT)


def call(function: str, *operands: Expression) -> Expression:
    return ast.Call(name(function), list(operands), [], **_AT)


def call_method(of: Expression, called: str, *operands: Expression) -> Expression:
    return ast.Call(attribute(of, called), list(operands), [], **_AT)


def sequence(items: Sequence[Expression]) -> Expression:
    return ast.Tuple(list(items), _LOAD, **_AT)


def starred(items: Expression) -> Expression:
    """``*items``, in a sequence."""
    return ast.Starred(items, _LOAD, **_AT)


def binary(operator: ast.operator, a: Expression, b: Expression) -> Expression:
    return ast.BinOp(a, operator, b, **_AT)


def compare(a: Expression, operator: ast.cmpop, b: Expression) -> Expression:
    return ast.Compare(a, [operator], [b], **_AT)


def either(*conditions: Expression) -> Expression:
    return conditions[0] if len(conditions) == 1 else ast.BoolOp(ast.Or(), list(conditions), **_AT)


def both(*conditions: Expression) -> Expression:
    return conditions[0] if len(conditions) == 1 else ast.BoolOp(ast.And(), list(conditions), **_AT)


def negated(condition: Expression) -> Expression:
    return ast.UnaryOp(ast.Not(), condition, **_AT)


def choice(condition: Expression, value: Expression, otherwise: Expression) -> Expression:
    return ast.IfExp(condition, value, otherwise, **_AT)


def assigned(variable: str, value: Expression) -> Expression:
    """Return the expression ``(variable := value)``."""
    return ast.NamedExpr(ast.Name(variable, ast.Store(), **_AT), value, **_AT)


def argument(index: int) -> Expression:
    return item(name("s"), number(index))


def extent(array: int, axis: int) -> Expression:
    return item(attribute(item(name("a"), number(array)), "shape"), number(axis))


def size_expression(size: Size) -> Expression:
    """Return the expression of ``size``, which reads no memory, over scalar arguments ``s`` and array arguments ``a``."""
    if isinstance(size, int):
        return number(size)
    if isinstance(size, Arg):
        return argument(size.number)
    if isinstance(size, Extent):
        return extent(size.array, size.axis)
    if isinstance(size, IfLess):
        condition = compare(size_expression(size.a), ast.Lt(), size_expression(size.b))
        return choice(condition, size_expression(size.value), number(0))
    assert isinstance(size, Binary), size
    kind = type(size)
    a, b = size_expression(size.a), size_expression(size.b)
    by_positive = isinstance(size.b, int) and size.b > 0 and kind in (FloorDiv, Mod)
    return binary(_OPERATORS[kind], a, b) if by_positive or kind not in _CALLED else call(_CALLED[kind], a, b)


def function(parameters: Sequence[str], result: Expression, names: Mapping[str, object] = {}) -> Callable[..., Any]:
    """Compile the function of ``parameters`` that returns ``result``, in which ``names``, ``min`` and ``max`` are defined."""
    taken = [ast.arg(parameter, **_AT) for parameter in parameters]
    signature = ast.arguments(posonlyargs=[], args=taken, kwonlyargs=[], kw_defaults=[], defaults=[])
    tree = ast.Expression(ast.Lambda(signature, result, **_AT))
    compiled: Callable[..., object] = eval(compile(tree, "<launch>", "eval"), {**_FUNCTIONS, **names})
    return compiled
