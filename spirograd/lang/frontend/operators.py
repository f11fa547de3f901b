"""Operators: of compile-time objects Python computes them, of run-time values they emit IR."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from spirograd.base.dtypes import u1
from spirograd.base.errors import SpirogradCompilationError
from spirograd.lang import arithmetic, scalar
from spirograd.lang.frontend.branches import choose
from spirograd.lang.frontend.formatted_text import percent_formatted
from spirograd.lang.frontend.runtime_values import contains_runtime, is_runtime
from spirograd.lang.frontend.tracer import Handler, Tracer
from spirograd.lang.frontend.type_errors import operand_hint, undefined
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe, type_error

# Operator -> how messages write it, what computes it.
BINARY: dict[type[ast.operator], tuple[str, Callable[[object, object], object]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
    ast.BitAnd: ("&", operator.and_),
    ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor),
    ast.LShift: ("<<", operator.lshift),
    ast.RShift: (">>", operator.rshift),
    ast.MatMult: ("@", operator.matmul),
}
# Compares objects of Python, of any two types.
_Comparison = Callable[[Any, Any], object]
_COMPARE: dict[type[ast.cmpop], tuple[str, _Comparison]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
_STATIC_COMPARE: dict[type[ast.cmpop], _Comparison] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def _logical_not(value: object) -> object:
    hook = getattr(value, "__sg_elementwise__", None)
    if hook is not None:
        return hook(scalar.logical_not, (value,))
    return scalar.logical_not(value) if isinstance(value, Value) else not value


_UNARY: dict[type[ast.unaryop], tuple[str, Callable[[Any], object]]] = {
    ast.Not: ("not", _logical_not),
    ast.USub: ("-", operator.neg),
    ast.UAdd: ("+", operator.pos),
    ast.Invert: ("~", operator.invert),
}


def _binary(t: Tracer, node: ast.BinOp) -> object:
    left, right = t.expression(node.left), t.expression(node.right)
    t.at(node)
    if t.captures.reads is not None and isinstance(node.op, ast.Mod) and isinstance(left, str):
        t.captures.reads.shown(right)
    return apply_binary(type(node.op), left, right)


def apply_binary(op: type[ast.operator], left: object, right: object) -> object:
    """Return the value of a binary operator."""
    if op is ast.Mod and isinstance(left, str) and contains_runtime(right):
        return percent_formatted(left, right)
    left, right = _as_matrix(left, right), _as_matrix(right, left)
    symbol, function = BINARY[op]
    try:
        return function(left, right)
    except SpirogradCompilationError:
        raise
    except ZeroDivisionError:
        raise type_error("division of a constant by zero", "divide a variable, at run time: of integers the quotient is then 0") from None
    except (TypeError, ValueError, OverflowError):
        raise undefined(symbol, left, right) from None


def _as_matrix(x: object, other: object) -> object:
    """Return a list as the vector or matrix that arithmetic takes it for."""
    return Matrix(x) if isinstance(x, list) and isinstance(other, Matrix) else x


def _unary(t: Tracer, node: ast.UnaryOp) -> object:
    value = t.expression(node.operand)
    t.at(node)
    symbol, function = _UNARY[type(node.op)]
    if function is _logical_not:
        return _logical_not(value)
    try:
        return function(value)
    except SpirogradCompilationError:
        raise
    except TypeError:
        raise type_error(f"`{symbol}` is not defined for {describe(value)}", operand_hint(value)) from None


# --- comparisons -------------------------------------------------------------------------------------------------------------


def _compare(t: Tracer, node: ast.Compare) -> object:
    left = t.expression(node.left)
    out: object = True
    result: object
    for op, right_node in zip(node.ops, node.comparators):
        right = t.expression(right_node)
        t.at(node)
        if t.captures.reads is not None:
            t.captures.reads.compare(left, right)
        if type(op) in _STATIC_COMPARE:
            result = _compare_objects(type(op), left, right)
        else:
            result = _compare_values(type(op), _as_matrix(left, right), _as_matrix(right, left))
        out = result if out is True else _both(out, result)
        left = right
    return out


def _both(first: object, second: object) -> object:
    """Return whether both hold; of vectors entry by entry."""
    if isinstance(first, Matrix) or isinstance(second, Matrix):
        return operator.and_(first, second)
    return scalar.bit_and(scalar.truth(first), scalar.truth(second))


def _compare_values(op: type[ast.cmpop], left: object, right: object) -> object:
    symbol, function = _COMPARE[op]
    try:
        result = function(left, right)
    except SpirogradCompilationError:
        raise
    except (TypeError, ValueError):
        raise undefined(symbol, left, right) from None
    if isinstance(result, bool) and (is_runtime(left) or is_runtime(right)):  # Python compared identities
        raise undefined(symbol, left, right)
    return result


def _compare_objects(op: type[ast.cmpop], left: object, right: object) -> bool:
    if isinstance(left, Value) or (op in (ast.In, ast.NotIn) and contains_runtime(right)):
        raise type_error("`is` and `in` work on compile-time objects only", "compare run-time values with `==`")
    return bool(_STATIC_COMPARE[op](left, right))


# --- choices -----------------------------------------------------------------------------------------------------------------


def _boolean(t: Tracer, node: ast.BoolOp, first: int = 0) -> object:
    """Return what ``and`` and ``or`` of Python give for the operands from ``first`` on: the operand that decides, not its truth. Without
    short circuit only truth values are left."""
    is_and = isinstance(node.op, ast.And)
    left = t.expression(node.values[first])
    if first == len(node.values) - 1:
        return left
    t.at(node)
    if not is_runtime(left):
        return left if bool(left) != is_and else _boolean(t, node, first + 1)
    if isinstance(left, Matrix):  # entry by entry, so there is nothing to skip
        return (arithmetic.logical_and if is_and else arithmetic.logical_or)(left, _boolean(t, node, first + 1))
    condition = scalar.truth(left)
    if not t.trace.options.short_circuit:
        combine = scalar.bit_and if is_and else scalar.bit_or
        return combine(condition, scalar.truth(_boolean(t, node, first + 1)))

    def otherwise() -> object:
        right = _boolean(t, node, first + 1)
        truth = scalar.cast(scalar.truth(right), u1)
        return truth if scalar.is_scalar(right) and scalar.dtype_of(right) is u1 else right

    def known() -> object:
        return scalar.constant(not is_and) if scalar.as_value(left).dtype is u1 else left

    return choose(t, condition, otherwise, known) if is_and else choose(t, condition, known, otherwise)


def _conditional(t: Tracer, node: ast.IfExp) -> object:
    condition = t.expression(node.test)
    t.at(node)
    if not is_runtime(condition):
        return t.expression(node.body if condition else node.orelse)
    return choose(t, scalar.truth(condition), lambda: t.expression(node.body), lambda: t.expression(node.orelse))


HANDLERS: dict[type[ast.AST], Handler] = {
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.IfExp: _conditional,
}
