"""Python's builtin functions, as kernels have them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sized
from typing import TypeGuard

import numpy as np

from spirograd.lang import arithmetic, context, scalar
from spirograd.lang.data.scalar_field import Field
from spirograd.lang.frontend import lossy_conversions
from spirograd.lang.frontend.array_proxy import ArrayProxy
from spirograd.lang.frontend.loop_spaces import RunTimeRange
from spirograd.lang.frontend.view_proxy import ViewProxy
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Scalar, Value, describe, type_error


def _range(*args: Scalar) -> object:
    if not 1 <= len(args) <= 3:
        raise type_error(f"`range` takes 1 to 3 arguments, got {len(args)}")
    if len(args) == 3 and scalar.is_number(scalar.known(args[2])) and scalar.known(args[2]) == 0:
        raise type_error("the step of a range cannot be 0", "use a `while` loop")
    if context.language_options().casts_float_bounds:
        args = tuple(_cast_bound(a) for a in args)
    if any(isinstance(a, Value) for a in args):
        for a in args:
            if scalar.dtype_of(a).is_float:
                raise type_error(f"`range` needs integers, got {scalar.dtype_of(a)}", "cast the bound: `int(x)`")
        return RunTimeRange(0, *args) if len(args) == 1 else RunTimeRange(*args)
    numbers: list[int] = []
    for a in args:
        if not isinstance(a, (int, np.integer)):
            axes = "take the extent of one axis, such as `.shape[0]`, or loop over all with `sg.ndrange(*shape)`"
            hint = axes if isinstance(a, (tuple, list)) else "`//` divides integers to an integer"
            raise type_error(f"`range` needs integers, got {describe(a)}", hint)
        numbers.append(int(a))
    return range(*numbers)


def _cast_bound(a: Scalar) -> Scalar:
    """Return a bound of `range` as an integer, with a warning if it may lose its fraction."""
    if not scalar.dtype_of(a).is_float:
        return a
    t = context.language_options().default_ip
    lossy_conversions.check([a], [t], "a bound of `range`", lossy_conversions.BOUND)
    return arithmetic.cast(a, t) if isinstance(a, Value) else int(a)


def _convert(t: type[int | float]) -> Callable[..., object]:
    """Return `int`, `float` or `bool`: of run-time values a cast, of numbers and strings what Python returns."""

    def run(x: object = 0, *base: int) -> object:
        return t(x, *base) if scalar.is_number(x) or isinstance(x, str) else arithmetic.cast(x, t, *base)

    return run


def _reduce(method: str) -> Callable[[object], object]:
    def run(x: object) -> object:
        items = x if isinstance(x, Matrix) else Matrix(_items(x, method))
        return getattr(items, method)()

    return run


def _items(x: object, what: str) -> list[object]:
    """Return the items of something whose length is known while compiling."""
    if isinstance(x, (RunTimeRange, Value, Field, ArrayProxy, ViewProxy)) or not (isinstance(x, Iterable) or _is_sequence(x)):
        hint = "" if isinstance(x, Value) else "write a loop"
        raise type_error(f"`{what}` needs a vector, or a list or range that is known while compiling, not {describe(x)}", hint)
    return list(x)


def _is_sequence(x: object) -> TypeGuard[Iterable[object]]:
    """Return whether Python iterates over ``x`` by its indices, since the class has no `__iter__`."""
    return hasattr(type(x), "__getitem__")


def _extremum(function: Callable[..., object], name: str) -> Callable[..., object]:
    def run(*args: object) -> object:
        return function(*(args if len(args) != 1 else _items(args[0], name)))

    return run


def _length(x: Sized) -> int:
    try:
        return len(x)
    except TypeError:
        raise type_error(f"{describe(x)} has no length", "the extents of a field or array are in `.shape`") from None


BUILTINS: dict[object, Callable[..., object]] = {
    builtins.range: _range,
    builtins.abs: arithmetic.abs,
    builtins.min: _extremum(arithmetic.min, "min"),
    builtins.max: _extremum(arithmetic.max, "max"),
    builtins.pow: arithmetic.pow,
    builtins.round: arithmetic.round,
    builtins.int: _convert(int),
    builtins.float: _convert(float),
    builtins.bool: _convert(bool),
    builtins.len: _length,
    builtins.dict: dict,
    builtins.list: lambda x=(): _items(x, "list"),
    builtins.tuple: lambda x=(): tuple(_items(x, "tuple")),
    builtins.sum: _reduce("sum"),
    builtins.any: _reduce("any"),
    builtins.all: _reduce("all"),
    builtins.enumerate: lambda x, start=0: list(enumerate(_items(x, "enumerate"), start)),
    builtins.zip: lambda *a: list(zip(*[_items(x, "zip") for x in a])),
    builtins.reversed: lambda x: list(reversed(_items(x, "reversed"))),
}
