"""Loops over sparse fields and nodes: over the active cells of their region, and over what is in each of them.

The numbers of cells are given in order, so a loop runs over the numbers that were ever given, and leaves out cells that are not active. No
list of cells is made. The order of the iterations is that in which cells were activated. A loop over the only list of a `dynamic` node runs
over its entries, in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from spirograd.base.dtypes import i32, i64, u1
from spirograd.lang import arithmetic, scalar
from spirograd.lang.data.nodes import SNode
from spirograd.lang.data.regions import FIRST, NULL, Level, Path, parts_to, path_to
from spirograd.lang.data.scalar_field import Field, indices_of
from spirograd.lang.data.tree_layout import decode_of
from spirograd.lang.frontend.sparse_elements import entry_of, hidden_value, in_cell, is_set, length_of, local
from spirograd.lang.frontend.tracer import Tracer, VisitedCell
from spirograd.lang.scalar import Value

Decode = Callable[[Value], list[Value]]
IsActive = Callable[[Value, list[Value]], Value]


def active_cells(t: Tracer, space: Field | SNode) -> tuple[Value, Decode, IsActive] | None:
    """Return the number of iterations of a loop over a field or a node, the index of each, and whether it is active; see `LoopSpace`. None
    if there is no sparse node above."""
    node = space if isinstance(space, SNode) else space.snode.above
    assert node is not None
    node.tree.settle()
    if node.tree.regions is None:
        return None
    path = path_to(node, node.axis_numbers)
    if not path.levels:
        return None
    pointers = [level for level in path.levels if level.table is not None]
    masks = path.levels[path.levels.index(pointers[-1]) + 1 :] if pointers else path.levels
    last = pointers[-1] if pointers else None
    one_list = last is not None and last.list is not None and len(last.number) == 1 and path.levels[0] is last
    kind = _Entries if one_list else _Cells
    cells = kind(t, node, path, last, masks, () if isinstance(space, SNode) else space.origin)
    return cells.size(), cells.index, cells.is_active


class _Cells:
    """A loop over the cells of ``node``. ``pointer``: the innermost `pointer` or `dynamic` node above; ``masks``: the `bitmasked` ones
    below that."""

    def __init__(self, t: Tracer, node: SNode, path: Path, pointer: Level | None, masks: Sequence[Level], origin: Sequence[int]) -> None:
        self.t = t
        self.axes = node.axis_numbers
        self.shape = node.shape
        self.pointer = pointer
        self.outer = path.levels[: path.levels.index(pointer)] if pointer is not None else ()
        self.masks = masks
        self.origin = tuple(origin) or (0,) * len(self.axes)
        parts = parts_to(node)
        last = max([k for k, part in enumerate(parts) if part.in_region], default=-1)
        self.inside = parts[last + 1 :]
        self.inner = math.prod(n for below in self.inside for n in below.extents)  # iterations in each cell of the region
        self.region = None if pointer is None else pointer.region

    def size(self) -> Value:
        """Return the number of iterations."""
        if self.region is None:
            return scalar.constant(self.inner, i64 if self.inner > 2**31 - 1 else i32)
        used, capacity = [hidden_value(self.t, field, []) for field in (self.region.used, self.region.capacity)]
        wide = (self.region.most - FIRST) * self.inner > 2**31 - 1
        return scalar.as_value(scalar.cast(arithmetic.min(used, capacity - FIRST), i64 if wide else i32) * self.inner)

    def index(self, counter: Value) -> list[Value]:
        """Return the index that a counter stands for; any if there is no active cell."""
        inner = counter if self.pointer is None else scalar.raw_mod(counter, self.inner)
        index = indices_of(decode_of(self.inside, self.axes), len(self.axes), self.origin, inner)
        if self.pointer is None or self.region is None:
            return index
        number = self._number(counter)
        local = tuple([v - o if o else v for v, o in zip(index, self.origin)])
        index = [scalar.cast(v, i32) for v in index]  # of an axis, whatever the counter needs
        for (axis, below, _), extent in reversed(self.pointer.number):
            index[axis] = index[axis] + scalar.cast(scalar.raw_mod(number, extent), i32) * below
            number = scalar.raw_div(number, extent)
        self.t.visited = VisitedCell(
            self.region, self.axes, self.shape, self.origin, tuple([v.op for v in index]), self._cell(counter), local
        )
        return index

    def is_active(self, counter: Value, index: list[Value]) -> Value:
        """Return whether what a counter stands for is active."""
        values = [v - o if o else v for v, o in zip(index, self.origin)]
        active: scalar.Scalar = True if self.pointer is None else self._is_active_cell(counter, values)
        cell = [] if self.pointer is None else [self._cell(counter)]
        for level in self.masks:
            bit = is_set(self.t, level, [*cell, *local(level.digits, values)], values)
            active = bit if active is True else scalar.bit_and(active, bit)
        return scalar.cast(active, u1)

    def _number(self, counter: Value) -> Value:
        """Return the number of the cell among all cells of its node; 0 if it is not active."""
        home = self._home(counter)
        return scalar.as_value(arithmetic.max(home - 1, scalar.constant(0, home.dtype)))

    def _is_active_cell(self, counter: Value, values: Sequence[Value]) -> scalar.Scalar:
        """Return whether the cell in the region is active, and the list, if it is a chunk of one, so long. ``values``: see `from_zero`."""
        assert self.pointer is not None
        active = self._home(counter) > 0
        if self.pointer.list is None:
            return active
        return scalar.bit_and(active, values[self.pointer.list.axis] < length_of(self.t, self.outer, self.pointer.list, values))

    def _cell(self, counter: Value) -> Value:
        """Return the number of the cell in the region."""
        return scalar.as_value(scalar.raw_div(counter, self.inner) + FIRST)

    def _home(self, counter: Value) -> Value:
        """Return 1 + the number of the cell among all cells of its node, 0 if it is not active."""
        assert self.region is not None
        return hidden_value(self.t, self.region.home, [self._cell(counter)])


class _Entries(_Cells):
    """A loop over the entries of the one list of a node, which are fewer than those of its chunks: chunks may be much larger than lists."""

    def size(self) -> Value:
        assert self.pointer is not None and self.pointer.list is not None and self.region is not None
        start = [scalar.constant(0)] * len(self.axes)
        each = self.inner // self.pointer.list.chunk
        wide = self.pointer.list.limit * each > 2**31 - 1
        return scalar.as_value(scalar.cast(length_of(self.t, (), self.pointer.list, start), i64 if wide else i32) * each)

    def _number(self, counter: Value) -> Value:
        return scalar.as_value(scalar.raw_div(counter, self.inner))

    def _is_active_cell(self, counter: Value, values: Sequence[Value]) -> scalar.Scalar:
        return self._cell(counter) > NULL  # There was memory for it.

    def _cell(self, counter: Value) -> Value:
        assert self.pointer is not None and self.pointer.list is not None
        start = [scalar.constant(0)] * len(self.axes)
        start[self.pointer.list.axis] = scalar.cast(self._number(counter), i32) * self.pointer.list.chunk
        return entry_of(self.t, self.pointer, in_cell(None, self.pointer.digits, start), start, False)
