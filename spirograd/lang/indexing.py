"""Indices, swizzles and names of shapes of vectors and matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard, Union

import numpy as np

from spirograd.base.errors import SpirogradIndexError, render
from spirograd.base.loc import Loc
from spirograd.lang import scalar
from spirograd.lang.context import current_trace
from spirograd.lang.scalar import Value, type_error

SWIZZLES = ("xyzw", "rgba", "stpq")
Shape = tuple[int, ...]
Position = Union[int, Value]  # of an entry of a vector or matrix


def swizzle_of(name: str) -> tuple[int, ...] | None:
    """Return the indices that a swizzle such as ``"zyx"`` names, or None if the name is none."""
    if 0 < len(name) <= 4:
        for letters in SWIZZLES:
            if all(c in letters for c in name):
                return tuple(letters.index(c) for c in name)
    return None


def shape_name(shape: Shape) -> str:
    """Return the name of a shape in messages."""
    return f"vector of {shape[0]}" if len(shape) == 1 else f"{shape[0]}x{shape[1]} matrix"


def location() -> Loc | None:
    """Return the place being traced, for errors; None in Python scope."""
    trace = current_trace()
    return trace.b.loc if trace else None


def refuse_index(message: str, hint: str) -> None:
    """Raise SpirogradIndexError for a constant index out of range, or warn if a run-time condition may prevent the access."""
    trace = current_trace()
    if trace is None or not trace.guards:
        raise SpirogradIndexError(message, location(), hint)
    hint = "`debug=True` reports accesses whose condition holds; a condition that is known while compiling, as in `sg.static`, removes them"
    text = f"{message}; the access is wrong wherever the run-time condition around it holds"
    trace.warn(("index", str(trace.b.loc), message), render(text, trace.b.loc, hint))


def index_within(k: int, extent: int, message: str, hint: str) -> int:
    """Return a constant index of memory or values whose size is fixed in the code, as a number from 0.

    If it is out of range, `refuse_index` is called; where that does not raise, another index is returned, behind a check that fails.
    """
    at = k + extent if k < 0 else k
    if 0 <= at < extent:
        return at
    refuse_index(message, hint)
    report_index(message)
    return 0


def report_index(message: str) -> None:
    """Report an index that is out of range, with checks, wherever the traced code runs."""
    if scalar.trace_of().options.check_bounds:
        scalar.emit_check("bounds", scalar.constant(False), message)


def index_value(p: object) -> Value:
    """Return a constant or run-time index as an integer value."""
    value = scalar.as_value(p, "index")
    scalar.need_integers("[]", value)
    return value


def flat_position(i: Position, columns: int, j: Position) -> Position:
    """Return the number of an entry of a matrix, row by row."""
    if isinstance(i, Value):
        return scalar.add(scalar.mul(i, columns), j)
    return scalar.add(i * columns, j) if isinstance(j, Value) else i * columns + j


def are_constant(positions: Sequence[Position]) -> TypeGuard[Sequence[int]]:
    """Return whether all positions are known while compiling."""
    return not any(isinstance(p, Value) for p in positions)


def axis_positions(i: object, extent: int, shape: Shape) -> list[Position]:
    """Return the positions that one index names along an axis."""
    if isinstance(i, slice):
        if any(isinstance(s, Value) for s in (i.start, i.stop, i.step)):
            raise type_error("the bounds of a slice of a vector must be constants", "the shape of the result must be known while compiling")
        positions: list[Position] = [*range(extent)[i]]
        if not positions:
            raise SpirogradIndexError(f"this slice of a {shape_name(shape)} is empty", location(), f"indices are 0 to {extent - 1}")
        return positions
    i = scalar.known(i)
    if isinstance(i, Value):
        scalar.need_integers("[]", i)
        return [i]
    if not isinstance(i, (int, np.integer)):
        raise type_error(f"an index of a {shape_name(shape)} is an integer or a slice, not {scalar.describe(i)}")
    return [index_within(int(i), extent, f"index {i} is out of range for a {shape_name(shape)}", f"valid are {-extent} to {extent - 1}")]
