"""Functions of the program that run while compiling and surely have no effect, so that another process can call them to compare results.

`is_pure` reads the instructions of a function. It accepts local variables, operators, and names from outside that stand for numbers,
strings, built-in functions without effects, the module `math`, or other such functions. It refuses assignments to names from outside and to
attributes, and what other code may change: containers from outside, and attributes of functions.
"""

from __future__ import annotations

import ast
import builtins
import dis
import math
import types
from collections.abc import Iterable, Mapping, Sequence

from spirograd.lang.frontend.read_values import MOST_BITS, PLAIN

_BUILTINS = frozenset((
    abs, all, any, bool, bytes, chr, complex, dict, divmod, enumerate, float, frozenset, int, isinstance, len, list, max, min, ord, pow,
    range, repr, reversed, round, set, slice, sorted, str, sum, tuple, zip,
))  # fmt: skip
_EFFECTS = frozenset((
    "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME", "IMPORT_FROM", "IMPORT_STAR", "LOAD_BUILD_CLASS",
    "LOAD_NAME", "STORE_NAME", "YIELD_VALUE", "GET_AWAITABLE", "PRINT_EXPR",
))  # fmt: skip
_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SPECIAL"))


def is_pure(function: object) -> bool:
    """Return whether calls of ``function`` with numbers, strings, and tuples of these have no effect but their result, which depends on
    nothing but these, and on numbers and strings that the function sees from outside."""
    return _is_pure(function, set())


def _is_pure(function: object, seen: set[types.FunctionType]) -> bool:
    if type(function) is not types.FunctionType:
        return False
    if function in seen:
        return True
    seen.add(function)
    if any(not name.startswith("_") for name in function.__dict__):
        return False
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    names = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    try:
        outside = [cell.cell_contents for cell in names.values()]
    except ValueError:  # not assigned yet
        return False
    known = all(_is_constant(value) for value in defaults) and all(_is_usable(value, seen) for value in outside)
    return known and _has_no_effect(function.__code__, function.__globals__, names, seen)


def _has_no_effect(code: types.CodeType, namespace: Mapping[str, object], free: Iterable[str], seen: set[types.FunctionType]) -> bool:
    """Return whether the instructions of ``code`` change nothing outside of it. ``free``: the names of variables around the function."""
    for step in dis.get_instructions(code):
        name = step.argval
        if step.opname in _EFFECTS or (step.opname in ("STORE_DEREF", "DELETE_DEREF") and name in free):
            return False
        if step.opname in _ATTRIBUTES and str(name).startswith("_"):
            return False
        if step.opname in _GLOBALS and not _is_usable(namespace.get(name, getattr(builtins, name, namespace)), seen):
            return False
    nested = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return all(_has_no_effect(part, namespace, free, seen) for part in nested)


def _is_usable(value: object, seen: set[types.FunctionType]) -> bool:
    """Return whether a function may use ``value`` from outside."""
    if _is_constant(value) or value is math:
        return True
    return any(value is one for one in _BUILTINS) or is_of_math(value) or _is_pure(value, seen)


def is_of_math(value: object) -> bool:
    """Return whether ``value`` is a function of the module `math`. A function of the program may have its name, by `functools.wraps`."""
    return type(value) is types.BuiltinFunctionType and value.__module__ == math.__name__


def _is_constant(value: object) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and all(map(_is_constant, value)))


# --- arguments and results ---------------------------------------------------------------------------------------------------


def literal(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Return the arguments of a call, which are literals, as text for `called`."""
    return repr((tuple(args), dict(kwargs)))


def is_literal(value: object) -> bool:
    """Return whether ``value`` is a finite number, a string, or a tuple of these, and has a text."""
    if type(value) is tuple:
        return all(map(is_literal, value))
    if type(value) is int and value.bit_length() > MOST_BITS:
        return False
    return type(value) in PLAIN and (not isinstance(value, float) or math.isfinite(value))


def called(function: object, text: str) -> object:
    """Return the result of ``function`` for the arguments that `literal` wrote. Raises ValueError if ``function`` is not pure or fails."""
    if not is_pure(function):
        raise ValueError("the function may have effects")
    assert callable(function)
    args, kwargs = ast.literal_eval(text)
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise ValueError("the function fails") from error
