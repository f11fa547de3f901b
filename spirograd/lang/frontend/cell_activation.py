"""`activate`, `deactivate` and `is_active`: cells of sparse nodes, by their index in the index space of the node."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence

import numpy as np

from spirograd.base.dtypes import i32, u1
from spirograd.base.errors import render
from spirograd.base.wording import counted
from spirograd.ir.nodes import LoopAttr
from spirograd.lang import arithmetic, scalar
from spirograd.lang.data.nodes import Dynamic, SNode
from spirograd.lang.data.regions import NULL, CellRegion, Group, Level, Path, Region, path_to
from spirograd.lang.data.scalar_field import Field, indices_of
from spirograd.lang.data.tree_layout import Extended, decode_of
from spirograd.lang.frontend.assumptions import Deactivates, HoldsCells
from spirograd.lang.frontend.expressions import arguments
from spirograd.lang.frontend.indices import index_values
from spirograd.lang.frontend.lvalues import Element
from spirograd.lang.frontend.runtime_values import where
from spirograd.lang.frontend.sparse_elements import (
    cell_of,
    hidden_element,
    hidden_value,
    in_cell,
    is_set,
    length_of,
    list_element,
    local,
    word_and_bit,
)  # fmt: skip
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.scalar import Value, describe, type_error


def is_active(t: Tracer, node: ast.Call) -> Value:
    """Return whether a cell, and what is around it, is active."""
    path, index, _ = _cell(t, node, "is_active")
    active: scalar.Scalar = True
    for k, level in enumerate(path.levels):
        if level.table is not None:
            cell = cell_of(t, path.levels[: k + 1], index, False)
            assert cell is not None and level.region is not None
            # `home` tells the same. That it is read tells that activity matters here, see `stored_results`.
            active = scalar.bit_and(scalar.bit_and(active, cell > NULL), hidden_value(t, level.region.home, [cell]) > 0)
            if level.list is not None:
                active = scalar.bit_and(active, index[level.list.axis] < length_of(t, path.levels[:k], level.list, index))
        else:
            active = scalar.bit_and(active, is_set(t, level, _entry(t, path.levels[:k], level, index), index))
    return scalar.cast(active, u1)


def activate(t: Tracer, node: ast.Call) -> None:
    """Activate a cell, and what is around it."""
    path, index, _ = _cell(t, node, "activate")
    cell_of(t, path.levels, index, True)


def no_activate(t: Tracer, node: ast.Call) -> None:
    """Keep writes of the kernel from activating cells of some nodes. Fields are accepted, as in the family; their nodes have no cells."""
    values, kwargs = arguments(t, node)
    t.at(node)
    for what in values:
        if isinstance(what, Field):
            text = f"`no_activate` of {describe(what)} changes nothing: the cells are those of the node that holds it"
            t.trace.warn(("no_activate", str(t.b.loc)), render(text, t.b.loc, "name the node: `x.parent()`"))
        elif not isinstance(what, SNode):
            raise type_error(f"`no_activate` takes nodes of field trees, not {describe(what)}", "`x.parent()` is the node that holds `x`")
    if kwargs or not node.args:
        raise type_error("`no_activate` takes nodes of field trees", "as in `sg.no_activate(node)`")
    t.assumptions.learn(*[HoldsCells(what) for what in values if isinstance(what, SNode)])


def deactivate(t: Tracer, node: ast.Call) -> None:
    """Deactivate a cell: what it holds is 0 afterwards, and inactive itself."""
    t.assumptions.learn(Deactivates())
    path, index, what = _cell(t, node, "deactivate")
    level = path.levels[-1]
    if level.node is not what:
        raise type_error(f"{what} has no cells that can be deactivated", "name a `pointer`, `bitmasked` or `dynamic` node")
    if level.list is not None:
        empty(t, path, index)
        return
    at = _entry(t, path.levels[:-1], level, index)
    if level.table is not None and level.region is not None:
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
    """Return where in its table or mask the cell is; ``outer``: the levels above."""
    cell = cell_of(t, outer, index, False)
    return in_cell(cell, level.digits, index)


# --- deactivation ------------------------------------------------------------------------------------------------------------


def empty(t: Tracer, path: Path, index: Sequence[Value]) -> None:
    """Empty a list, and deactivate its chunks."""
    t.assumptions.learn(Deactivates())
    level, b = path.levels[-1], scalar.builder()
    entries = level.list
    table, region = level.table, level.region
    assert entries is not None and table is not None and region is not None
    cell = cell_of(t, path.levels[:-1], index, False)
    length = list_element(t, entries, cell, index)

    def free() -> None:
        old = scalar.as_value(arithmetic.min(length.atomic("exchange", 0), entries.limit))
        chunks = scalar.raw_div(old + (entries.chunk - 1), entries.chunk)
        first = b.const(0)
        (k,) = b.begin(i32)
        at = [Value(k) * entries.chunk if axis == entries.axis else v for axis, v in enumerate(index)]
        _free(t, hidden_element(t, table, in_cell(cell, level.digits, at)), region)
        b.for_(first, chunks.op, [], b.end(), LoopAttr(deactivates=True))

    where(scalar.as_value(length.load()) > 0, free)


def _free(t: Tracer, entry: Element, region: CellRegion) -> None:
    """Deactivate the cell at an entry of the table of ``region``."""

    def free() -> None:
        number = scalar.as_value(entry.atomic("exchange", NULL))
        where(number > NULL, lambda: _free_cell(t, region, number))

    where(scalar.as_value(entry.load()) > NULL, free)


def _free_cell(t: Tracer, region: CellRegion, number: Value) -> None:
    hidden_element(t, region.home, [number]).store(0)
    _clear(t, region, region.cells, number, {})
    place = scalar.as_value(hidden_element(t, region.freed_count, []).atomic("add", 1))
    hidden_element(t, region.freed, [place]).store(number)
    if region not in t.freed_regions:
        t.freed_regions.append(region)


def _clear(t: Tracer, region: Region, node: object, cell: Value | None, begin: dict[int, Value]) -> None:
    """Set to 0 what lies below a node of a region, in ``cell``. ``begin``: where along each axis, in cells of the node."""
    for group in region.groups:
        path = group.node.path
        if node in path:
            _clear_group(t, group, path[path.index(node) + 1 :], cell, begin)


def _clear_group(t: Tracer, group: Group, inside: Sequence[Extended], cell: Value | None, begin: dict[int, Value]) -> None:
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
        if place.field.lies_apart:
            hidden_element(t, place.field.component_fields[place.component], at).store(0)
            continue
        element = hidden_element(t, place.field, at)
        component = np.unravel_index(place.component, place.field.element_shape) if place.field.element_shape else ()
        Element(element.ref, element.indices, tuple([b.const(int(k)) for k in component])).store(0)
    for node in group.tables:
        assert node.table is not None and node.cells_in is not None
        _free(t, hidden_element(t, node.table, at), node.cells_in)
    b.for_(first, last, [], b.end(), LoopAttr(deactivates=True))


# --- arguments ---------------------------------------------------------------------------------------------------------------


def _cell(t: Tracer, node: ast.Call, name: str) -> tuple[Path, list[Value], SNode]:
    """Return the way to the cell that the arguments of a call name, its index, and the node."""
    values, kwargs = arguments(t, node)
    t.at(node)
    if kwargs or len(values) != 2:
        given = counted(len(values) + len(kwargs), "argument")
        raise type_error(f"`{name}` takes a node and an index, got {given}", f"as in `sg.{name}(node, [i, j])`")
    what, path = sparse_node(values[0], name)
    if isinstance(what, Dynamic) and name == "deactivate":
        return path, list_index(what, values[1]), what
    index = index_values(values[1], len(what.shape), repr(what), what.shape)
    return path, [Value(i) for i in index], what


def sparse_node(what: object, name: str) -> tuple[SNode, Path]:
    """Return a sparse node, or the node of a field, and the way to its cells. ``name``: the function that takes it."""
    node = what.snode.above if isinstance(what, Field) else what
    if not isinstance(node, SNode):
        raise type_error(f"`{name}` takes a node of a field tree, not {describe(what)}", "`x.parent()` is the node that holds `x`")
    node.tree.settle()
    path = None if node.tree.regions is None else path_to(node, node.axis_numbers)
    if path is None or not path.levels:
        hint = "`pointer`, `bitmasked` and `dynamic` nodes are sparse"
        raise type_error(f"`{name}` takes a sparse node, or one below; {node} has none above", hint)
    return node, path


def list_index(node: SNode, key: object) -> list[Value]:
    """Return the index of a list of a `dynamic` node, with 0 for the entry. ``key``: the index of the cell around it."""
    around = node.above
    assert around is not None
    index = [Value(i) for i in index_values(key, len(around.shape), repr(around), around.shape)]
    index.insert(node.axis_numbers.index(node.axes[0]), scalar.constant(0))
    return index
