"""Address computation for trees of nodes: cell sizes, offsets, and the terms of `ir.nodes.Layout`.

A node's cell holds its children one after the other, each aligned to the largest scalar inside, and is padded so that the cells that follow
are aligned too. Sizes of scalars are powers of two, so every stride and offset is a multiple of the size of the scalars it reaches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from spirograd.base.dtypes import DType, storage
from spirograd.ir.nodes import Term

_ROOT_ALIGNMENT = 64  # Bytes: arrays directly below the root start at cache lines, for the sake of vector loads.

Digit = tuple[int, int, int, int]  # axis, div, mod, mul: the axis' index gets ((n // div) % mod) * mul; mod 0: no modulo.


class Extended(Protocol):
    """A node with the attributes that indices need."""

    @property
    def axes(self) -> tuple[int, ...]: ...

    @property
    def extents(self) -> tuple[int, ...]: ...

    @property
    def cell_size(self) -> int: ...


class LayoutNode(Protocol):
    """A node with the attributes that layout needs: a dense level (``axes``, ``extents``) or a place (``dtype``)."""

    axes: tuple[int, ...]
    extents: tuple[int, ...]
    dtype: DType | None
    offset: int
    cell_size: int

    @property
    def children(self) -> Sequence[LayoutNode]: ...


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def assign_offsets(node: LayoutNode, is_root: bool = False) -> tuple[int, int]:
    """Set ``offset`` (bytes within the parent's cell) and ``cell_size`` of everything below ``node``; return its (bytes, alignment)."""
    if node.dtype is not None:
        node.cell_size = storage(node.dtype).size
        return node.cell_size, node.cell_size
    at, alignment = 0, 1
    for child in node.children:
        size, child_alignment = assign_offsets(child)
        at = _align(at, _ROOT_ALIGNMENT if is_root and size >= _ROOT_ALIGNMENT else child_alignment)
        child.offset = at
        at += size
        alignment = max(alignment, child_alignment)
    node.cell_size = _align(at, alignment)
    return node.cell_size * math.prod(node.extents), alignment


def _levels(path: Sequence[Extended]) -> list[tuple[int, int, int, int]]:
    """Return (axis, extent, stride in bytes, extents of the same axis further in) of every dense axis of a path from the root, outermost
    first."""
    out = []
    for depth, node in enumerate(path):
        for k, axis in enumerate(node.axes):
            stride = node.cell_size * math.prod(node.extents[k + 1 :])
            inner = math.prod(e for below in path[depth + 1 :] for a, e in zip(below.axes, below.extents) if a == axis)
            out.append((axis, node.extents[k], stride, inner))
    return out


def terms_of(path: Sequence[Extended], axis_numbers: Sequence[int]) -> tuple[Term, ...]:
    """Return the address terms of the end of ``path`` (root first), with tree axes renumbered to positions in ``axis_numbers``."""
    out: list[Term] = []
    outermost: set[int] = set()
    for axis, extent, stride, inner in _levels(path):
        if extent == 1:
            continue
        position = axis_numbers.index(axis)
        term = Term(position, inner, extent if axis in outermost else 0, stride)
        outermost.add(axis)
        before = next((t for t in out if t.axis == position and t.div == inner * extent and t.stride == stride * extent), None)
        if before is not None:  # The two levels are one contiguous run of this axis.
            out.remove(before)
            term = Term(position, inner, before.mod * extent, stride)
        out.append(term)
    return tuple(out)


def decode_of(path: Sequence[Extended], axis_numbers: Sequence[int]) -> list[Digit]:
    """Return the digits, slowest first, that turn a loop counter into indices such that neighbouring counts touch neighbouring memory."""
    levels = [(axis_numbers.index(axis), extent, inner) for axis, extent, _, inner in _levels(path) if extent > 1]
    merged: list[tuple[int, int, int]] = []
    for axis, extent, inner in levels:
        if merged and merged[-1][0] == axis and merged[-1][2] == inner * extent:
            extent *= merged.pop()[1]
        merged.append((axis, extent, inner))
    out: list[Digit] = []
    div = 1
    for n, (axis, extent, inner) in reversed(list(enumerate(merged))):
        out.append((axis, div, extent if n else 0, inner))
        div *= extent
    return out[::-1]
