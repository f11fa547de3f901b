"""Transfers between NumPy arrays and device memory: one copy for each contiguous range, strided views instead of loops."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.records import replace
from spirograd.lang import context
from spirograd.lang.data import strided
from spirograd.lang.data.views import Block, HostView, is_dense, is_row_major, same_bytes

if TYPE_CHECKING:
    import torch

    from spirograd.base.protocols import Allocation

Array = np.ndarray[Any, Any]


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of a contiguous array."""
    return memoryview(array.view(np.uint8).data)


def read(allocation: Allocation, view: HostView, rows: Array | None = None) -> Array:
    """Return a new array with the contents, after waiting for launches. Raises errors that kernels have reported.

    ``rows``: numbers of entries of the first axis to return in its place; by default all.
    """
    if view.count == 0:
        return np.empty(view.full_shape, view.dtype.np)
    if rows is not None:
        return _rows(allocation, view, rows)
    context.before_read(allocation)
    places = _in_place(allocation, view)
    if places is not None:
        contents: Array = np.stack([place.reshape(-1) for place in places], -1) if len(places) > 1 else places[0].copy()
        return contents.reshape(view.full_shape)
    if len(view.blocks) == 1:
        gathered: Array = _read_block(allocation, view.blocks[0], view.dtype).reshape(view.full_shape)
        return gathered
    out = np.empty((math.prod(view.shape), len(view.blocks)), view.dtype.np)
    for k, block in enumerate(view.blocks):
        out[:, k] = _read_block(allocation, block, view.dtype).reshape(-1)
    return out.reshape(view.full_shape)


def _rows(allocation: Allocation, view: HostView, rows: Array) -> Array:
    context.before_read(allocation)
    host = allocation.host_bytes()
    if host is None:
        gathered: Array = read(allocation, view)[rows]
        return gathered
    places = [np.ndarray(b.dims, view.dtype.np, host, b.first, b.strides)[rows] for b in view.blocks]
    shape = (*rows.shape, *view.full_shape[1:])
    return places[0].reshape(shape) if len(places) == 1 else np.stack([p.reshape(-1) for p in places], -1).reshape(shape)


def _in_place(allocation: Allocation, view: HostView) -> list[Array] | None:
    """Return the elements in the memory itself, an array for each block. Waits for launches.

    Returns None for dense memory, which is copied as bytes, and where the host cannot address the memory.
    """
    if all(is_dense(block, view.dtype.size) for block in view.blocks):
        return None
    host = allocation.host_bytes()
    if host is None:
        return None
    return [np.ndarray(b.dims, view.dtype.np, host, b.first, b.strides) for b in view.blocks]


def _read_block(allocation: Allocation, block: Block, dtype: DType) -> Array:
    buffer = np.empty(block.span, np.uint8)
    allocation.read_into(block.offset, bytes_of(buffer))
    out: Array = np.ndarray(block.dims, dtype.np, buffer, block.first - block.offset, block.strides)
    return out


def write(allocation: Allocation, view: HostView, data: Array) -> None:
    """Set the contents from an array that broadcasts to ``full_shape``; converts the type as kernels do."""
    if view.count == 0:
        return
    data = view.dtype.array(np.broadcast_to(data, view.full_shape))
    places = _in_place(allocation, view)
    if places is not None:
        columns = data.reshape(-1, len(places))
        for k, place in enumerate(places):
            place[...] = columns[:, k].reshape(place.shape)
        allocation.wrote(view.part)
        return
    if len(view.blocks) == 1:
        _write_block(allocation, view.blocks[0], view, data)
        return
    rows = data.reshape(-1, len(view.blocks))
    for k, block in enumerate(view.blocks):
        _write_block(allocation, block, view, rows[:, k])


def _write_block(allocation: Allocation, block: Block, view: HostView, data: Array) -> None:
    dtype = view.dtype
    if is_row_major(block, dtype.size) and data.flags.c_contiguous:
        allocation.write(block.offset, bytes_of(data.reshape(-1)), view.part)
        return
    buffer = np.empty(block.span, np.uint8)
    if not is_dense(block, dtype.size):
        allocation.read_into(block.offset, bytes_of(buffer))
    target: Array = np.ndarray(block.dims, dtype.np, buffer, block.first - block.offset, block.strides)
    target[...] = data.reshape(block.dims)
    allocation.write(block.offset, bytes_of(buffer), view.part)  # Bytes between the elements keep their values.


def fill(allocation: Allocation, view: HostView, value: object) -> None:
    """Set every element to ``value``, a scalar or an array of the element shape.

    The device fills if whole words repeat.
    """
    if 0 in view.shape:
        return
    if type(value) in (int, float):
        word = _word_of(view.dtype, type(value) is float, repr(value))
    else:
        word = _repeated_word(np.broadcast_to(view.dtype.array(value), view.element_shape))
    if word is not None and all(_fillable(b, view.dtype.size) for b in view.blocks):
        for block in view.blocks:
            allocation.fill(block.offset, block.span, word, view.part)
        return
    element = np.broadcast_to(view.dtype.array(value), view.element_shape)
    if not strided.fill(allocation, view, element):
        write(allocation, view, element)


def _fillable(block: Block, size: int) -> bool:
    return is_dense(block, size) and block.offset % 4 == 0 and block.span % 4 == 0


@functools.lru_cache(256)
def _word_of(dtype: DType, is_float: bool, text: str) -> int | None:
    """Return `_repeated_word` of a number. A tape fills each gradient with the same few; -0.0, which equals 0.0, has another text."""
    return _repeated_word(dtype.array(float(text) if is_float else int(text)))


def _repeated_word(element: Array) -> int | None:
    """Return the 32-bit pattern that the element repeats, or None."""
    pattern = np.tile(element.reshape(-1), 4).view(np.uint32)
    return int(pattern[0]) if bool((pattern == pattern[0]).all()) else None


def copy(target: Allocation, target_view: HostView, source: Allocation, source_view: HostView) -> None:
    """Copy the contents, converted as in kernels.

    Views of one array may overlap: the result is as if the source were copied first.
    """
    if target is source and target_view.part == source_view.part and _overlap(target_view, source_view):
        if target_view != source_view:
            copy(target, target_view, *duplicate(source, source_view))
        return
    if same_bytes(target_view, source_view):
        for t, s in zip(target_view.blocks, source_view.blocks):
            if target is not source or t.offset != s.offset:
                target.copy_from(source, t.span, t.offset, s.offset, target_view.part)
        return
    if target_view.count and not strided.copy(target, target_view, source, source_view):
        write(target, target_view, read(source, source_view))


def _overlap(a: HostView, b: HostView) -> bool:
    """Return whether the ranges of two views in one block each overlap. Other views are fields, and no two fields share a byte."""
    if len(a.blocks) != 1 or len(b.blocks) != 1 or not a.count:
        return False
    x, y = a.blocks[0], b.blocks[0]
    return x.offset < y.offset + y.span and y.offset < x.offset + x.span


def duplicate(allocation: Allocation, view: HostView) -> tuple[Allocation, HostView]:
    """Return a copy of the range of a view in one block, in memory of its own, and the same view of the copy."""
    block = view.blocks[0]
    return allocation.duplicate(block.offset, block.span), replace(view, blocks=(replace(block, offset=0),))


def add(target: Allocation, target_view: HostView, source: Allocation, source_view: HostView) -> None:
    """Add the contents of one view to another: floats, in the wider type, in memory that does not overlap."""
    if target_view.count and not strided.add(target, target_view, source, source_view):
        write(target, target_view, read(target, target_view) + read(source, source_view))


def known_equal(a: Allocation, a_view: HostView, b: Allocation, b_view: HostView) -> bool:
    """Return whether the contents are known to be the same bytes, by a comparison on the host. Waits for launches."""
    wholes = [x.device.host_view(x.buffer) for x in (a, b)] if same_bytes(a_view, b_view) else []
    sides = [np.frombuffer(side, np.uint8) for side in wholes if side is not None]
    if len(sides) < 2:
        return False
    a.device.synchronize()
    x, y = sides
    pairs = zip(a_view.blocks, b_view.blocks)
    return all(np.array_equal(_words(x[i.offset : i.offset + i.span]), _words(y[j.offset : j.offset + j.span])) for i, j in pairs)


def _words(octets: Array) -> Array:
    return octets.view(np.uint64) if octets.size % 8 == 0 else octets


class _HostMemory:
    """The memory of an allocation that the host can address, as NumPy takes it; it keeps the allocation alive.

    ``kept``: objects that the closed device keeps alive.
    """

    def __init__(self, allocation: Allocation, host: memoryview, block: Block, dtype: DType) -> None:
        self.allocation = allocation
        self.kept: object = None
        # The device's own address may mean nothing to the host, so take that of the view.
        start = np.frombuffer(host, np.uint8).__array_interface__["data"][0]
        self.__array_interface__ = {
            "version": 3,
            "data": (start + block.first, False),
            "shape": block.dims,
            "strides": block.strides,
            "typestr": dtype.np.str,
        }


def shared(allocation: Allocation, view: HostView) -> Array | None:
    """Return an array over the memory itself, after waiting for launches; None where the host cannot address it or the view is irregular.

    The holder can write at any time, so the part counts as shared from now on; so do other parts that lie in between.
    """
    if len(view.blocks) != 1 or view.count == 0:
        return None
    host = allocation.device.host_view(allocation.buffer)
    if host is None:
        return None
    memory = _HostMemory(allocation, host, view.blocks[0], view.dtype)
    flat = np.asarray(memory)
    out: Array = flat.reshape(view.full_shape)
    if not np.may_share_memory(out, flat):
        return None
    context.before_read(allocation)
    allocation.lend(memory)
    share(allocation, view)
    allocation.device.synchronize()  # Last: sharing may copy the memory.
    return out


def share(allocation: Allocation, view: HostView) -> None:
    """Record that the memory of a view in one block is handed out, and other parts that lie in between."""
    allocation.share(view.part if is_dense(view.blocks[0], view.dtype.size) else "")


def strides_of(view: HostView) -> tuple[int, ...] | None:
    """Return the strides in bytes of an array of ``full_shape`` over the memory itself; None if the memory is irregular."""
    if view.count == 0:
        return np.empty(view.full_shape, view.dtype.np).strides
    if len(view.blocks) != 1:
        return None
    axes: list[tuple[int, int]] = []  # Extents and strides of axes that cannot be merged with the next.
    for extent, stride in zip(view.blocks[0].dims, view.blocks[0].strides):
        if axes and axes[-1][1] == stride * extent:
            axes[-1] = (axes[-1][0] * extent, stride)
        elif extent != 1:
            axes.append((extent, stride))
    left, step = 1, view.dtype.np.itemsize
    strides = []
    for extent in reversed(view.full_shape):
        if left == 1 and extent != 1:
            left, step = axes.pop()
        if left % extent:
            return None
        strides.append(step)
        left, step = left // extent, step * extent
    return tuple(reversed(strides))


def to_torch(array: Array, device: torch.device | str | int | None) -> torch.Tensor:
    """Return a torch tensor with the contents of a fresh array, moved to ``device`` if given. Raises ImportError without torch."""
    import torch

    tensor = torch.from_numpy(array if array.ndim else array.reshape(())) if array.flags.c_contiguous else torch.from_numpy(array.copy())
    return tensor if device is None else tensor.to(device)


def from_torch(tensor: torch.Tensor) -> Array:
    """Return the contents of a torch tensor on the host (detached; a copy if it lives on a device)."""
    out: Array = tensor.detach().cpu().contiguous().numpy()
    return out
