"""Lists of `dynamic` nodes in kernels: `append`, `length` and `deactivate`, of a node or as methods of ``x[i]``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from spirograd.base.dtypes import i32, u1
from spirograd.base.wording import counted
from spirograd.lang import arithmetic, scalar
from spirograd.lang.data.field import Field, ScalarField, StructField
from spirograd.lang.data.nodes import Dynamic, Place, SNode
from spirograd.lang.data.regions import OVERFLOW, Path
from spirograd.lang.frontend.cell_activation import empty, list_index, sparse_node
from spirograd.lang.frontend.expressions import arguments
from spirograd.lang.frontend.indices import flat_index, index_values
from spirograd.lang.frontend.lvalues import Lvalue, StructElement
from spirograd.lang.frontend.sparse_elements import cell_of, entry_of, hidden_element, in_cell, length_of, list_element
from spirograd.lang.frontend.tracer import Tracer
from spirograd.lang.scalar import Value, type_error
from spirograd.lang.struct import Struct


class _List:
    """A list of the `dynamic` node that ``path`` leads to. ``index``: see `list_index`."""

    def __init__(self, t: Tracer, node: SNode, path: Path, index: Sequence[Value]) -> None:
        self._t, self._node, self._path, self._index = t, node, path, index

    def length(self) -> Value:
        """Return the number of entries."""
        entries = self._path.levels[-1].list
        assert entries is not None
        return length_of(self._t, self._path.levels[:-1], entries, self._index)

    def append_to(self, fields: Iterable[tuple[object, object]]) -> Value:
        """Add an entry, which is 0 but for values of some ``fields``, and return its number in the list."""
        t, node, index = self._t, self._node, self._index
        *outer, level = self._path.levels
        entries = level.list
        assert entries is not None
        around = cell_of(t, outer, index, True)
        number = scalar.as_value(list_element(t, entries, around, index).atomic("add", 1))
        fits = scalar.cast(number < entries.limit, u1)
        message = f"{node} has room for {entries.limit} entries in each list, and more were appended, which are lost; raise its `dimension`"
        scalar.emit_check("cells", fits, message)
        number = scalar.as_value(arithmetic.min(number, entries.limit - 1))
        entry = [number if axis == entries.axis else v for axis, v in enumerate(index)]
        cell = entry_of(t, level, in_cell(around, level.digits, entry), entry, True)
        cell = scalar.as_value(scalar.select(fits, cell, scalar.constant(OVERFLOW, i32)))
        at = in_cell(cell, self._path.digits, entry)
        for field, value in fields:
            _element(t, field, at).store(value)
        return number


class DynamicList(_List):
    """The list that ``x[i]`` names, for a ``field`` x of a `dynamic` node."""

    def __init__(self, t: Tracer, field: Field, node: SNode, path: Path, index: Sequence[Value]) -> None:
        super().__init__(t, node, path, index)
        self._field = field

    def __sg_describe__(self) -> str:
        return "a list of a `dynamic` node"

    def append(self, value: object) -> Value:
        """Add an entry, in which other fields of the node are 0, and return its number in the list."""
        return self.append_to([(self._field, value)])

    def deactivate(self) -> None:
        """Remove all entries."""
        empty(self._t, self._path, self._index)


METHODS = ("append", "length", "deactivate")


def list_at(t: Tracer, base: object, key: object = ()) -> DynamicList | None:
    """Return the list that ``base[key]`` names, with ``key`` () ``base``; None if it is none, but an element."""
    if not isinstance(base, Field) or not isinstance(base.snode.above, Dynamic):
        return None
    count = len(base.shape) - 1
    if len(flat_index(key)) != count:
        return None
    offsets = [o for axis, o in zip(base.snode.above.axis_numbers, base.origin) if axis not in base.snode.above.axes] or [0] * count
    node, path = sparse_node(base, "append")
    index = [Value(i) for i in index_values(key, count, base.name)]
    return DynamicList(t, base, node, path, list_index(node, [v - o if o else v for v, o in zip(index, offsets)]))


def append(t: Tracer, node: ast.Call) -> Value:
    """Trace ``append(node, index, value)``."""
    what, entries, (value,) = _list(t, node, "append", 1)
    fields = list({id(at.field): at.field for at in what.nodes if isinstance(at, Place) and at.field.role == "primal"}.values())
    values = list(value.entries.values()) if isinstance(value, Struct) else [value]
    if len(fields) != len(values):
        hint = "append a struct with a member for each field, or append to one of the fields: `k = x[i].append(value)`, then set others"
        given = counted(len(values), "value")
        raise type_error(f"`append` got {given} for an entry of {what}, which has {counted(len(fields), 'field')}", hint)

    return entries.append_to(zip(fields, values))


def length(t: Tracer, node: ast.Call) -> Value:
    """Trace ``length(node, index)``."""
    return _list(t, node, "length", 0)[1].length()


def _list(t: Tracer, node: ast.Call, name: str, more: int) -> tuple[SNode, _List, list[object]]:
    """Return the node and the list that the arguments of a call name; and its other arguments."""
    values, kwargs = arguments(t, node)
    t.at(node)
    if kwargs or len(values) != 2 + more:
        example = "sg.append(node, [i], value)" if more else "sg.length(node, [i])"
        raise type_error(f"`{name}` takes {2 + more} arguments, got {len(values) + len(kwargs)}", f"as in `{example}`")
    what, path = sparse_node(values[0], name)
    if not isinstance(what, Dynamic):
        raise type_error(f"`{name}` takes a `dynamic` node, not {what}", "make one with `.dynamic(axis, dimension)`")
    return what, _List(t, what, path, list_index(what, values[1])), values[2:]


def _element(t: Tracer, field: object, at: Sequence[Value]) -> Lvalue:
    """Return the entry of a field at ``at`` in its region."""
    if isinstance(field, StructField):
        return StructElement({name: _element(t, member, at) for name, member in field.members.items()}, field.make_value)
    assert isinstance(field, ScalarField)
    return hidden_element(t, field, at)
