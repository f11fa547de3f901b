"""Calls: special forms, Python's builtins, functions of the kernel language, and functions that run while tracing."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradCompilationError, SpirogradError, SpirogradSyntaxError, SpirogradTypeError
from spirograd.lang.frontend.access import get_attribute, resolve
from spirograd.lang.frontend.builtin_functions import BUILTINS
from spirograd.lang.frontend.call_effects import check_unchanged
from spirograd.lang.frontend.call_targets import is_hashable, resolved
from spirograd.lang.frontend.expressions import arguments, display, values_of
from spirograd.lang.frontend.formatted_text import formatted
from spirograd.lang.frontend.inlining import call_function, call_with_values
from spirograd.lang.frontend.lists import METHODS, DynamicList, list_at
from spirograd.lang.frontend.lvalues import Lvalue
from spirograd.lang.frontend.nondeterminism import check_callee, watched
from spirograd.lang.frontend.runtime_values import contains_runtime
from spirograd.lang.frontend.special_forms import FORMS
from spirograd.lang.frontend.syntax_facts import written
from spirograd.lang.frontend.tracer import Handler, Tracer
from spirograd.lang.frontend.type_errors import host_only, is_host_only, python_call
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe, type_error
from spirograd.lang.struct import Struct

# Methods that change lists, dicts and sets.
_CHANGES = {
    "append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update", "setdefault", "popitem", "add", "discard",
}  # fmt: skip
_OWN_NAME = re.compile(r"^[\w.]+(\(\))? (?=missing|takes|got)")  # of the function, as Python's messages about arguments begin


def _call(t: Tracer, node: ast.Call) -> object:
    callee, lvalue = _callee(t, node.func)
    t.at(node)
    form = FORMS.get(callee) if is_hashable(callee) else None
    if form is not None:
        return form(t, node)
    function = resolved(callee)
    if function is not None:
        return call_function(t, function, node, lvalue)
    if lvalue is not None and getattr(callee, "__func__", None) is Matrix.fill:
        assert isinstance(node.func, ast.Attribute)
        check_unchanged(t, [node.func.value])
        lvalue.store(callee.__self__.filled(*values_of(t, node.args)))
        return None
    args, kwargs = arguments(t, node)
    t.at(node)
    builtin = BUILTINS.get(callee) if is_hashable(callee) else None
    if builtin is not None:
        with watched(t, callee, args):
            return display(t, _run(t, callee.__name__, builtin, args, kwargs))
    return _call_python(t, callee, args, kwargs)


def _callee(t: Tracer, node: ast.expr) -> tuple[Any, Lvalue | None]:
    """Return what is called, and the lvalue of the object whose method it is."""
    if not isinstance(node, ast.Attribute):
        return t.expression(node), None
    lvalue, base = resolve(t, node.value)
    t.at(node)
    if lvalue is None and node.attr in METHODS:
        entries = base if isinstance(base, DynamicList) else list_at(t, base)
        if entries is not None:
            return getattr(entries, node.attr), None
    return get_attribute(t, base if lvalue is None else lvalue.load(), node.attr, written(node)), lvalue


def _call_python(t: Tracer, callee: Any, args: list[object], kwargs: dict[str, object]) -> object:
    """Call something that runs while tracing: our own dual functions and types, or any function of compile-time values."""
    if getattr(callee, "__sg_is_kernel__", False):
        raise SpirogradSyntaxError("a kernel cannot be called from a kernel", t.b.loc, "make it a function with `@sg.func`")
    if not callable(callee):
        raise SpirogradTypeError(f"{describe(callee)} is not callable", t.b.loc)
    values = (*args, *kwargs.values())
    if not t.in_static:
        check_callee(callee, t.b.loc)
    if not _is_traceable(callee) and contains_runtime(values):
        if getattr(callee, "__name__", "") == "format" and isinstance(getattr(callee, "__self__", None), str):
            return formatted(callee.__self__, args, kwargs)
        if callee in (getattr, hasattr):
            return _run(t, callee.__name__, _looked_up(t, callee), args, kwargs)
        plain = resolved(callee, plain=True)
        if plain is None:
            raise python_call(callee)
        return call_with_values(t, plain, args, kwargs)
    if is_host_only(callee):
        raise host_only(callee)
    _check_change(t, callee, values)
    if t.captures.reads is not None:
        t.captures.reads.call(callee, args, kwargs)
    name = getattr(callee, "__name__", type(callee).__name__)
    if _is_traceable(callee):
        return _run(t, name, callee, args, kwargs)
    try:
        with watched(t, callee, values):
            result = callee(*args, **kwargs)
            if t.captures.reads is not None:
                t.captures.reads.result(callee, args, kwargs, result)
            return display(t, result)
    except SpirogradError:
        raise
    except Exception as error:
        message = f"`{name}`, which runs while compiling, raised {type(error).__name__}: {error}"
        raise SpirogradCompilationError(message, t.b.loc) from error


def _looked_up(t: Tracer, callee: object) -> Callable[..., object]:
    """Return `getattr` or `hasattr` (``callee``) for run-time values, whose attributes are members of structs and entries of vectors."""

    def run(base: object, name: str, *default: object) -> object:
        exists = hasattr(base, name)
        if callee is hasattr:
            return exists
        return default[0] if default and not exists else get_attribute(t, base, name)

    return run


def _run(t: Tracer, name: str, callee: Callable[..., object], args: list[object], kwargs: dict[str, object]) -> object:
    """Call a function of the language, whose arguments may not fit."""
    try:
        return callee(*args, **kwargs)
    except SpirogradError:
        raise
    except (AssertionError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise SpirogradTypeError(f"`{name}`: {re.sub(_OWN_NAME, '', str(error))}", t.b.loc) from error


def _check_change(t: Tracer, callee: Callable[..., object], values: Sequence[object]) -> None:
    """Refuse a change of a Python list or dict inside of a loop or branch in which it was not made: it happens once, while compiling."""
    owner = getattr(callee, "__self__", None)
    if not isinstance(owner, (list, dict, set)) or callee.__name__ not in _CHANGES:
        return
    _, depth = t.displays.get(id(owner), (None, 0))
    if depth != t.b.depth and (depth or contains_runtime(values)):
        raise type_error(
            f"`{callee.__name__}` would change {describe(owner)} once, while compiling, not at run time",
            "store to a field, an ndarray or a local sg.Vector",
        )


def _is_traceable(callee: object) -> bool:
    """Return whether a callable is made to run while tracing."""
    owner = getattr(callee, "__self__", None)
    if getattr(callee, "__sg_traceable__", False) or getattr(type(callee), "__sg_traceable__", False):
        return True
    if isinstance(callee, DType) or isinstance(owner, (Matrix, Struct, Value, list, dict, tuple)):
        return True
    module = getattr(callee, "__module__", None) or getattr(type(callee), "__module__", "")
    return str(module).startswith("spirograd.")


HANDLERS: dict[type[ast.AST], Handler] = {ast.Call: _call}
