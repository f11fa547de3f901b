"""Whether elements of an array lie in the same memory, by its shape and strides."""

from __future__ import annotations

import functools
import math

import numpy as np


@functools.lru_cache(1024)
def overlaps_itself(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> bool:
    """Whether two elements of an array have bytes in common. ``strides`` and ``size``, of an element, in the same unit.

    The answer is kept by layout, as programs launch with the same ones again. Where each stride is at least the length that the axes with
    smaller strides span, no elements meet. Of other layouts, those with space for all elements are enumerated."""
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
