"""Enumerations of the data API: memory layouts, and the storage of tensors."""

from __future__ import annotations

import enum


class Layout(enum.Enum):
    """The memory layout of fields with several scalars per element: AOS stores the scalars of an element together, SOA stores an array for
    each."""

    AOS = 1
    SOA = 2


class Backend(enum.IntEnum):
    """The storage of a tensor: FIELD (fixed while compiling) or NDARRAY (an argument of kernels)."""

    FIELD = 0
    NDARRAY = 1
