"""Choices that users name when they make data."""

from __future__ import annotations

import enum


class Layout(enum.Enum):
    """Where the parts of an element lie: AOS together, SOA each in an array of its own."""

    AOS = 1
    SOA = 2


class Backend(enum.Enum):
    """What a tensor is made of: FIELD (fixed while compiling) or NDARRAY (an argument of kernels)."""

    FIELD = 0
    NDARRAY = 1
