"""Inclusive and exclusive scans of any associative operation, and reductions, for users."""

from __future__ import annotations

import numpy as np

from spirograd.algorithms.checks_and_scratch import Array, check_apart, checked
from spirograd.algorithms.recorded import need_gradient, refuse, tape
from spirograd.algorithms.scan_gradients import REDUCTIONS, SCANS, Adjoint, clear
from spirograd.algorithms.scan_passes import NAMED, reduced, scan
from spirograd.base.errors import SpirogradTypeError, SpirogradValueError
from spirograd.base.protocols import Scalar
from spirograd.ir.ops import identity
from spirograd.lang import scalar
from spirograd.lang.data.ndarray import ScalarNdarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.scalar import describe


def _scan_of_user(x: Array, out: Array, n: int, op: object, start: object, name: str) -> None:
    """Run a scan that tapes differentiate."""
    combine, recording = _operation(op), tape()
    if recording is None:
        scan(x, out, n, combine, start)
        return
    adjoint: Adjoint | None = None
    if x.has_grad():
        adjoint = _adjoint(SCANS, op, name)(x, n, start is not None)
        need_gradient(out, "out", name)

    def run() -> None:
        if adjoint is not None:
            adjoint.before(x)
        scan(x, out, n, combine, start)
        if adjoint is not None:
            adjoint.after(out)

    def reverse() -> None:
        if adjoint is not None:
            adjoint.send(out.grad, x.grad)
        elif out.has_grad():
            clear(out.grad, n)

    recording.with_reverse(run, reverse, (x,))


def _adjoint(table: dict[str, type[Adjoint]], op: object, name: str) -> type[Adjoint]:
    if not isinstance(op, str):
        refuse(name, "by a function has no derivative", f"use one of the operations {', '.join(table)}")
    return table[op]


def _operation(op: object) -> object:
    if isinstance(op, str):
        if op not in NAMED:
            raise SpirogradValueError(f"there is no operation {op!r}: it is one of {', '.join(NAMED)}, or an associative `@sg.func`")
        return NAMED[op]
    return op


def inclusive_scan(x: Array, out: Array | None = None, op: object = "add") -> None:
    """Set ``out[i]`` to ``x[0]`` to ``x[i]`` combined by ``op``: "add", "mul", "min", "max", or an associative `sg.func` of two values.

    One-dimensional fields, ndarrays or views of one type; ``out``, which has at least as many elements, may be ``x``, and is if it is
    None. Tapes differentiate operations with names; of "min" and "max" the first of equal elements gets the gradient, and products may have
    zeros. "min" and "max" skip NaN, as `sg.min` does. For functions of memory with gradients tapes raise SpirogradUnsupportedError. Raises
    SpirogradTypeError and SpirogradValueError for arrays that do not fit or overlap, and for other names of operations.
    """
    n = checked(x, "x")
    target = x if out is None else out
    checked(target, "out", n, x.dtype)
    check_apart(n, in_place=True, x=x, out=target)
    _scan_of_user(x, target, n, op, None, "inclusive_scan")


def exclusive_scan(x: Array, out: Array | None = None, op: object = "add", start: object = None) -> None:
    """Set ``out[i]`` to ``x[0]`` to ``x[i - 1]`` combined by ``op``, and ``out[0]`` to ``start``, the identity of ``op``.

    ``start`` may be omitted for operations with names. Raises SpirogradValueError if it is missing for a function, or if it does not fit
    the type of the elements. Kernels are compiled for each value of it. Otherwise as `inclusive_scan`.
    """
    n = checked(x, "x")
    target = x if out is None else out
    checked(target, "out", n, x.dtype)
    check_apart(n, in_place=True, x=x, out=target)
    if start is None:
        if not isinstance(op, str):
            raise SpirogradValueError("an exclusive scan by a function needs the identity of that function: pass it as `start`")
        _operation(op)
        start = identity(op, x.dtype)
    elif x.dtype.is_int and scalar.is_number(start) and not (x.dtype.min <= start <= x.dtype.max and start == int(start)):
        raise SpirogradValueError(f"`start`: {start!r} is no {x.dtype}, the type of the elements")
    _scan_of_user(x, target, n, op, start, "exclusive_scan")


def reduce(x: Array, op: object = "add", out: Array | None = None) -> Scalar | None:
    """Combine all elements of ``x``, a one-dimensional field, ndarray or view, by ``op``, as in `inclusive_scan`. Returns a number, for
    which Python waits, or None if ``out`` is given, a field or ndarray of one element.

    Tapes differentiate operations with names, as in `inclusive_scan`, if ``out`` is given; a returned number has no gradient. Without
    elements, the result is the identity. Raises SpirogradValueError for a function, whose identity is unknown, without elements, and
    SpirogradTypeError for another ``out``.
    """
    n, combine = checked(x, "x"), _operation(op)
    if out is not None and (not isinstance(out, (ScalarField, ScalarNdarray)) or out.shape not in ((), (1,)) or out.dtype is not x.dtype):
        raise SpirogradTypeError(f"`out`: expected a field or ndarray of one {x.dtype}, got {describe(out)}")
    recording = tape()
    if recording is None:
        return reduced(x, n, op, combine, out)
    adjoint: Adjoint | None = None
    if out is not None and x.has_grad():
        adjoint = _adjoint(REDUCTIONS, op, "reduce")(x, n, False)
        need_gradient(out, "out", "reduce")

    def run() -> Scalar | None:
        if adjoint is not None:
            adjoint.before(x)
        number = reduced(x, n, op, combine, out)
        if adjoint is not None and out is not None:
            adjoint.after(out)
        return number

    def reverse() -> None:
        if out is None:
            return
        if adjoint is not None:
            adjoint.send(out.grad, x.grad)
        if out.has_grad():
            out.grad.fill(0)

    return recording.with_reverse(run, reverse, () if out is None else (x,))


class PrefixSumExecutor:
    """Inclusive prefix sums in place, of arrays of ``length`` elements, as in the Taichi family, but for every type and back end."""

    def __init__(self, length: int) -> None:
        if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < 0:
            raise SpirogradValueError(f"`PrefixSumExecutor` takes the length of its arrays, an integer from 0 on, got {describe(length)}")
        self.length = int(length)

    def run(self, input_arr: Array) -> None:
        """Replace each element of ``input_arr`` by the sum of itself and those before it. Raises SpirogradValueError if it has fewer than
        ``length`` elements."""
        n = checked(input_arr, "input_arr", self.length)
        _scan_of_user(input_arr, input_arr, min(n, self.length), "add", None, "PrefixSumExecutor.run")
