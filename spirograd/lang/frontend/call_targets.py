"""What a call reaches: a function of the kernel language, and what it is bound to.

A function is the same whichever way it comes: by its name, as an attribute, an entry of a list, a template argument, a bound method, with
arguments filled in by `functools.partial`, as an object that can be called.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from spirograd.base.records import dataclass
from spirograd.lang import forms
from spirograd.lang.frontend.func import BoundFunc, Func
from spirograd.lang.frontend.kernel_methods import KERNEL_METHODS
from spirograd.lang.frontend.lvalues import Lvalue
from spirograd.lang.frontend.syntax_facts import assigned, object_of
from spirograd.lang.matrix import Matrix
from spirograd.lang.struct import Struct

# Functions of these packages do what kernels cannot do, however plain they look.
_FOREIGN = frozenset(("numpy", "scipy", "torch", "jax", "cupy")) | (sys.stdlib_module_names - {"__main__"})


@dataclass(frozen=True, slots=True)
class Callee:
    """A function with the values that come before the arguments of a call. ``has_object``: the first is the object of the method."""

    func: Func
    positional: tuple[object, ...] = ()
    keywords: Mapping[str, object] = field(default_factory=dict)
    has_object: bool = False

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters that arguments by position can reach, those of ``positional`` included."""
        parameters = self.func.signature.parameters.values()
        return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    def changed_by(self, call: ast.Call) -> list[ast.expr]:
        """Return the expressions in a call whose variables the function may change. Arguments after a starred one are left out: their
        positions are known only once they are evaluated."""
        names, by_reference = self.parameters, changed_parameters(self.func)
        out: list[ast.expr] = []
        if self.has_object and isinstance(call.func, ast.Attribute) and names[0] in by_reference:
            out.append(call.func.value)
        for name, argument in zip(names[len(self.positional) :], call.args):
            if isinstance(argument, ast.Starred):
                break
            if name in by_reference:
                out.append(argument)
        return [*out, *[k.value for k in call.keywords if k.arg in by_reference]]


def changed_parameters(func: Func) -> frozenset[str]:
    """Return the parameters taken by reference that ``func`` may change, found in its syntax. Of a call whose target is not known there,
    whatever the call names counts. A function that calls itself changes what it changes otherwise."""
    if func.changed is None:
        func.changed = frozenset()  # of calls of itself
        by_reference, body = func.references(), func.source.tree.body
        if by_reference:
            own = {*func.signature.parameters, *assigned(body, lambda call: ())}
            outside = {name: value for name, value in func.source.names().items() if name not in own}
            func.changed = frozenset(by_reference & assigned(body, functools.partial(_possibly_changed, outside)))
    return func.changed


def known_to_change(call: ast.Call, callee: object) -> Sequence[ast.expr] | None:
    """Return the expressions in a call of ``callee`` whose variables it may change; None if the callee is None, because it is not known."""
    target = resolved(callee)
    if target is not None:
        return target.changed_by(call)
    return call.args[:1] if is_atomic(callee) else None if callee is None else ()


def _possibly_changed(names: Mapping[str, object], call: ast.Call) -> Sequence[ast.expr]:
    """Return the expressions in a call whose variables it may change. ``names``: what the function that calls sees from outside."""
    known = known_to_change(call, object_of(call.func, names.get))
    if known is not None:
        return known
    if isinstance(call.func, ast.Attribute) and call.func.attr in _READING:
        return ()
    held = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return [*held, *call.args, *[k.value for k in call.keywords]]


# Methods of vectors and matrices that give something, and change nothing.
_READING = frozenset(name for name in vars(Matrix) if not name.startswith("_") and name != "fill")


def is_atomic(callee: object) -> bool:
    """Return whether a callee is an atomic operation, which changes its first argument."""
    return is_hashable(callee) and (callee in forms.ATOMICS or callee is forms.atomic_cas)


def is_hashable(x: object) -> bool:
    return type(x).__hash__ is not None


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call: its value, and the expression and the lvalue that it comes from, if it is that of a variable or of memory."""

    value: object
    node: ast.expr | None = None
    lvalue: Lvalue | None = None


def resolved(callee: object, plain: bool = False) -> Callee | None:
    """Return the function of the kernel language that ``callee`` is; None if it is none. ``plain``: a Python function is one, too, which is
    inlined as if it were decorated with `@func`."""
    if isinstance(callee, Func):
        return Callee(callee)
    if isinstance(callee, BoundFunc):
        return Callee(callee.func, (callee.instance,), has_object=True)
    if isinstance(callee, types.FunctionType):
        return Callee(_func_of(callee)) if plain and not _is_foreign(callee) else None
    if isinstance(callee, types.MethodType) and isinstance(callee.__self__, Struct):
        is_method = any(method is callee.__func__ for method in callee.__self__.methods.values())
        return Callee(struct_method(callee.__func__), (callee.__self__,), has_object=True) if is_method else None
    if isinstance(callee, types.MethodType) and callee.__func__ in KERNEL_METHODS:
        return Callee(KERNEL_METHODS[callee.__func__], (callee.__self__,))
    if isinstance(callee, types.MethodType):
        inner = resolved(callee.__func__, plain)
        is_class_method = isinstance(callee.__func__, Func)  # since Python 3.13
        return None if inner is None else Callee(inner.func, (callee.__self__, *inner.positional), inner.keywords, is_class_method)
    if isinstance(callee, functools.partial):
        inner = resolved(callee.func, plain)
        return None if inner is None else Callee(inner.func, (*inner.positional, *callee.args), {**inner.keywords, **callee.keywords})
    method = None if isinstance(callee, type) else getattr(type(callee), "__call__", None)  # noqa: B004 -- which one it is matters
    inner = resolved(method, plain) if isinstance(method, (Func, types.FunctionType)) else None
    return None if inner is None else Callee(inner.func, (callee,))


def _is_foreign(function: types.FunctionType) -> bool:
    wrapped = hasattr(function, "__wrapped__")  # by a decorator: what runs is not what its source says
    return wrapped or (function.__module__ or "").partition(".")[0] in _FOREIGN


def _func_of(function: types.FunctionType) -> Func:
    """Return ``function`` as a function of the kernel language, the same one for each call."""
    func: Func | None = function.__dict__.get("__sg_func__")
    if func is None:
        func = function.__dict__["__sg_func__"] = Func(function)
    return func


@functools.cache
def struct_method(method: Callable[..., object]) -> Func:
    """Return a method of a struct type as a function that takes the struct by reference."""
    function = method.function if isinstance(method, Func) else method
    return Func(function, by_reference=(next(iter(inspect.signature(function).parameters)),))
