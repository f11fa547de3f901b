"""The layout of fields and arrays in their allocations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass, replace
from spirograd.ir.nodes import Layout


@dataclass(frozen=True, slots=True)
class Block:
    """A block of elements at regular strides: ``dims`` and ``strides`` (bytes), within ``span`` bytes from byte ``offset`` on.

    ``part``: the number of the component, None for all.
    """

    offset: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    span: int
    part: int | None = None

    @property
    def first(self) -> int:
        """The byte at which the first element begins: with negative strides, it is not the lowest one."""
        return self.offset - sum((d - 1) * s for d, s in zip(self.dims, self.strides) if s < 0)


@dataclass(frozen=True, slots=True)
class HostView:
    """The layout of a field or array of ``shape`` + ``element_shape`` in an allocation. ``part``: the name of its part of the
    allocation."""

    dtype: DType
    shape: tuple[int, ...]
    element_shape: tuple[int, ...]
    blocks: tuple[Block, ...]
    part: str = ""

    @property
    def full_shape(self) -> tuple[int, ...]:
        return self.shape + self.element_shape

    @property
    def count(self) -> int:
        return math.prod(self.full_shape)


def _block(offset: int, dims: Sequence[int], strides: Sequence[int], size: int, part: int | None) -> Block:
    span = sum((d - 1) * s for d, s in zip(dims, strides)) + size
    return Block(offset, tuple(dims), tuple(strides), span, part)


def view_of(dtype: DType, shape: tuple[int, ...], element_shape: tuple[int, ...], layout: Layout, part: str = "") -> HostView:
    """Return the host's view of memory laid out by ``layout``."""
    dims: list[int] = []
    strides: list[int] = []
    for axis, extent in enumerate(shape):
        left = extent
        for term in sorted((t for t in layout.terms if t.axis == axis), key=lambda t: -t.div):
            dims.append(left // term.div)
            strides.append(term.stride)
            left = term.div
    size = dtype.size
    parts = layout.components
    steps = {b - a for a, b in itertools.pairwise(parts)}
    step = steps.pop() if len(steps) == 1 else 0
    one = _block(0, dims, strides, size, None)
    if len(parts) == 1:
        blocks = [_block(parts[0], dims, strides, size, None)]
    elif not steps and 0 < step <= max(one.span, size * len(parts)):
        blocks = [_block(parts[0], [*dims, len(parts)], [*strides, step], size, None)]
    else:
        blocks = [_block(p, dims, strides, size, k) for k, p in enumerate(parts)]
    return HostView(dtype, shape, element_shape, tuple(blocks), part)


def dense_view(dtype: DType, shape: tuple[int, ...], element_shape: tuple[int, ...] = ()) -> HostView:
    """Return the view of a dense row-major array."""
    count = math.prod(shape + element_shape)
    return HostView(dtype, shape, element_shape, (Block(0, (count,), (dtype.size,), count * dtype.size),))


def from_first(view: HostView, first: int) -> HostView:
    """Return the elements from index ``first`` of the first axis on, which is the slowest one of each block."""
    count = max(view.shape[0] - first, 0)

    def rest(block: Block) -> Block:
        dims, stride = (count, *block.dims[1:]), block.strides[0]
        assert block.dims[0] == view.shape[0], "the first axis is one dimension of a block"
        return Block(block.offset + first * stride, dims, block.strides, block.span - (block.dims[0] - count) * stride, block.part)

    return replace(view, shape=(count, *view.shape[1:]), blocks=tuple([rest(block) for block in view.blocks]))


def is_dense(block: Block, size: int) -> bool:
    """Return whether the block fills its span, so that a write need not preserve any bytes in between."""
    return block.span == math.prod(block.dims) * size


def is_row_major(block: Block, size: int) -> bool:
    """Return whether the memory of the block is a contiguous row-major array."""
    for extent, stride in zip(reversed(block.dims), reversed(block.strides)):
        if stride != size:
            return False
        size *= extent
    return True


def same_bytes(a: HostView, b: HostView) -> bool:
    """Return whether contents can be copied as bytes from one to the other, block by block."""
    if a.dtype is not b.dtype or len(a.blocks) != len(b.blocks):
        return False
    size = a.dtype.size
    if len(a.blocks) == 1 and is_row_major(a.blocks[0], size) and is_row_major(b.blocks[0], size):
        return True
    return all(x.dims == y.dims and x.strides == y.strides and is_dense(x, size) for x, y in zip(a.blocks, b.blocks))
