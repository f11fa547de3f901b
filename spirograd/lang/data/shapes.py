"""Normalisation of shapes and indices that users pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from spirograd.base.errors import SpirogradBoundsError, SpirogradRuntimeError, SpirogradTypeError
from spirograd.base.wording import counted


def extents_of(shape: object, least: int, rule: str) -> tuple[int, ...]:
    """Return ``shape``, an integer or a sequence of integers, as a tuple.

    Raises SpirogradRuntimeError, which begins with ``rule``, unless all are integers from ``least`` on.
    """
    if isinstance(shape, np.ndarray) and shape.ndim == 0:
        shape = shape.item()
    extents = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, str) else (shape,)
    for axis, extent in enumerate(extents):
        if not isinstance(extent, (int, np.integer)) or extent < least:
            raise SpirogradRuntimeError(f"{rule}, got {extent!r} on axis {axis}")
    return tuple([int(extent) for extent in extents])


def extents_along(kind: str, axes: Sequence[int], shape: object) -> tuple[int, ...]:
    """Return the extents of a node of ``kind``, one for each of ``axes``; a single number counts for all."""
    extents = extents_of(shape, 1, "every extent of a field must be a positive integer")
    if len(extents) == 1:
        extents *= len(axes)
    if len(extents) != len(axes):
        given = f"{counted(len(axes), 'axis', 'axes')} and {counted(len(extents), 'extent')}"
        raise SpirogradTypeError(f"`{kind}` takes one extent for each axis, got {given}")
    return extents


def shape_tuple(shape: object) -> tuple[int, ...]:
    """Return a shape of a field as a tuple; raise SpirogradRuntimeError unless all extents are positive."""
    return extents_of(shape, 1, "every extent of a field must be a positive integer")


def element_index(key: object, shape: tuple[int, ...], origin: tuple[int, ...], what: str) -> tuple[int, ...]:
    """Return the index of one element, counted from 0, from the index expression in Python scope."""
    parts: list[object] = []
    for k in key if isinstance(key, tuple) else (key,):
        parts += k.entries if hasattr(k, "entries") else [] if k is None else [k]
    if any(isinstance(k, slice) for k in parts):
        raise SpirogradTypeError(f"{what} cannot be sliced", None, "`.to_numpy()` gives an array that can")
    if len(parts) != len(shape):
        hint = "write `f[None]`" if not shape else ""
        given = counted(len(parts), "index", "indices")
        raise SpirogradBoundsError(f"{what} has {counted(len(shape), 'axis', 'axes')}, but is indexed with {given}: {key!r}", None, hint)
    out = []
    for axis, (k, extent) in enumerate(zip(parts, shape)):
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
            raise SpirogradTypeError(f"an index of {what} is an integer, got {k!r}")
        low = origin[axis] if origin else 0
        if not low <= k < low + extent:
            raise SpirogradBoundsError(f"index {k} is out of range on axis {axis} of {what}: {low} to {low + extent - 1} are valid")
        out.append(int(k) - low)
    return tuple(out)
