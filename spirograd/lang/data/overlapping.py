"""Overlaps of elements of arrays in memory, by addresses, shapes and strides."""

from __future__ import annotations

import functools
import math

import numpy as np

from spirograd.base.arrays import Array

_MOST_WORK = 100_000  # Steps of NumPy's search, about a millisecond.


def have_common_memory(a: Array, b: Array) -> bool:
    """Return whether two NumPy arrays have bytes in common; True if the search takes too long."""
    try:
        return np.shares_memory(a, b, max_work=_MOST_WORK)  # type: ignore[arg-type]  # NumPy's types know two limits only
    except RuntimeError:  # NumPy gave up.
        return True


@functools.lru_cache(1024)
def overlaps_itself(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> bool:
    """Return whether two elements of an array have bytes in common. ``strides`` and ``size`` of an element have the same unit.

    The result is cached by layout, because programs launch repeatedly with the same ones. Where each stride is at least the length that the
    axes with smaller strides span, no elements overlap. Elements of other layouts are enumerated if the range has room for all of them.
    """
    axes = sorted([(abs(stride), extent) for extent, stride in zip(shape, strides) if extent > 1])
    if 0 in shape:
        return False
    span, nested = size, True
    for stride, extent in axes:
        nested = nested and stride >= span
        span += stride * (extent - 1)
    if nested:
        return False
    if span < size * math.prod(shape):
        return True
    offsets = np.zeros(1, np.int64)
    for stride, extent in axes:
        offsets = np.add.outer(offsets, stride * np.arange(extent, dtype=np.int64)).reshape(-1)
    return bool(np.diff(np.sort(offsets)).min() < size)
