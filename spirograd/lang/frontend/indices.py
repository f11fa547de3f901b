"""Indices of memory, and of vectors and matrices, as integers of the IR."""

from __future__ import annotations

from spirograd.base.dtypes import DType, i32, i64
from spirograd.base.errors import SpirogradIndexError, render
from spirograd.base.wording import counted
from spirograd.ir.nodes import Op
from spirograd.lang import scalar
from spirograd.lang.indexing import index_within, refuse_index, report_index
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, as_value, describe, type_error


def index_values(
    key: object, ndim: int, name: str, shape: tuple[int, ...] | None = None, origin: tuple[int, ...] = (), fixed: bool = False
) -> list[Op]:
    """Return the indices of an access as IR integers: ``None`` for 0-d, integers, index vectors, tuples and lists of them. ``shape``: if it
    is known, constants are checked. ``fixed``: the memory is declared in the code of the kernel, with this shape."""
    parts = flat_index(key)
    if len(parts) != ndim:
        trace = scalar.trace_of()
        hint = f"write `{name}[None]`" if ndim == 0 else f"write `{name}[{', '.join('ijklmnop'[:ndim])}]`"
        message = f"`{name}` has {counted(ndim, 'axis', 'axes')}, but is indexed with {counted(len(parts), 'index', 'indices')}"
        raise SpirogradIndexError(message, trace.b.loc, hint)
    parts = [scalar.known(k) for k in parts]
    for axis, k in enumerate(parts):
        if shape is not None and scalar.is_number(k):
            low = origin[axis] if origin else 0
            if not low <= int(k) < low + shape[axis]:
                message = f"index {k} is out of range on axis {axis} of `{name}`, which has indices {low} to {low + shape[axis] - 1}"
                refuse_index(message, "" if k >= 0 else "negative indices do not count from the end in kernels")
                if fixed:  # modules have no such access, even where it is not made
                    report_index(message)
                    parts[axis] = low
        elif shape is not None and isinstance(k, Value):
            _warn_of_loop(k, axis, name, origin[axis] if origin else 0, shape[axis])
    return [integer_index(k, name) for k in parts]


def _warn_of_loop(k: Value, axis: int, name: str, low: int, extent: int) -> None:
    """Warn of an access that each iteration of a loop over a field makes with an index of the loop, if some are out of range."""
    trace = scalar.trace_of()
    field, first, last = trace.loop_indices.get(k.op, ("", low, low))
    if trace.guards or low <= first <= last < low + extent:
        return
    message = (
        f"the loop over `{field}` goes from index {first} to {last}, and `{name}` has indices {low} to {low + extent - 1} on axis {axis}"
    )
    hint = f"a loop over a field gives the indices of its elements; the elements are `{field}[i]`"
    trace.warn(("loop index", str(trace.b.loc), message), render(message, trace.b.loc, hint))


def flat_index(key: object) -> list[object]:
    """Return the parts of an index, as they are."""
    if isinstance(key, Matrix):
        return list(key.entries)
    if isinstance(key, (tuple, list)):
        return [part for k in key for part in flat_index(k)]
    return [] if key is None else [key]


def integer_index(key: object, name: str) -> Op:
    """Return one index as i32 or i64."""
    if isinstance(key, slice):
        raise type_error(f"`{name}` cannot be sliced in a kernel", "loop over the indices; slices work on vectors and matrices")
    if not scalar.is_scalar(key):
        raise type_error(f"{describe(key)} is not an index of `{name}`")
    value = as_value(key)
    t: DType = value.dtype
    if t.is_float:
        hint = "`//` divides integers to an integer" if scalar.is_number(key) else "cast it: `sg.cast(x, sg.i32)` or `int(x)`"
        raise type_error(f"an index of `{name}` is an integer, not {describe(key)}", hint)
    wide = t.bits == 64 or t.name == "u32"
    return scalar.cast(value, i64 if wide else i32).op


def component_index(key: object, extent: int) -> Op:
    """Return an index into a vector or matrix of ``extent`` on that axis; constants are checked and may count from the end."""
    key = scalar.known(key)
    if scalar.is_number(key):
        message = f"index {key} is out of range for a vector of {extent}"
        return scalar.builder().const(index_within(int(key), extent, message, f"valid are {-extent} to {extent - 1}"), i32)
    return integer_index(key, "vector")
