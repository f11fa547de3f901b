"""`activate`, `deactivate` and `is_active`: cells of sparse nodes, by their index in the index space of the node."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spirograd.base.dtypes import i32, u1
from spirograd.ir.nodes import LoopAttr
from spirograd.lang import scalar
from spirograd.lang.annotations import template
from spirograd.lang.data.layout import decode_of
from spirograd.lang.data.regions import NULL, Group, Level, Path, Region, path_to
from spirograd.lang.data.scalar_field import Field, indices_of
from spirograd.lang.data.tree import SNode
from spirograd.lang.frontend.expressions import arguments
from spirograd.lang.frontend.function import func
from spirograd.lang.frontend.indices import index_values
from spirograd.lang.frontend.inlining import inline
from spirograd.lang.frontend.lvalues import Element
from spirograd.lang.frontend.sparse_elements import cell_of, hidden_element, is_set, local, where, word_and_bit
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.scalar import Value, describe, type_error


def is_active(t: Tracer, node: ast.Call) -> Value:
    """Whether a cell, and what is around it, is active."""
    path, index, _ = _cell(t, node, "is_active")
    active: Any = True
    for k, level in enumerate(path.levels):
        if level.table is not None:
            cell = cell_of(t, path.levels[: k + 1], index, False)
            assert cell is not None and level.region is not None
            # `home` tells the same. That it is read tells that activity matters here, see `found_results`.
            active = active & (cell > NULL) & (hidden_element(t, level.region.home, [cell]).load() > 0)
        else:
            active = active & is_set(t, level, _entry(t, path.levels[:k], level, index), index)
    return scalar.cast(active, u1)


def activate(t: Tracer, node: ast.Call) -> None:
    """Activate a cell, and what is around it."""
    path, index, _ = _cell(t, node, "activate")
    cell_of(t, path.levels, index, True)


class EndsCells(Exception):
    """The kernel deactivates cells: trace it again, such that accesses do not take the cell for active that a loop visits."""


def deactivate(t: Tracer, node: ast.Call) -> None:
    """Deactivate a cell: what it holds is 0 afterwards, and inactive itself."""
    if t.cells_last:
        raise EndsCells
    path, index, what = _cell(t, node, "deactivate")
    level = path.levels[-1]
    if level.node is not what:
        raise type_error(f"{what} has no cells that can be deactivated", "name a `pointer` or a `bitmasked` node")
    at = _entry(t, path.levels[:-1], level, index)
    if level.table is not None:
        _free(t, hidden_element(t, level.table, at), level.region)
        return
    word, bit = word_and_bit(t, level, at, index)

    def clear() -> None:
        word.atomic("and", ~bit)
        cell = cell_of(t, path.levels[:-1], index, False)
        begin = {what.axis_numbers[part[0]] + 1: value for part, value in zip(level.cell.parts, local(level.cell, index))}
        _clear(t, path.region, level.node.stored_node, cell, begin)

    where(is_set(t, level, at, index), clear)


def _entry(t: Tracer, outer: Sequence[Level], level: Level, index: Sequence[Value]) -> list[Value]:
    """Where in its table or mask the cell is; ``outer``: the levels above."""
    cell = cell_of(t, outer, index, False)
    return [*([] if cell is None else [cell]), *local(level.digits, index)]


# --- deactivation ------------------------------------------------------------------------------------------------------------


def _free(t: Tracer, entry: Element, region: Region | None) -> None:
    """Deactivate the cell at an entry of the table of ``region``."""
    assert region is not None

    def free() -> None:
        number = entry.atomic("exchange", NULL)
        where(number > NULL, lambda: _free_cell(t, region, number))

    where(entry.load() > NULL, free)


def _free_cell(t: Tracer, region: Region, number: Value) -> None:
    hidden_element(t, region.home, [number]).store(0)
    _clear(t, region, region.cells, number, {})
    place = hidden_element(t, region.freed_count, []).atomic("add", 1)
    hidden_element(t, region.freed, [place]).store(number)
    if region not in t.freed_regions:
        t.freed_regions.append(region)


def _clear(t: Tracer, region: Region, node: Any, cell: Value | None, begin: dict[int, Value]) -> None:
    """Set to 0 what lies below a node of a region, in ``cell``. ``begin``: where along each axis, in cells of the node."""
    for group in region.groups:
        path = group.node.path
        if node in path:
            _clear_group(t, group, path[path.index(node) + 1 :], cell, begin)


def _clear_group(t: Tracer, group: Group, inside: Sequence[Any], cell: Value | None, begin: dict[int, Value]) -> None:
    b = scalar.builder()
    axes = group.node.axis_numbers[0 if cell is None else 1 :]
    first, last = b.const(0), b.const(math.prod(n for node in inside for n in node.extents))
    (counter,) = b.begin(i32)
    index = indices_of(decode_of(inside, axes), len(axes), (), Value(counter))
    for k, axis in enumerate(axes):
        if axis in begin:
            extent = math.prod(n for node in inside for a, n in zip(node.axes, node.extents) if a == axis)
            index[k] = begin[axis] * extent + index[k]
    at = [*([] if cell is None else [cell]), *index]
    for place in group.places:
        element = hidden_element(t, place.field, at)
        component = np.unravel_index(place.component, place.field.element_shape) if place.field.element_shape else ()
        Element(element.ref, element.indices, tuple([b.const(int(k)) for k in component])).store(0)
    for node in group.tables:
        _free(t, hidden_element(t, node.table, at), node.cells_in)
    b.for_(first, last, [], b.end(), LoopAttr(deactivates=True))


@func
def _collect(region: template()) -> None:  # type: ignore[valid-type]
    first = region.free_count[None]
    count = region.freed_count[None]
    for k in range(count):
        region.free[first + k] = region.freed[k]
    region.free_count[None] = first + count
    region.freed_count[None] = 0


def collect(t: Tracer) -> None:
    """At the end of a kernel: the cells that it has deactivated can be activated again."""
    for region in t.freed_regions:
        assert t.b.loc is not None
        inline(t, _collect, {"region": region}, frozenset(("region",)), t.b.loc)


# --- arguments ---------------------------------------------------------------------------------------------------------------


def _cell(t: Tracer, node: ast.Call, name: str) -> tuple[Path, list[Value], SNode]:
    """The way to the cell that the arguments of a call name, its index, and the node."""
    values, kwargs = arguments(t, node)
    t.at(node)
    if kwargs or len(values) != 2:
        given = len(values) + len(kwargs)
        raise type_error(f"`{name}` takes a node and an index, got {given} arguments", f"as in `sg.{name}(node, [i, j])`")
    what = values[0].snode.above if isinstance(values[0], Field) else values[0]
    if not isinstance(what, SNode):
        raise type_error(f"`{name}` takes a node of a field tree, not {describe(values[0])}", "`x.parent()` is the node that holds `x`")
    what.tree.settle()
    path = None if what.tree.regions is None else path_to(what, what.axis_numbers)
    if path is None or not path.levels:
        raise type_error(f"`{name}` takes a sparse node, or one below; {what} has none above", "`pointer` and `bitmasked` nodes are sparse")
    index = index_values(values[1], len(what.shape), repr(what), what.shape)
    return path, [Value(i) for i in index], what
