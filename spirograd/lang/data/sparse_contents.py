"""Python's access to fields below sparse nodes: elements, and whole contents as arrays of the index space."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from spirograd.base.errors import OutOfDeviceMemory
from spirograd.lang.data import numpy_transfer, shadows
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.regions import FIRST, NULL, WORD, CellRegion, Digits, Level, List, Path

if TYPE_CHECKING:
    from spirograd.lang.data.contents import Contents
    from spirograd.lang.data.scalar_field import ScalarField
    from spirograd.lang.scalar import Number

_FEW = 64  # Up to this number of elements are read one by one; otherwise all are read.


def _digits(digits: Digits, index: Sequence[Array]) -> list[Array]:
    return [_digit(part, index) for part in digits.parts]


def _digit(part: tuple[int, int, int], index: Sequence[Array]) -> Array:
    position, div, mod = part
    value = index[position] // div
    return value % mod if mod else value


def _number(level: Level, index: Sequence[Array]) -> Array:
    """Return the number of a cell, row by row; see `Level`."""
    total: Array = np.asarray(0)
    for part, extent in level.number:
        total = total * extent + _digit(part, index)
    return total


def stored_index(path: Path, index: Sequence[int], activate: bool) -> tuple[int, ...]:
    """Return the index of an element in its region: in the null cell if it is inactive, unless it is to be activated."""
    cells = _walk(path, [np.asarray(i) for i in index], activate)
    return tuple([int(i) for i in cells])


def read(path: Path, field: Contents) -> Array:
    """Return the contents, 0 in inactive cells."""
    if field.lies_apart:
        columns = [component.to_numpy() for component in field.component_fields]
        return np.stack(columns, -1).reshape(*field.shape, *field.element_shape)
    blocks = _blocks(path, field.shape)
    starts = np.ogrid[tuple([slice(0, n, block) for n, block in zip(field.shape, blocks)])]
    cells = _cell(path, list(starts), False)
    contents = numpy_transfer.read(field.tree.allocation, field.view, *cells)
    outer = len(starts) if cells else 0
    axes = [_axes_of(path, axis, outer) for axis in range(len(field.shape))]
    ordered = contents.transpose(*itertools.chain(*axes), *range(outer + len(path.digits.parts), contents.ndim))
    whole = ordered.reshape(*[-(-n // block) * block for n, block in zip(field.shape, blocks)], *field.element_shape)
    return np.ascontiguousarray(whole[tuple([slice(n) for n in field.shape])])


def _axes_of(path: Path, axis: int, outer: int) -> list[int]:
    """Return the axes of gathered cells that make up an axis of the field, the slowest first: of the ``outer`` ones, then the digits."""
    digits = [k for k, (position, _, _) in enumerate(path.digits.parts) if position == axis]
    ordered = sorted(digits, key=lambda k: -path.digits.parts[k][1])
    return [*([axis] if outer else []), *[outer + k for k in ordered]]


def _blocks(path: Path, shape: tuple[int, ...]) -> list[int]:
    """Return for each axis how many consecutive indices share a cell, and begin at a multiple of this number."""
    blocks = list(shape)
    for level in path.levels:
        if level.table is not None:
            for axis, div, _ in level.digits.parts:
                blocks[axis] = math.gcd(blocks[axis], div) if blocks[axis] < shape[axis] else div
    return blocks


def write(path: Path, field: Contents, data: Array) -> None:
    """Set the contents; activates every cell."""
    if field.lies_apart:
        for component, column in zip(field.component_fields, np.moveaxis(data.reshape(*field.shape, -1), -1, 0)):
            component.from_numpy(column)
        return
    at = _walk(path, _mesh(field.shape), True)
    view = field.view
    stored = numpy_transfer.read(field.tree.allocation, view)
    stored[tuple(at)] = field.dtype.array(data)
    numpy_transfer.write(field.tree.allocation, view, stored)


def fill(path: Path, field: Contents, value: Number | Array) -> None:
    """Set all elements in active cells, and those of components below no sparse node."""
    if field.lies_apart:
        for component, number in zip(field.component_fields, np.broadcast_to(value, field.element_shape).reshape(-1).tolist()):
            component.fill(number)
        return
    view = field.view
    stored = numpy_transfer.read(field.tree.allocation, view)
    last = path.levels[-1]
    if last.region is not None and last.list is None:  # All elements in its active cells.
        stored[_get(last.region.home, [np.arange(len(stored))]) > 0] = field.dtype.array(value)
    else:
        index = _mesh(field.shape)
        active = np.broadcast_to(_are_active(path, index), field.shape)
        at = [np.broadcast_to(part, field.shape)[active] for part in _walk(path, index, False)]
        stored[tuple(at)] = field.dtype.array(value)
    numpy_transfer.write(field.tree.allocation, view, stored)


def _are_active(path: Path, index: Sequence[Array]) -> Array:
    """Return whether the elements at ``index`` are in active cells."""
    active: Array = np.asarray(True)
    cell: list[Array] = []
    for level in path.levels:
        at = [*cell, *_digits(level.digits, index)]
        if level.table is not None:
            if level.list is not None:
                at_list = (*cell, *_digits(level.list.digits, index))
                active = active & (index[level.list.axis] < _get(level.list.length, at_list))
            cell = [np.maximum(_get(level.table, at), NULL)]
            active = active & (cell[0] > NULL)
        else:
            number = _number(level, index)
            place = (*at, number // WORD)
            assert level.mask is not None
            word = _get(level.mask, place)
            active = active & ((word >> (number % WORD).astype(np.uint32)) & 1 > 0)
    return active


def _mesh(shape: tuple[int, ...]) -> list[Array]:
    """Return the indices of all elements, one array for each axis, which broadcast against each other."""
    return list(np.ogrid[tuple([slice(n) for n in shape])]) if shape else []


def _get(field: ScalarField, at: Sequence[Array]) -> Array:
    """Return the values of a hidden field at indices that broadcast; a few are read one by one."""
    shape = np.broadcast_shapes(*[np.shape(a) for a in at])
    if math.prod(shape) > _FEW:
        contents: Array = field.to_numpy()[tuple(at)]
        return contents
    flat = zip(*[np.ravel(a).tolist() for a in np.broadcast_arrays(*at)]) if at else [()]
    return np.array([field[k or None] for k in flat], field.dtype.np).reshape(shape)


def _put(field: ScalarField, at: Sequence[Array], values: Array) -> None:
    """Set a hidden field at indices, each an array with one axis."""
    if values.size > _FEW:
        contents = numpy_transfer.read(field.tree.allocation, field.view)
        contents[tuple(at)] = values
        _replace(field, contents)
        return
    for *k, value in zip(*[a.tolist() for a in at], values.tolist()):
        field[tuple(k) or None] = value


def _replace(field: ScalarField, contents: Array) -> None:
    """Set a hidden field, in all cells that may store values."""
    shadows.host_write(field)
    numpy_transfer.write(field.tree.allocation, field.view, contents)


def _walk(path: Path, index: Sequence[Array], activate: bool) -> list[Array]:
    """Return the indices in the last region of the elements at ``index``: arrays that broadcast against each other."""
    return [*_cell(path, index, activate), *_digits(path.digits, index)]


def _cell(path: Path, index: Sequence[Array], activate: bool) -> list[Array]:
    """Return the number of the cell in the last region that holds the elements at ``index``; nothing if that is the region of the root."""
    cell: list[Array] = []
    for level in path.levels:
        at = [*cell, *_digits(level.digits, index)]
        if level.table is not None:
            if activate and level.list is not None:
                _lengthen(level, level.list, cell, index)
            elif activate:
                _activate(level, at, index)
            cell = [np.maximum(_get(level.table, at), NULL)]
        elif activate:
            _set_bits(level, at, index)
    return cell


def _activate(level: Level, at: Sequence[Array], index: Sequence[Array]) -> None:
    """Assign cell numbers to all entries of the table at ``at``."""
    region, table = level.region, level.table
    assert region is not None and table is not None
    *places, numbers = [np.ravel(a) for a in np.broadcast_arrays(*at, _number(level, index))]
    missing = np.flatnonzero(_get(table, places) <= NULL)
    if not missing.size:
        return
    flat = np.ravel_multi_index([p[missing] for p in places], table.shape)
    entries, first = np.unique(flat, return_index=True)
    used, free = region.used[None], region.free_count[None]
    again = min(free, entries.size)
    new = int(entries.size) - again
    assert region.pool is not None  # Reading its counters has given it memory.
    if region.capacity[None] < FIRST + used + new and not region.pool.grow(2 * (used + new)) and not region.pool.grow(used + new):
        raise too_few(region, used + new)
    free_ones = _get(region.free, [np.arange(free - again, free)])
    cells = np.concatenate([free_ones, FIRST + used + np.arange(new)]).astype(np.int32)
    region.used[None], region.free_count[None] = used + new, free - again
    _put(table, np.unravel_index(entries, table.shape), cells)
    _put(region.home, [cells], numbers[missing[first]] + 1)


def _lengthen(level: Level, entries: List, cell: list[Array], index: Sequence[Array]) -> None:
    """Extend the lists to include the entries at ``index``, and assign numbers to all chunks up to these."""
    at = [np.ravel(a) for a in np.broadcast_arrays(*cell, *_digits(entries.digits, index), index[entries.axis])]
    *around, last = at
    lengths = _get(entries.length, around) if around else np.full(last.shape, entries.length[None])
    if last.size == 1:  # Otherwise ``index`` is the index of all entries.
        _put(entries.length, around, np.maximum(lengths, last + 1))
        chunks = np.arange(int(lengths[0]) // entries.chunk, int(last[0]) // entries.chunk + 1) * entries.chunk
        index = [np.minimum(chunks, last) if axis == entries.axis else v for axis, v in enumerate(index)]
    else:
        _put(entries.length, around, np.full(last.shape, entries.limit)) if around else entries.length.fill(entries.limit)
    _activate(level, [*cell, *_digits(level.digits, index)], index)


def _set_bits(level: Level, at: Sequence[Array], index: Sequence[Array]) -> None:
    number = _number(level, index)
    assert level.mask is not None
    mask = level.mask.to_numpy()
    *places, bits = np.broadcast_arrays(*at, number // WORD, np.left_shift(np.uint32(1), (number % WORD).astype(np.uint32)))
    np.bitwise_or.at(mask, tuple(places), bits)
    _replace(level.mask, mask)


def too_few(region: CellRegion, wanted: int) -> OutOfDeviceMemory:
    """Return the error for a region with too few cells."""
    cells = region.capacity[None] - FIRST
    return OutOfDeviceMemory(
        f"{region.node} has memory for {cells} active cells, and the program needs {wanted}: nothing was written; "
        f"reserve more of them with `{region.call.format(wanted)}`"
    )
