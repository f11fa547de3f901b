"""Enumerations of the data API: memory layouts, and what tensors are made of."""

from __future__ import annotations

import enum


class Layout(enum.Enum):
    """The memory layout of fields with several scalars per element: AOS puts those of an element together, SOA makes an array of each."""

    AOS = 1
    SOA = 2


class Backend(enum.IntEnum):
    """What a tensor is made of: FIELD (fixed while compiling) or NDARRAY (an argument of kernels)."""

    FIELD = 0
    NDARRAY = 1
