"""Elements of fields below sparse nodes: the tables that lead to them are read, and cells activated, where kernels access the elements.

Reads of inactive cells lead to the null cell of a region, and give 0. Writes activate what they need. See `lang.data.regions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from spirograd.base.artifact import FAULT_MAX_OPERANDS
from spirograd.base.dtypes import DType, i32, u1, u32
from spirograd.ir import ops
from spirograd.ir.nodes import FieldRef, Op
from spirograd.lang import arithmetic, scalar
from spirograd.lang.annotations import template
from spirograd.lang.data.regions import BUSY, FIRST, NULL, OVERFLOW, WORD, Digits, Level, List
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.forms import atomic_add, atomic_exchange, atomic_max, atomic_sub, volatile_load
from spirograd.lang.frontend.assumptions import Deactivates, HoldsCells
from spirograd.lang.frontend.func import func, real_func
from spirograd.lang.frontend.lvalues import Element
from spirograd.lang.frontend.real_functions import call_own_function
from spirograd.lang.frontend.runtime_values import Traced, emit_if, leaves, rebuild, where
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.matrix import Matrix, make
from spirograd.lang.scalar import Value

# Writes to an element, and returns the old value if there is one.
Write = Callable[[Element], Traced | None]
# Operations that an index may be made of, such as `base + offset`, which are compared one by one.
_KEY_DEPTH = 4


@func
def _number(region: template()) -> i32:  # type: ignore[valid-type]
    """Return a number for a cell: one that is free, or a new one, which may be beyond the capacity."""
    number = 0
    left = atomic_sub(region.free_count[None], 1)
    if left > 0:
        number = region.free[left - 1]
    else:
        atomic_add(region.free_count[None], 1)
        number = FIRST + atomic_add(region.used[None], 1)
    return number  # type: ignore[no-any-return]


@real_func
def _activated(at: Any, number: Any, table: template(), region: template()) -> i32:  # type: ignore[valid-type]
    """Return the number of the cell at an entry of a table, activated if it is not. ``number``: of the cell among all of its node.

    Whoever takes an entry leaves BUSY there and puts back what belongs there, within the same iteration: invocations that run in lockstep
    do not wait for each other for ever. An entry is taken only if it was read as NULL. Otherwise each of the invocations that wait for one
    cell would take the entry once, while all others retry: on a GPU, that takes a minute for 1M of them.
    """
    cell = NULL
    while cell == NULL:
        entry = volatile_load(table[at])
        if entry == NULL:
            entry = atomic_exchange(table[at], BUSY)
            if entry == NULL:
                new = _number(region)
                if new < region.capacity[None]:
                    region.home[new] = number + 1
                    cell = new
                    entry = new
                else:
                    cell = OVERFLOW
                atomic_exchange(table[at], entry)
            elif entry > NULL:
                atomic_exchange(table[at], entry)
                cell = entry
        elif entry > NULL:
            cell = entry
    return cell


def _moved(at: Matrix, position: int, *chunk: object) -> Matrix:
    """Return ``at``, an index of a table of chunks, with another chunk; without one, the index of the list. ``position``: of the chunk."""
    entries = [*at.entries[:position], *chunk, *at.entries[position + 1 :]]
    return make(entries, (len(entries),))


@real_func
def _included(at: Any, j: i32, number: Any, region: template(), position: Any, stride: Any) -> i32:  # type: ignore[valid-type]
    """Return the number of the chunk with entry ``j`` of a list, which is extended to include the entry. ``stride``: of numbers of chunks.

    Whoever makes a list longer activates the chunks in between.
    """
    node = region.node
    cell = _activated(at, number, node.table, region)
    length = node.length[_moved(at, position)]
    if length <= j:
        k = atomic_max(node.length[_moved(at, position)], j + 1) // node.chunk
        while k < j // node.chunk:
            if _activated(_moved(at, position, k), number - (j // node.chunk - k) * stride, node.table, region) == OVERFLOW:
                cell = OVERFLOW
            k += 1
    return cell  # type: ignore[no-any-return]


class SparseElement(Element):
    """An element of ``field``, which is below sparse nodes. ``index``: in the index space of the field."""

    def __init__(self, t: Tracer, field: ScalarField, ref: FieldRef, index: Sequence[Op], components: tuple[Op, ...] = ()) -> None:
        super().__init__(ref, index, components)
        self._t = t
        self._field = field
        assert field.sparse_path is not None
        self._path = field.sparse_path

    def _with(self, components: tuple[Op, ...]) -> Element:
        assert isinstance(self.ref, FieldRef)
        return SparseElement(self._t, self._field, self.ref, self.indices, components)

    def _visited(self) -> Element | None:
        """Return the element in its region, if it is the one that the loop visits, whose cell is active for sure."""
        path = self._path
        visited = self._t.visited
        if visited is None or visited[:5] != (path.region, *self._index_space(), self.indices):
            return None
        if self._t.assumptions.holds(Deactivates()):
            return None
        at = [visited.cell, *[visited.local[position] for position, _, _ in path.digits.parts]]
        return Element(self.ref, [v.op for v in at], self.components, self.indices)

    def _index(self) -> list[Value]:
        index = from_zero(self._field, self.indices)
        check_index(self._field, self.indices, index)
        return index

    def _stored(self, cell: Value | None, index: Sequence[Value]) -> Element:
        """Return the element in ``cell`` of its region."""
        at = in_cell(cell, self._path.digits, index)
        return Element(self.ref, [v.op for v in at], self.components, self.indices)

    def _write(self, write: Write) -> Traced | None:
        """Return the result of ``write`` of the element in its region, of which it activates the cell. If the cell is not active, and
        `no_activate` says that it stays so, nothing is written, and the result is 0."""
        visited = self._visited()
        return write(visited) if visited is not None else self._write_from(None, self._path.levels, self._index(), write)

    def _write_from(self, cell: Value | None, levels: Sequence[Level], index: Sequence[Value], write: Write) -> Traced | None:
        """Write as `_write` does, from ``cell`` of a region on, with the ``levels`` below."""
        t = self._t
        stop = next((k for k, level in enumerate(levels) if t.assumptions.holds(HoldsCells(level.node))), len(levels))
        cell = cell_of(t, levels[:stop], index, True, cell)
        if stop == len(levels):
            return write(self._stored(cell, index))
        below, active = _held_cell(t, levels[stop], cell, index)
        return _where_active(active, lambda: self._write_from(below, levels[stop + 1 :], index, write))

    def _index_space(self) -> tuple[tuple[int, ...], ...]:
        """Return axes of the tree, extents and origin; in fields with equal ones an index means the same place."""
        field, above = self._field, self._field.snode.above
        assert above is not None
        return above.axis_numbers, field.shape, tuple(field.origin) or (0,) * len(field.shape)

    def load(self) -> Traced:
        visited = self._visited()
        if visited is not None:
            return visited.load()
        index = self._index()
        cell = cell_of(self._t, self._path.levels, index, False)
        value = self._stored(cell, index).load()
        if cell is None or not self.ref.dtype.is_float:
            return value
        # The null cell is zero. So that no adjoint is added there, its value has no derivative; without derivatives no selection is left.
        active = cell > NULL
        return rebuild(value, [scalar.select(active, v, scalar.emit(ops.stop_grad, v)) for v in leaves(value)])

    def store(self, value: object) -> None:
        self._write(lambda element: element.store(value))

    def atomic(self, kind: str, value: object) -> Traced:
        old = self._write(lambda element: element.atomic(kind, value))
        assert old is not None
        return old

    def update(self, kind: str, value: object) -> None:
        self._write(lambda element: element.update(kind, value))

    def compare_and_swap(self, expected: scalar.Scalar, desired: scalar.Scalar) -> Value:
        return scalar.as_value(self._write(lambda element: element.compare_and_swap(expected, desired)))


def _held_cell(t: Tracer, level: Level, cell: Value | None, index: Sequence[Value]) -> tuple[Value | None, Value]:
    """Return the cell to which a level leads without activation, and whether it is active. ``cell``: the one around it."""
    at = in_cell(cell, level.digits, index)
    if level.table is None:
        return cell, is_set(t, level, at, index)
    assert level.region is not None
    below = entry_of(t, level, at, index, False)
    # `home` tells the same. That it is read tells that activity matters here, see `stored_results`.
    active = (below > NULL) & (hidden_value(t, level.region.home, [below]) > 0)
    if level.list is not None:
        active = active & (index[level.list.axis] < scalar.as_value(list_element(t, level.list, cell, index).load()))
    return below, active


def _where_active(active: Value, write: Callable[[], Traced | None]) -> Traced | None:
    """Return the result of ``write``, if it has one; where ``active`` is false, it is not run, and 0 is the result."""
    models: list[Traced] = []

    def written() -> list[Value]:
        model = write()
        if model is not None:
            models.append(model)
        return [leaf for model in models for leaf in leaves(model)]

    values = emit_if(scalar.cast(active, u1), written, lambda: [scalar.constant(0, v.dtype) for model in models for v in leaves(model)])
    return rebuild(models[0], values) if models else None


def from_zero(field: ScalarField, indices: Sequence[Op]) -> list[Value]:
    """Return an index without the offset of its field."""
    values = [Value(i) for i in indices]
    return [v - o if o else v for v, o in zip(values, field.origin or (0,) * len(values))]


def check_index(field: ScalarField, given: Sequence[Op], index: Sequence[Value]) -> None:
    """Check, in debug mode, that an index is one of the field."""
    if not scalar.trace_of().options.debug:
        return
    inside: scalar.Scalar = True
    for value, extent in zip(index, field.shape):
        inside = scalar.bit_and(inside, (value >= 0) & (value < extent))
    shown = ", ".join([f"{{{k}}}" for k in range(len(given))])
    ranges = " x ".join([f"[{o}, {o + n})" for o, n in zip(field.origin or (0,) * len(given), field.shape)])
    message = f"index ({shown}) out of range of field `{field.name}`: {ranges}"
    scalar.emit_check("bounds", scalar.cast(inside, u1), message, [Value(op) for op in given[:FAULT_MAX_OPERANDS]])


def local(digits: Digits, index: Sequence[Value]) -> list[Value]:
    """Return the part of an index that these digits take."""
    return [_digit(part, index) for part in digits.parts]


def _digit(part: tuple[int, int, int], index: Sequence[Value]) -> Value:
    position, div, mod = part
    value = index[position]
    value = value if div == 1 else scalar.raw_div(value, div)
    return value if mod == 0 else scalar.raw_mod(value, mod)


def cell_of(t: Tracer, levels: Sequence[Level], index: Sequence[Value], activate: bool, cell: Value | None = None) -> Value | None:
    """Return the number of the cell that these levels lead to, in the region of the last `pointer` node; None if there is none among them.
    ``activate``: what is not active; else the number is NULL there. ``cell``: around the first level, if that is in none of the root.

    What an enclosing block has activated is active, unless the kernel deactivates cells, and is not looked up again."""
    key: Hashable = None
    if activate and levels and cell is None:
        function = len(t.real_functions.being_traced)  # of whose own blocks it can use values
        digits = tuple([(level.digits, level.number) for level in levels])  # fields with other index spaces have others
        key = (id(levels[-1].node), digits, function, *[_value_key(v.op, _KEY_DEPTH) for v in index])
        known = t.activated.get(key)
        if known is not None and t.b.is_open(known[1]) and not t.assumptions.holds(Deactivates()):
            return known[0]
    for level in levels:
        at = in_cell(cell, level.digits, index)
        if level.table is not None:
            include = activate and level.list is not None
            cell = _included_cell(t, level, at, index) if include else entry_of(t, level, at, index, activate)
        elif activate:
            set_bit(t, level, at, index)
    if key is not None:
        t.activated[key] = cell, t.b.block()
    return cell


def _value_key(op: Op, depth: int) -> Hashable:
    """Return a key that two operations share only if they have the same value: of integer arithmetic what it computes, down to some
    ``depth``."""
    if depth == 0 or op.code.effect != "pure" or not (isinstance(op.type, DType) and op.type.is_int):
        return id(op)
    return (op.code.name, op.type, op.attr, *[_value_key(a, depth - 1) for a in op.args])


def in_cell(cell: Value | None, digits: Digits, index: Sequence[Value]) -> list[Value]:
    """Return the part of an index that these digits take, in a cell of a region; None: in the region of the root."""
    return [*([] if cell is None else [cell]), *local(digits, index)]


def list_element(t: Tracer, entries: List, cell: Value | None, index: Sequence[Value]) -> Element:
    """Return the length of a list in ``cell``."""
    return hidden_element(t, entries.length, in_cell(cell, entries.digits, index))


def length_of(t: Tracer, outer: Sequence[Level], entries: List, index: Sequence[Value]) -> Value:
    """Return the length of a list. ``outer``: the levels above."""
    length = list_element(t, entries, cell_of(t, outer, index, False), index).load()
    return scalar.as_value(arithmetic.min(length, entries.limit))


def _check_cells(level: Level, enough: Value) -> None:
    message = f"{level.node} has memory for fewer active cells than the kernel activates: writes to the others are lost"
    scalar.emit_check("cells", enough, message)


def entry_of(t: Tracer, level: Level, at: Sequence[Value], index: Sequence[Value], activate: bool) -> Value:
    """Return the number of a cell, from its table; of `dynamic` nodes, of a chunk."""
    assert level.table is not None
    entry = hidden_element(t, level.table, at)
    number = scalar.as_value(entry.load())
    if not activate:
        return scalar.as_value(arithmetic.max(number, NULL))  # BUSY: it is being activated

    def activated() -> list[Value]:
        cell = call_own_function(t, _activated, _arguments(level, at, index), entry.ref)
        _check_cells(level, cell != OVERFLOW)
        return [cell]

    return emit_if(scalar.cast(number <= NULL, u1), activated, lambda: [number])[0]


def _included_cell(t: Tracer, level: Level, at: Sequence[Value], index: Sequence[Value]) -> Value:
    """Return the number of the chunk with the entry at ``index``, which the list is made to include."""
    entries = level.list
    assert entries is not None and level.table is not None
    order = [position for (position, _, _), _ in level.number]
    positions = [position for position, _, _ in level.digits.parts]
    arguments = _arguments(level, at, index)
    number = scalar.as_value(arguments["number"])
    arguments |= {
        "j": scalar.cast(index[entries.axis], i32),
        "position": len(at) - len(positions) + positions.index(entries.axis),
        "stride": scalar.constant(math.prod(extent for _, extent in level.number[order.index(entries.axis) + 1 :]), number.dtype),
    }
    del arguments["table"]
    chunk = call_own_function(t, _included, arguments, hidden_element(t, level.table, at).ref)
    _check_cells(level, chunk != OVERFLOW)
    return chunk


def _arguments(level: Level, at: Sequence[Value], index: Sequence[Value]) -> dict[str, object]:
    """Return what `_activated` takes."""
    assert level.region is not None
    number = number_of(level, index, level.region.home.dtype)
    return {"at": make([scalar.cast(v, i32) for v in at], (len(at),)), "number": number, "table": level.table, "region": level.region}


def number_of(level: Level, index: Sequence[Value], t: DType) -> Value:
    """Return the number of a cell, row by row; see `Level`. ``t``: a type that holds it."""
    total = scalar.constant(0, t)
    for part, extent in level.number:
        total = total * extent + scalar.cast(_digit(part, index), t)
    return total


def word_and_bit(t: Tracer, level: Level, at: Sequence[Value], index: Sequence[Value]) -> tuple[Element, Value]:
    """Return where the mask has the bit of a cell of a `bitmasked` node, and a word with that bit. ``at``: the mask."""
    assert level.mask is not None
    number = number_of(level, index, i32)
    word = hidden_element(t, level.mask, [*at, scalar.raw_div(number, WORD)])
    one = scalar.constant(1, u32)
    return word, one << scalar.cast(scalar.raw_mod(number, WORD), u32)


def set_bit(t: Tracer, level: Level, at: Sequence[Value], index: Sequence[Value]) -> None:
    """Activate a cell of a `bitmasked` node."""
    word, bit = word_and_bit(t, level, at, index)
    where((scalar.as_value(word.load()) & bit) == 0, lambda: word.atomic("or", bit))


def is_set(t: Tracer, level: Level, at: Sequence[Value], index: Sequence[Value]) -> Value:
    """Return whether a cell of a `bitmasked` node is active."""
    word, bit = word_and_bit(t, level, at, index)
    return (scalar.as_value(word.load()) & bit) != 0


def hidden_value(t: Tracer, field: ScalarField, at: Sequence[Value]) -> Value:
    """Return the value of a hidden field of scalars, see `hidden_element`."""
    return scalar.as_value(hidden_element(t, field, at).load())


def hidden_element(t: Tracer, field: ScalarField, at: Sequence[Value]) -> Element:
    """Return an element of a field as it is stored in a region: a hidden field, or one of the user's."""
    ref = field.refs()
    t.fields[ref] = field
    return Element(ref, [scalar.cast(v, i32).op for v in at])
