"""Normalisation of shapes that users pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from spirograd.base.errors import SpirogradRuntimeError


def extents_of(shape: Any, least: int, rule: str) -> tuple[int, ...]:
    """``shape``, an integer or a sequence of integers, as a tuple. Raises SpirogradRuntimeError, which begins with ``rule``, unless all are
    integers from ``least`` on."""
    if isinstance(shape, np.ndarray) and shape.ndim == 0:
        shape = shape.item()
    extents = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, str) else (shape,)
    for axis, extent in enumerate(extents):
        if not isinstance(extent, (int, np.integer)) or extent < least:
            raise SpirogradRuntimeError(f"{rule}, got {extent!r} on axis {axis}")
    return tuple([int(extent) for extent in extents])
