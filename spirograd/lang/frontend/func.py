"""`@func`: functions that are inlined where kernels call them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradNameError, SpirogradRuntimeError, SpirogradTypeError
from spirograd.base.near_names import NearNames
from spirograd.base.wording import counted, did_you_mean
from spirograd.lang import plain_python
from spirograd.lang.annotations import Reference, Template
from spirograd.lang.frontend import source
from spirograd.lang.frontend.source import Source
from spirograd.lang.frontend.texts import text_of
from spirograd.lang.scalar import describe
from spirograd.lang.tuples import result_type


def is_template(annotation: object) -> bool:
    """Return whether a parameter is taken by reference: `template()`, `Template` or the call-less `template`."""
    return annotation is Template or isinstance(annotation, Template) or getattr(annotation, "__name__", "") == "template"


def is_scalar_type(annotation: object) -> bool:
    """Return whether an annotation names a type of scalars."""
    if isinstance(annotation, type) and issubclass(annotation, np.generic):
        return True
    return isinstance(annotation, DType) or annotation in (int, float, bool)


class Func(NearNames):
    """A function of the kernel language. It has no meaning outside of kernels.

    ``may_lack_a_value``: whether the function may end without the value that its annotation names; ``requires_top_level``: whether it may
    be called at the top level of a kernel only.
    """

    may_lack_a_value = False
    requires_top_level = False

    def __init__(self, function: Callable[..., object], by_reference: tuple[str, ...] = ()) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._text = text_of(function)
        self._by_reference = by_reference
        self.changed: frozenset[str] | None = None  # parameters that it may change, see `call_targets.changed_parameters`
        self._source: Source | None = None
        self._signature: inspect.Signature | None = None

    @property
    def source(self) -> Source:
        if self._source is None:
            self._source = source.of(self.function, self._text, "function")
        return self._source

    @property
    def signature(self) -> inspect.Signature:
        """The signature, with annotations that are strings evaluated."""
        if self._signature is None:
            self._signature = resolved_signature(self.function)
        return self._signature

    @property
    def returns(self) -> object:
        """What the annotation of the result says."""
        return result_type(self.signature.return_annotation)

    @property
    def changes_object(self) -> bool:
        """Whether it is a method that takes its object by reference, as those of structs do."""
        return bool(self._by_reference)

    def references(self) -> set[str]:
        """Return names of the parameters taken by reference."""
        named = {p.name for p in self.signature.parameters.values() if is_template(p.annotation) or isinstance(p.annotation, Reference)}
        return named | set(self._by_reference)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if plain_python.state.running:
            return plain_python.state.call(self, args, kwargs)
        raise SpirogradRuntimeError(
            f"`{self.function.__qualname__}` is a function of the kernel language: only kernels and other functions can call it; "
            "`@sg.pyfunc` makes one that Python can call, too"
        )

    def __get__(self, instance: object, owner: object = None) -> object:
        return self if instance is None else BoundFunc(self, instance)


class PythonFunc(Func):
    """A function of the kernel language that Python may call too: then it is the Python function that it was made of."""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.function(*args, **kwargs)


class RealFunc(Func):
    """A function of the kernel language that kernels call where they can, see `real_functions`."""

    may_lack_a_value = True


class BoundFunc(NearNames):
    """A `Func` that is a method, with its object."""

    def __init__(self, func: Func, instance: object) -> None:
        self.func = func
        self.instance = instance

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.func(self.instance, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundFunc) and self.func is other.func and self.instance is other.instance

    def __hash__(self) -> int:
        return hash((self.func, id(self.instance)))


def resolved_signature(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of ``function``; under ``from __future__ import annotations`` the strings are evaluated in its own names."""
    signature = inspect.signature(function)
    if not any(isinstance(p.annotation, str) for p in signature.parameters.values()) and not isinstance(signature.return_annotation, str):
        return signature
    names = {**function.__globals__, **getattr(function, "__sg_outer__", {})}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # not assigned yet
            names[name] = cell.cell_contents
    parameters = [
        p.replace(annotation=_evaluate(p.annotation, names, function)) if isinstance(p.annotation, str) else p
        for p in signature.parameters.values()
    ]
    returns = signature.return_annotation
    return inspect.Signature(parameters, return_annotation=_evaluate(returns, names, function) if isinstance(returns, str) else returns)


def bound_arguments(signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> inspect.BoundArguments:
    """Return the arguments of a call by name; raises TypeError, in the user's words, if they do not fit."""
    parameters = signature.parameters
    kinds = {p.kind for p in parameters.values()}
    unknown = [k for k in kwargs if k not in parameters]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        hint = did_you_mean(unknown[0], parameters) or f"it takes {', '.join(f'`{p}`' for p in parameters) or 'none'}"
        raise TypeError(f"there is no argument `{unknown[0]}`; {hint}")
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(args) > len(positional) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise TypeError(f"it takes {counted(len(positional), 'argument')}, got {len(args)}")
    given = {*kwargs, *(p.name for p in positional[: len(args)])}
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [n for n in needed if n not in given]
    if missing:
        raise TypeError(f"argument {', '.join(f'`{n}`' for n in missing)} is missing")
    return signature.bind(*args, **kwargs)


def _evaluate(text: str, names: dict[str, object], function: Callable[..., object]) -> object:
    try:
        return eval(text, names)  # the user's own annotation, as typing.get_type_hints does
    except NameError as error:
        raise SpirogradNameError(f"annotation `{text}` of `{function.__qualname__}`: {error}") from None
    except Exception as error:
        raise SpirogradTypeError(f"annotation `{text}` of `{function.__qualname__}`: {error}") from None


def plain_function(function: object, decorator: str) -> types.FunctionType:
    """Return ``function``. Raises SpirogradTypeError unless it is a Python function as it was written."""
    below = f"put `@{decorator}` below the other decorator"
    if inspect.isfunction(function):
        if hasattr(function, "__wrapped__"):  # by functools.wraps: its source is that of the wrapper
            message = f"`@{decorator}` decorates functions, not what another decorator made of `{function.__name__}`"
            raise SpirogradTypeError(message, None, below)
        return function
    hint = below if isinstance(function, (staticmethod, classmethod, property)) else ""
    if isinstance(function, Func) or getattr(function, "__sg_is_kernel__", False):
        hint = "use one of `@kernel` and `@func`"
    raise SpirogradTypeError(f"`@{decorator}` decorates functions, not {describe(function)}", None, hint)


def remember_outer_names(function: Callable[..., object], frame: types.FrameType | None) -> None:
    """Keep what annotations that are strings name in ``frame``, where ``function`` is decorated: Python makes no closure of these names."""
    texts = [a for a in getattr(function, "__annotations__", {}).values() if isinstance(a, str)]
    if not texts or frame is None or frame.f_locals is frame.f_globals:
        return
    names: set[str] = set()
    for text in texts:
        with contextlib.suppress(SyntaxError):
            names.update(compile(text, "<annotation>", "eval").co_names)
    function.__sg_outer__ = {name: scope[name] for scope in _scopes(frame) for name in names if name in scope}  # type: ignore[attr-defined]


def _scopes(frame: types.FrameType | None) -> list[dict[str, object]]:
    """Return the local names around a decorated function, innermost last: those of a class body, of the function around it."""
    out = []
    while frame is not None and frame.f_locals is not frame.f_globals:
        out.append(frame.f_locals)
        if "__qualname__" not in frame.f_locals:  # a function, not the body of a class
            break
        frame = frame.f_back
    return out[::-1]


@overload
def func(function: Callable[..., object]) -> Func: ...


@overload
def func(function: None = None, *, requires_top_level: bool = False) -> Callable[[Callable[..., object]], Func]: ...


def func(function: Callable[..., object] | None = None, *, requires_top_level: bool = False) -> object:
    """Decorator: a function that kernels and other such functions may call. It is inlined. ``requires_top_level``: raise an error where a
    call is under a condition or in a loop, because the loops of the function would not be parallel there."""
    return (lambda function: _func(function, requires_top_level)) if function is None else _func(function, requires_top_level)


def _func(function: Callable[..., object], requires_top_level: bool) -> Func:
    remember_outer_names(plain_function(function, "func"), sys._getframe(2))
    out = Func(function)
    out.requires_top_level = requires_top_level
    return out


def pyfunc(function: Callable[..., object]) -> PythonFunc:
    """Decorator: a function for kernels, where it is inlined, and for Python, where it runs as it is."""
    remember_outer_names(plain_function(function, "pyfunc"), sys._getframe(1))
    return PythonFunc(function)


def real_func(function: Callable[..., object]) -> RealFunc:
    """Decorator: a function that kernels and other such functions may call. If it only computes, it is compiled once for each signature
    and called; otherwise it is inlined."""
    remember_outer_names(plain_function(function, "real_func"), sys._getframe(1))
    return RealFunc(function)
