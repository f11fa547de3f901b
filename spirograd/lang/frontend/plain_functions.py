"""Plain Python functions that kernels call with run-time values: they are inlined, as if they were decorated with `@func`."""

from __future__ import annotations

import functools
import sys
import types

from spirograd.lang.frontend.call_targets import Callee
from spirograd.lang.frontend.func import Func

# Functions of these packages do what kernels cannot do, however plain they look.
_FOREIGN = frozenset(("numpy", "scipy", "torch", "jax", "cupy")) | (sys.stdlib_module_names - {"__main__"})


def plain_callee(callee: object) -> Callee | None:
    """Return what a call reaches: of a Python function, lambda, method, object that can be called, or `functools.partial`; None for
    others."""
    if isinstance(callee, types.FunctionType):
        return None if _is_foreign(callee) else Callee(func_of(callee))
    if isinstance(callee, types.MethodType):
        inner = plain_callee(callee.__func__)
        return None if inner is None else Callee(inner.func, (callee.__self__, *inner.positional), inner.keywords)
    if isinstance(callee, functools.partial):
        inner = plain_callee(callee.func)
        return None if inner is None else Callee(inner.func, (*inner.positional, *callee.args), {**inner.keywords, **callee.keywords})
    if isinstance(callee, type):
        return None
    method = getattr(type(callee), "__call__", None)  # noqa: B004 -- which one it is matters
    inner = plain_callee(method) if isinstance(method, types.FunctionType) else None
    return None if inner is None else Callee(inner.func, (callee,))


def _is_foreign(function: types.FunctionType) -> bool:
    wrapped = hasattr(function, "__wrapped__")  # by a decorator: what runs is not what its source says
    return wrapped or (function.__module__ or "").partition(".")[0] in _FOREIGN


def func_of(function: types.FunctionType) -> Func:
    """Return ``function`` as a function of the kernel language, the same one for each call."""
    func: Func | None = function.__dict__.get("__sg_func__")
    if func is None:
        func = function.__dict__["__sg_func__"] = Func(function)
    return func
