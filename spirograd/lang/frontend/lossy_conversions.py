"""Warnings of conversions that lose part of a value and that the program does not ask for: ``a = 0; a += 0.5``."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.errors import render
from spirograd.lang import scalar
from spirograd.lang.scalar import Number, Scalar

VARIABLE, MEMORY, BOUND = "variable", "memory", "bound"
_REMEDIES = {
    VARIABLE: "give the variable a first value of type {given}",
    MEMORY: "declare it with sg.{given}",
    BOUND: "`//` divides integers to an integer",
}


def check(values: Iterable[Scalar], types: Iterable[DType], what: str, kind: str) -> None:
    """Warn, once for each source location, if a scalar of ``values`` loses something as the type that ``types`` has for it.

    ``what``: how the message calls what takes the values; ``kind``: VARIABLE, MEMORY or BOUND."""
    for value, t in zip(values, types):
        loss = _loss(value, t)
        if loss:
            _warn(value, t, loss, what, kind)


def _loss(value: Scalar, t: DType) -> str:
    """Return what of ``value`` is lost as a ``t``; empty if nothing is."""
    known = scalar.known(value)
    if scalar.is_number(known):
        return _loss_of_constant(known, t)
    s = scalar.dtype_of(value)
    if s is t or s.kind == "bool":
        return ""
    if t.kind == "bool":
        return "of which it keeps only whether it is 0"
    if s.is_float and not t.is_float:
        return "whose fraction is lost"
    if s.is_float:
        return "which is rounded" if t.bits < s.bits else ""
    return "of which it keeps the low bits only" if t.is_int and t.bits < s.bits else ""


def _loss_of_constant(number: Number, t: DType) -> str:
    """Return what `_loss` does, for a constant. A literal takes on any type of floats, rounded."""
    if t.is_float or isinstance(number, bool):
        return ""
    if t.kind == "bool":
        return "" if number in (0, 1) else "of which it keeps only whether it is 0"
    number = number.item() if isinstance(number, np.generic) else number
    if not t.min <= number <= t.max:  # of NaN too
        return "which does not fit"
    return "" if number == int(number) else "whose fraction is lost"


def _warn(value: Scalar, t: DType, loss: str, what: str, kind: str) -> None:
    trace = scalar.trace_of()
    loc, s = trace.b.loc, scalar.dtype_of(value)
    known = scalar.known(value)
    given = repr(known) if scalar.is_number(known) else f"a value of type {s}"
    hint = f"{_REMEDIES[kind].format(given=s)}, or say that this is meant: `sg.cast(value, sg.{t})`"
    where = None if loc is None else (loc.file, loc.line, loc.col)
    trace.warn((where, s, t), render(f"{what} is of type {t} and takes {given}, {loss}", loc, hint))
