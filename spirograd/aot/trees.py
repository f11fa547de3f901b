"""Field trees of a module: described when it is built, and made again, with the same layout, where it is loaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from spirograd.aot.manifest import FieldRecord, NodeRecord, PlaceRecord, TreeRecord
from spirograd.base.errors import SpirogradRuntimeError, SpirogradUnsupportedError, SpirogradValueError
from spirograd.ir.nodes import FieldRef, accesses_of
from spirograd.lang.data.field import MatrixField, ScalarField, StructField
from spirograd.lang.data.tree import FieldsBuilder, Place, SNode, Tree
from spirograd.lang.matrix import make_host_element

_DENSE = "give the kernels of the module dense fields or ndarrays"
# Which attributes lead from a field to its shadow of each role.
_SHADOWS = {"primal": (), "grad": ("grad",), "dual": ("dual",), "grad_dual": ("grad", "dual")}


class Trees:
    """The field trees that the kernels of a module use, with numbers of their own: those of the process differ from run to run."""

    def __init__(self) -> None:
        self._trees: list[Tree] = []
        self._fields: list[ScalarField] = []
        self._keys: dict[int, int] = {}  # key of a field in this process -> in the module
        self._names: dict[str, ScalarField] = {}

    def add_field(self, name: str, field: Any) -> None:
        """Give ``field`` a name in the module, and each member of a field of structs that of the member behind a dot."""
        if isinstance(field, StructField):
            for key, member in field.members.items():
                self.add_field(f"{name}.{key}", member)
            return
        if type(field) not in (ScalarField, MatrixField) or not field.placed:
            raise SpirogradValueError(f"`add_field` takes a field that has a place, got {field!r} for the name {name!r}")
        if self._names.get(name, field) is not field:
            raise SpirogradValueError(f"the module has a field called {name!r} already: give each field a name of its own")
        self.number_of_tree(field.tree)
        self._names[name] = field

    def number_of_tree(self, tree: Tree) -> int:
        """The number of ``tree`` in the module, to which it is added. Raises SpirogradUnsupportedError if it has sparse nodes."""
        if tree not in self._trees:
            if tree.regions is not None or tree.region is not None or any(_is_sparse(place.field) for place in tree.root.places):
                raise SpirogradUnsupportedError("a module of compiled kernels cannot hold sparse fields", None, _DENSE)
            self._trees.append(tree)
            for place in tree.root.places:
                if place.field not in self._fields:
                    self._fields.append(place.field)
                    self._keys.setdefault(place.field.key, len(self._keys))
        return self._trees.index(tree)

    def key_of(self, field: ScalarField) -> int:
        """The key of a field in the module."""
        return self._keys[field.key]

    def name_of(self, field: ScalarField) -> str:
        """What messages of the module call a field: by its number there if it goes by that of this process."""
        field.take_name()
        return re.sub(rf"^field{field.key}\b", f"field{self.key_of(field)}", field.name)

    def trees(self) -> tuple[TreeRecord, ...]:
        """All trees, by number."""
        return tuple([TreeRecord(tree.nbytes, self._nodes(tree.root)) for tree in self._trees])

    def fields(self) -> tuple[FieldRecord, ...]:
        """All fields of the trees, gradients and tangents included."""
        return tuple([self._record(field) for field in self._fields])

    def _record(self, field: ScalarField) -> FieldRecord:
        names = tuple(sorted([name for name, named in self._names.items() if named is field]))
        tree = self._trees.index(field.tree)
        return FieldRecord(
            self.key_of(field), self.name_of(field), names, field.role, field.dtype, field.shape, field.element_shape, tree, field.addresses
        )

    def _nodes(self, node: SNode) -> tuple[NodeRecord | PlaceRecord, ...]:
        return tuple(
            [
                PlaceRecord(self._fields.index(n.field), n.component)
                if isinstance(n, Place)
                else NodeRecord(n.axes, n.extents, self._nodes(n))
                for n in node.nodes
            ]
        )


def refuse_sparse(name: str, traced: Any) -> None:
    """Raise SpirogradUnsupportedError, with the line, if the kernel ``name`` uses sparse fields."""
    for op in traced.kernel.walk():
        for _, ref in accesses_of(op):
            if isinstance(ref, FieldRef) and _is_sparse(traced.fields[ref]):
                which = f"kernel `{name}` of a module uses the sparse field `{ref.name}`: modules cannot hold sparse fields"
                raise SpirogradUnsupportedError(which, op.loc, _DENSE)


def _is_sparse(field: ScalarField) -> bool:
    """Whether a field is below sparse nodes, or a table of one."""
    return field.sparse_node is not None or field.sparse_path is not None


def make_again(trees: Sequence[TreeRecord], records: Sequence[FieldRecord]) -> tuple[list[Tree], list[ScalarField]]:
    """Trees and fields like those that were described, in the running session. Raises SpirogradRuntimeError if they come out otherwise."""
    primal = {r.key: _primal(r) for r in records if r.role == "primal"}
    fields = [_shadow(primal.get(r.key), r) for r in records]
    made = []
    for tree in trees:
        builder = FieldsBuilder()
        _build(builder.tree.root, tree.nodes, records, fields)
        made.append(builder.tree)
    for own, record in zip(made, trees):
        own.close()
        if own.nbytes != record.nbytes:
            raise SpirogradRuntimeError(
                f"a field tree of the module has {record.nbytes} bytes, and {own.nbytes} as made again: it is damaged"
            )
    for field, r in zip(fields, records):
        if field.addresses != r.layout or field.shape != r.shape:
            raise SpirogradRuntimeError(f"field `{r.name}` of the module has another layout as made again: it is damaged")
    return made, fields


def _primal(record: FieldRecord) -> ScalarField:
    if not record.element_shape:
        return ScalarField(record.dtype, record.name)
    return MatrixField(record.element_shape, record.dtype, make_host_element, record.name)


def _shadow(primal: ScalarField | None, record: FieldRecord) -> ScalarField:
    field: Any = _primal(record) if primal is None else primal  # the field of a gradient may be in no tree of the module
    for attribute in _SHADOWS[record.role]:
        field = getattr(field, attribute)
    return field  # type: ignore[no-any-return]


def _build(above: SNode, nodes: Sequence[NodeRecord | PlaceRecord], records: Sequence[FieldRecord], fields: Sequence[ScalarField]) -> None:
    for node in nodes:
        if isinstance(node, PlaceRecord):
            fields[node.field].place_components([node.component], above, records[node.field].layout.origin)
        else:
            _build(above.dense(node.axes, node.extents), node.nodes, records, fields)
