"""Calls that mean something special to the front end: it needs the expressions that are their arguments, or the state of tracing."""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Callable
from typing import Any

from spirograd.base.dtypes import u32
from spirograd.base.errors import SpirogradCompilationError, SpirogradTypeError
from spirograd.base.wording import counted
from spirograd.lang import arithmetic, forms, randoms, scalar
from spirograd.lang.data.ndarray import BufferView
from spirograd.lang.frontend import cell_activation, element_addresses, lists
from spirograd.lang.frontend.access import lvalue_of
from spirograd.lang.frontend.array_proxy import ArrayProxy
from spirograd.lang.frontend.call_effects import check_unchanged
from spirograd.lang.frontend.expressions import arguments, values_of
from spirograd.lang.frontend.formatted_text import Shown, emit_print, text_parts
from spirograd.lang.frontend.lvalues import Element, Lvalue
from spirograd.lang.frontend.runtime_values import is_runtime
from spirograd.lang.frontend.syntax_facts import RNG
from spirograd.lang.frontend.tracer import Handler, NotCallable, Tracer
from spirograd.lang.frontend.view_proxy import ViewProxy, subview
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe, type_error


def _static(t: Tracer, node: ast.Call) -> object:
    with t.within_static():
        values = values_of(t, node.args)
    if not values:
        raise type_error("`static` needs an argument")
    for value, argument in zip(values, node.args):
        if is_runtime(value) and not (isinstance(value, Matrix) and not any(isinstance(e, Value) for e in value.entries)):
            raise SpirogradTypeError(
                f"`sg.static` needs what is known while compiling, got {describe(value)}",
                t.frame.loc(argument),
                "closures, template arguments, shapes of fields and literals are known; variables of the kernel are not",
            )
    return forms.static(*values)


_STATIC_ASSERT = {"condition": "cond", "message": "msg"}  # our names of its arguments -> those of the family


def _static_assert(t: Tracer, node: ast.Call) -> None:
    values, kwargs = arguments(t, node)
    given = {**dict(zip(("cond", "msg"), values)), **{_STATIC_ASSERT.get(name, name): value for name, value in kwargs.items()}}
    if len(given) != len(values) + len(kwargs) or not {"cond"} <= set(given) <= {"cond", "msg"}:
        raise t.syntax_error("`static_assert` takes a condition and a message", node)
    t.at(node.args[0] if node.args else node)
    if is_runtime(given["cond"]):
        raise type_error("`static_assert` needs a condition that is known while compiling", "use `assert`")
    if not given["cond"]:
        message = given.get("msg", "")
        raise SpirogradCompilationError(f"static assertion failed{': ' + str(message) if message else ''}", t.b.loc)


# --- atomic operations -------------------------------------------------------------------------------------------------------


_NAMES_OF_OPERANDS = {1: (), 2: ("value",), 3: ("expected", "desired")}


def _example(what: str, count: int) -> str:
    return f"sg.{what}({', '.join(('x[i]', *_NAMES_OF_OPERANDS[count]))})"


def _operands(t: Tracer, node: ast.Call, what: str, count: int) -> tuple[Lvalue, list[Any]]:
    """Return the memory that an atomic operation changes, and its other operands."""
    if len(node.args) != count or node.keywords:
        problem = f"`{what}` takes {counted(count, 'argument')}, got {len(node.args) + len(node.keywords)}"
        raise type_error(problem, f"as in `{_example(what, count)}`")
    target = node.args[0]
    lvalue = lvalue_of(t, target)
    if lvalue is None:
        raise type_error(
            f"`{what}` needs an element of a field or array, or a variable, as its first argument",
            f"as in `{_example(what, count)}`",
        )
    if isinstance(target, ast.Name) and target.id in t.frame.constants:
        hint = "copy it to a variable, or pass an array"
        raise type_error(f"`{what}` cannot change argument `{target.id}` of the kernel", hint)
    values = values_of(t, node.args[1:])
    t.at(node)
    return lvalue, values


def _atomic(kind: str, t: Tracer, node: ast.Call) -> object:
    lvalue, (value,) = _operands(t, node, f"atomic_{kind}", 2)
    check_unchanged(t, node.args[:1])
    return lvalue.atomic(kind, value)


def _atomic_cas(t: Tracer, node: ast.Call) -> Value:
    lvalue, (expected, desired) = _operands(t, node, "atomic_cas", 3)
    if not isinstance(lvalue, Element) or lvalue.shape:
        raise type_error("`atomic_cas` needs a scalar element of a field or array", "as in `sg.atomic_cas(x[i], expected, desired)`")
    return lvalue.compare_and_swap(expected, desired)


def _volatile_load(t: Tracer, node: ast.Call) -> object:
    """Return an atomic that changes nothing, which no pass moves or merges with another access."""
    lvalue, _ = _operands(t, node, "volatile_load", 1)
    if not isinstance(lvalue, Element) or lvalue.shape:
        raise type_error("`volatile_load` needs a scalar element of a field or array", "as in `sg.volatile_load(x[i])`")
    return lvalue.atomic("add", 0) if lvalue.ref.dtype.is_int else lvalue.compare_and_swap(0, 0)


# --- the rest ----------------------------------------------------------------------------------------------------------------


def _random(draw: Callable[..., Value], t: Tracer, node: ast.Call) -> Value:
    if t.random_stream is None:
        raise NotCallable("it draws random numbers")
    args, kwargs = arguments(t, node)
    t.at(node)
    if len(args) + len(kwargs) > 1 or set(kwargs) - {"dtype", "dt"}:
        raise type_error("a random number takes nothing but its type", "scale it yourself: `low + (high - low) * sg.random()`")
    dtype = arithmetic.as_dtype(next(iter(kwargs.values()), args[0] if args else float))
    if draw is randoms.normal and not dtype.is_float:
        raise type_error(f"`randn` gives floats, not {dtype}", "`sg.random(sg.i32)` draws integers")
    counter = scalar.as_value(t.frame.variables[RNG])
    t.frame.variables[RNG] = scalar.add(counter, scalar.constant(1, u32))
    return draw(dtype, counter, *t.random_stream.key())


def _environment(t: Tracer, node: ast.Call) -> Value:
    if node.args or node.keywords:
        raise type_error("`sg.batch.index` takes no arguments")
    return Value(t.environment())


def _super(t: Tracer, node: ast.Call) -> object:
    """Trace ``super()``: Python finds the class and the object by itself, from the method that is running."""
    if t.captures.reads is not None:
        t.captures.reads.refuse("it calls `super()`")
    if node.args or node.keywords:
        args, kwargs = arguments(t, node)
        return super(*args, **kwargs)
    cls, first = t.frame.names.get("__class__"), next(iter(t.frame.variables.values()), None)
    if not isinstance(cls, type) or not isinstance(first, cls):
        raise t.syntax_error("`super()` works in methods of a class", node, "name the class: `Base.method(self, ...)`")
    return super(cls, first)


def _buffer_view(t: Tracer, node: ast.Call) -> ViewProxy:
    """Trace ``BufferView(a, offset, size)`` of an array or a view of the kernel."""
    args, kwargs = arguments(t, node)
    t.at(node)
    given = {**dict(zip(("arr", "offset", "size"), args)), **kwargs}
    if len(given) != len(args) + len(kwargs) or not {"arr"} <= set(given) <= {"arr", "offset", "size"}:
        raise type_error("`BufferView` takes an array, an offset and a size", "as in `sg.BufferView(a, 4, 8)`")
    if not isinstance(given["arr"], (ArrayProxy, ViewProxy)):
        raise type_error(f"a view is one of an array, not of {describe(given['arr'])}", "slice it: `x[4:12]`")
    return subview(given["arr"], given.get("offset", 0), given.get("size"))


def _print(t: Tracer, node: ast.Call) -> None:
    args, kwargs = arguments(t, node)
    t.at(node)
    unknown = set(kwargs) - {"sep", "end"}
    if unknown:
        raise type_error(f"`print` in a kernel has no argument `{unknown.pop()}`", "it takes sep and end")
    for name, value in kwargs.items():
        if not isinstance(value, str):
            raise type_error(f"`{name}` of `print` is a string known while compiling, not {describe(value)}")
    texts = {name: value for name, value in kwargs.items() if isinstance(value, str)}
    parts: list[Shown] = []
    for k, value in enumerate(args):
        if t.captures.reads is not None:
            t.captures.reads.shown(value)
        parts += [texts.get("sep", " ")] if k else []
        parts += text_parts(value)
    emit_print([*parts, texts.get("end", "\n")])


FORMS: dict[object, Handler] = {
    forms.static: _static,
    forms.static_assert: _static_assert,
    forms.atomic_cas: _atomic_cas,
    forms.activate: cell_activation.activate,
    forms.deactivate: cell_activation.deactivate,
    forms.no_activate: cell_activation.no_activate,
    forms.is_active: cell_activation.is_active,
    forms.append: lists.append,
    forms.length: lists.length,
    forms.volatile_load: _volatile_load,
    forms.get_addr: element_addresses.get_addr,
    forms.environment: _environment,
    BufferView: _buffer_view,
    forms.random: functools.partial(_random, randoms.uniform),
    forms.randn: functools.partial(_random, randoms.normal),
    builtins.print: _print,
    builtins.super: _super,
    **{function: functools.partial(_atomic, kind) for function, kind in forms.ATOMICS.items()},
}
