"""What a call reaches: a function of the kernel language, and what it is bound to.

A function is the same whichever way it comes: by its name, as an attribute, an entry of a list, a template argument, a bound method, with
arguments filled in by `functools.partial`, as an object that can be called.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from spirograd.base.records import dataclass
from spirograd.lang.frontend.func import BoundFunc, Func
from spirograd.lang.frontend.kernel_methods import KERNEL_METHODS
from spirograd.lang.frontend.lvalues import Lvalue
from spirograd.lang.struct import Struct


@dataclass(frozen=True, slots=True)
class Callee:
    """A function with the values that come before the arguments of a call. ``has_object``: the first is the object of the method."""

    func: Func
    positional: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    has_object: bool = False

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters that arguments by position can reach, those of ``positional`` included."""
        parameters = self.func.signature.parameters.values()
        return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    def changed_by(self, call: ast.Call) -> list[ast.expr]:
        """The expressions in a call whose variables the function may change. Arguments after a starred one are left out: their positions
        are known only once they are evaluated."""
        names, by_reference = self.parameters, self.func.references()
        out: list[ast.expr] = []
        if self.has_object and isinstance(call.func, ast.Attribute) and names[0] in by_reference:
            out.append(call.func.value)
        for name, argument in zip(names[len(self.positional) :], call.args):
            if isinstance(argument, ast.Starred):
                break
            if name in by_reference:
                out.append(argument)
        return [*out, *[k.value for k in call.keywords if k.arg in by_reference]]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call: its value, and the expression and the lvalue that it comes from, if it is that of a variable or of memory."""

    value: Any
    node: ast.expr | None = None
    lvalue: Lvalue | None = None


def resolved(callee: Any) -> Callee | None:
    """The function of the kernel language that ``callee`` is; None if it is none."""
    if isinstance(callee, Func):
        return Callee(callee)
    if isinstance(callee, BoundFunc):
        return Callee(callee.func, (callee.instance,), has_object=True)
    if isinstance(callee, types.MethodType) and isinstance(callee.__self__, Struct):
        methods: Any = callee.__self__.methods.values()
        return Callee(struct_method(callee.__func__), (callee.__self__,), has_object=True) if callee.__func__ in methods else None
    if isinstance(callee, types.MethodType) and callee.__func__ in KERNEL_METHODS:
        return Callee(KERNEL_METHODS[callee.__func__], (callee.__self__,))
    if isinstance(callee, types.MethodType) and isinstance(callee.__func__, Func):  # a class method, since Python 3.13
        return Callee(callee.__func__, (callee.__self__,), has_object=True)
    if isinstance(callee, functools.partial):
        inner = resolved(callee.func)
        if inner is None:
            return None
        return Callee(inner.func, (*inner.positional, *callee.args), {**inner.keywords, **callee.keywords})
    method = getattr(type(callee), "__call__", None)  # noqa: B004 -- which one it is matters
    return Callee(method, (callee,)) if isinstance(method, Func) else None


@functools.cache
def struct_method(method: Any) -> Func:
    """A method of a struct type as a function that takes the struct by reference."""
    function = method.function if isinstance(method, Func) else method
    return Func(function, by_reference=(next(iter(inspect.signature(function).parameters)),))
