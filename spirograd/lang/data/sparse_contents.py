"""Python's access to fields below sparse nodes: elements, and whole contents as arrays of the index space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spirograd.base.errors import OutOfDeviceMemory
from spirograd.lang.data import transfer
from spirograd.lang.data.regions import FIRST, NULL, WORD, Digits, Level, List, Path, Region
from spirograd.lang.data.transfer import Array
from spirograd.lang.data.views import HostView, view_of


def _digits(digits: Digits, index: Sequence[Any]) -> list[Any]:
    return [_digit(part, index) for part in digits.parts]


def _digit(part: tuple[int, int, int], index: Sequence[Any]) -> Any:
    position, div, mod = part
    value = index[position] // div
    return value % mod if mod else value


def _number(level: Level, index: Sequence[Any]) -> Any:
    """The number of a cell, row by row; see `Level`."""
    total: Any = 0
    for part, extent in level.number:
        total = total * extent + _digit(part, index)
    return total


def stored_index(path: Path, index: Sequence[int], activate: bool) -> tuple[int, ...]:
    """Where in its region an element is: in the null cell if it is inactive, unless it is to be activated."""
    cells = _walk(path, [np.asarray(i) for i in index], activate)
    return tuple([int(i) for i in cells])


def read(field: Any) -> Array:
    """The contents, 0 where nothing is active."""
    path: Path = field.sparse_path
    at = _walk(path, _mesh(field.shape), False)
    view = _used_part(field, path)
    return np.ascontiguousarray(transfer.read(field.tree.allocation, view)[tuple(at)])


def write(field: Any, data: Array) -> None:
    """Set the contents; activates every cell."""
    path: Path = field.sparse_path
    at = _walk(path, _mesh(field.shape), True)
    view = _used_part(field, path)
    stored = transfer.read(field.tree.allocation, view)
    stored[tuple(at)] = field.dtype.array(data)
    transfer.write(field.tree.allocation, view, stored)


def fill(field: Any, value: Any) -> None:
    """Set all elements in active cells."""
    path: Path = field.sparse_path
    index = _mesh(field.shape)
    active = np.broadcast_to(_are_active(path, index), field.shape)
    at = [np.broadcast_to(part, field.shape)[active] for part in _walk(path, index, False)]
    view = _used_part(field, path)
    stored = transfer.read(field.tree.allocation, view)
    stored[tuple(at)] = field.dtype.array(value)
    transfer.write(field.tree.allocation, view, stored)


def _are_active(path: Path, index: Sequence[Array]) -> Any:
    """Whether the elements at ``index`` are in active cells."""
    active: Any = True
    cell: list[Any] = []
    for level in path.levels:
        at = [*cell, *_digits(level.digits, index)]
        if level.table is not None:
            if level.list is not None:
                at_list = (*cell, *_digits(level.list.digits, index))
                active = active & (index[level.list.axis] < level.list.length.to_numpy()[at_list])
            cell = [np.maximum(level.table.to_numpy()[tuple(at)], NULL)]
            active = active & (cell[0] > NULL)
        else:
            number = _number(level, index)
            place = (*at, number // WORD)
            word = level.mask.to_numpy()[place]
            active = active & ((word >> (number % WORD).astype(np.uint32)) & 1 > 0)
    return active


def _used_part(field: Any, path: Path) -> HostView:
    """The view of the cells that were ever given a number."""
    shape = field.storage_shape
    if path.region.node is not None:
        shape = (FIRST + min(path.region.used[None], path.region.capacity - FIRST), *shape[1:])
    return view_of(field.dtype, shape, field.element_shape, field.addresses, field.view.part)


def _mesh(shape: tuple[int, ...]) -> list[Array]:
    """The indices of all elements, one array for each axis, which broadcast against each other."""
    return list(np.ogrid[tuple([slice(n) for n in shape])]) if shape else []


def _walk(path: Path, index: Sequence[Array], activate: bool) -> list[Any]:
    """The indices in the last region of the elements at ``index``: arrays that broadcast against each other."""
    cell: list[Any] = []
    for level in path.levels:
        at = [*cell, *_digits(level.digits, index)]
        if level.table is not None:
            table = level.table.to_numpy()
            if activate and level.list is not None:
                table = _lengthen(level, level.list, table, cell, index)
            elif activate:
                table = _activate(level, table, at, index)
            cell = [np.maximum(table[tuple(at)], NULL)]
        elif activate:
            _set_bits(level, at, index)
    return [*cell, *_digits(path.digits, index)]


def _activate(level: Level, table: Array, at: Sequence[Any], index: Sequence[Array]) -> Array:
    """The table with numbers for all entries at ``at``."""
    region = level.region
    assert region is not None
    *places, numbers = [np.ravel(a) for a in np.broadcast_arrays(*at, _number(level, index))]
    missing = np.flatnonzero(table[tuple(places)] <= NULL)
    if not missing.size:
        return table
    flat = np.ravel_multi_index([p[missing] for p in places], table.shape)
    entries, first = np.unique(flat, return_index=True)
    used, free = region.used[None], region.free_count[None]
    again = min(free, entries.size)
    new = int(entries.size) - again
    if FIRST + used + new > region.capacity:
        raise too_few(region, used + new)
    made = np.concatenate([region.free.to_numpy()[free - again : free], FIRST + used + np.arange(new)]).astype(np.int32)
    table[np.unravel_index(entries, table.shape)] = made
    home = region.home.to_numpy()
    home[made] = numbers[missing[first]] + 1
    level.table.from_numpy(table)
    region.home.from_numpy(home)
    region.used[None], region.free_count[None] = used + new, free - again
    return table


def _lengthen(level: Level, entries: List, table: Array, cell: list[Any], index: Sequence[Array]) -> Array:
    """The table with numbers for all chunks up to the entries at ``index``, which the lists then include."""
    lengths = np.ascontiguousarray(entries.length.to_numpy())
    *at, last = np.broadcast_arrays(*cell, *_digits(entries.digits, index), index[entries.axis])
    lists = np.ravel_multi_index(at, lengths.shape) if at else np.zeros(last.shape, np.intp)
    before = int(lengths.flat[lists.flat[0]])
    np.maximum.at(lengths.reshape(-1), lists, last + 1)
    entries.length.from_numpy(lengths)
    if last.size == 1:  # else ``index`` is that of all entries
        chunks = np.arange(before // entries.chunk, int(last) // entries.chunk + 1) * entries.chunk
        index = [np.minimum(chunks, last) if axis == entries.axis else v for axis, v in enumerate(index)]
    return _activate(level, table, [*cell, *_digits(level.digits, index)], index)


def _set_bits(level: Level, at: Sequence[Any], index: Sequence[Array]) -> None:
    number = _number(level, index)
    mask = level.mask.to_numpy()
    *places, bits = np.broadcast_arrays(*at, number // WORD, np.left_shift(np.uint32(1), (number % WORD).astype(np.uint32)))
    np.bitwise_or.at(mask, tuple(places), bits)
    level.mask.from_numpy(mask)


def too_few(region: Region, wanted: int) -> OutOfDeviceMemory:
    """The error for a region with too few cells."""
    node, cells = region.node, region.capacity - FIRST
    return OutOfDeviceMemory(
        f"{node} has memory for {cells} active cells, and the program has activated {wanted}: writes to the others are lost; "
        f"reserve more of them with `.pointer(axes, shape, cells={wanted})`"
    )
