"""The order of the axes of arrays in memory, and in programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from spirograd.base.constraints import Axis

T = TypeVar("T")


def in_program_order(layout: Sequence[Axis], of_axes: Sequence[T]) -> list[T]:
    """Return what there is for each index of an access to an array in the order in which the program has the axes. ``layout``: see
    `ArrayArg`."""
    order = sorted(range(len(layout)), key=layout.__getitem__)
    return [*[of_axes[k] for k in order], *of_axes[len(order) :]]
