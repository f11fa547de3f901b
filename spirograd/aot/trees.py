"""Field trees of a module: their description, and their reconstruction with the same layout when the module is loaded.

A tree with sparse nodes is described as the user built it. Its regions (see `lang.data.regions`) and their hidden fields follow from it, in
the same order each time. The number of possible cells depends on the memory of the machine, and is part of the description.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from spirograd.aot.manifest import FieldRecord, MemoryRecord, NodeRecord, PlaceRecord, TreeRecord
from spirograd.base.errors import SpirogradRuntimeError, SpirogradValueError
from spirograd.lang.data.field import MatrixField, ScalarField, StructField
from spirograd.lang.data.nodes import KINDS, Dynamic, Place, SNode, Sparse, Tabled
from spirograd.lang.data.tree import FieldsBuilder, Tree
from spirograd.lang.matrix import make_host_element

# The attributes that lead from a field to its shadow of each role.
_SHADOWS = {"primal": (), "grad": ("grad",), "dual": ("dual",), "grad_dual": ("grad", "dual")}


class Trees:
    """The field trees that the kernels of a module use. They are numbered in the module, because numbers in a process differ from run to
    run."""

    def __init__(self) -> None:
        self._trees: list[Tree] = []  # as the user built them
        self._memory: list[Tree] = []  # those of them that have an allocation: of trees with sparse nodes, of their regions
        self._first: list[int] = []  # by tree: the number of its first allocation
        self._fields: list[ScalarField] = []
        self._keys: dict[int, int] = {}  # key of a field in this process -> in the module
        self._names: dict[str, ScalarField] = {}

    def add_field(self, name: str, field: object) -> None:
        """Give ``field`` a name in the module; members of a field of structs get names with a dot."""
        if isinstance(field, StructField):
            for key, member in field.members.items():
                self.add_field(f"{name}.{key}", member)
            return
        if not isinstance(field, ScalarField) or type(field) not in (ScalarField, MatrixField) or not field.placed:
            raise SpirogradValueError(f"`add_field` takes a field that has a place, got {field!r} for the name {name!r}")
        if self._names.get(name, field) is not field:
            raise SpirogradValueError(f"the module has a field called {name!r} already: give each field a name of its own")
        self.number_of_memory(field.tree)
        self._names[name] = field

    def number_of_memory(self, tree: Tree) -> int:
        """Return the number of the allocation of ``tree`` in the module, after adding the user's tree that contains it."""
        if tree not in self._memory:
            outer = tree.owner()
            assert outer is not None  # a field of it is being used
            self._trees.append(outer)
            self._first.append(len(self._memory))
            self._memory += _stored(outer)
            for field in _fields_of(outer):
                self._fields.append(field)
                self._keys.setdefault(field.key, len(self._keys))
        return self._memory.index(tree)

    def key_of(self, field: ScalarField) -> int:
        """Return the key of a field in the module."""
        return self._keys[field.key]

    def name_of(self, field: ScalarField) -> str:
        """Return the name of a field in messages of the module, with its number in the module if it is named by a number."""
        field.take_name()
        return re.sub(rf"^field{field.key}\b", f"field{self.key_of(field)}", field.name)

    def memory(self) -> tuple[MemoryRecord, ...]:
        """Return all allocations, by number."""
        return tuple([_memory(tree) for tree in self._memory])

    def trees(self) -> tuple[TreeRecord, ...]:
        """Return all trees that users built."""
        return tuple([TreeRecord(first, self._nodes(tree.root)) for tree, first in zip(self._trees, self._first)])

    def fields(self) -> tuple[FieldRecord, ...]:
        """Return all fields of the trees, including gradients, tangents and hidden fields of sparse nodes."""
        return tuple([self._record(field) for field in self._fields])

    def _record(self, field: ScalarField) -> FieldRecord:
        names = tuple(sorted([name for name, named in self._names.items() if named is field]))
        number, kind = self._memory.index(field.tree), "table" if field.hidden else "dense" if field.sparse_path is None else "cells"
        key, name, shapes = self.key_of(field), self.name_of(field), (field.shape, field.element_shape, tuple(field.origin))
        return FieldRecord(key, name, names, field.role, field.dtype, *shapes, number, field.addresses, kind)

    def _nodes(self, node: SNode) -> tuple[NodeRecord | PlaceRecord, ...]:
        return tuple([self._node(child) for child in node.nodes])

    def _node(self, node: SNode) -> NodeRecord | PlaceRecord:
        if isinstance(node, Place):
            return PlaceRecord(self._fields.index(node.field), node.component)
        region, cells = (node.cells_in, node.cells) if isinstance(node, Tabled) else (None, None)
        first, most = (0, 0) if region is None else (region.first, region.most)
        number, chunk = node.number if isinstance(node, Sparse) else 0, node.chunk if isinstance(node, Dynamic) else 0
        return NodeRecord(node.axes, node.extents, self._nodes(node), node.kind, number, chunk, first, most, cells)


def _stored(tree: Tree) -> Sequence[Tree]:
    """Return the trees that hold the memory of ``tree``."""
    return [tree] if tree.regions is None else tree.regions.trees


def _fields_of(tree: Tree) -> Iterable[ScalarField]:
    """Return the fields of a closed tree in an order that follows from its construction: the user's, then those of its regions."""
    parts = [tree] if tree.regions is None else [tree, *tree.regions.trees]
    return dict.fromkeys([place.field for part in parts for place in part.root.places])


def _memory(tree: Tree) -> MemoryRecord:
    """Return the initial allocation of ``tree``."""
    region = tree.region
    if region is None:
        return MemoryRecord(tree.nbytes)
    ledger, cells = region.first_sizes
    if tree is region.tree:
        return MemoryRecord(cells)
    return MemoryRecord(ledger, ((region.capacity.addresses.components[0], region.first),))


# --- made again ----------------------------------------------------------------------------------------------------------


def make_again(
    trees: Sequence[TreeRecord], memory: Sequence[MemoryRecord], records: Sequence[FieldRecord]
) -> tuple[list[Tree], list[ScalarField]]:
    """Reconstruct the described trees in the running session; return the owners of the allocations, and the fields. Raises
    SpirogradRuntimeError if they differ from the description."""
    primal = {r.key: _primal(r) for r in records if r.role == "primal" and r.kind != "table"}
    fields = [_shadow(primal.get(r.key), r) for r in records]
    owners: list[Tree] = []
    rebuilt: list[ScalarField] = []
    for tree in trees:
        builder = FieldsBuilder()
        _build(builder.tree.root, tree.nodes, records, fields)
        builder.tree.close()
        owners += _stored(builder.tree)
        rebuilt += _fields_of(builder.tree)
    for own, record in zip(owners, memory):
        if _memory(own) != record:
            nbytes = _memory(own).nbytes
            raise SpirogradRuntimeError(f"memory of the module has {record.nbytes} bytes, and {nbytes} as made again")
    for field, r in zip(rebuilt, records):
        if field.addresses != r.layout or field.shape != r.shape or field.hidden != (r.kind == "table"):
            raise SpirogradRuntimeError(f"field `{r.name}` of the module has another layout as made again")
    if (len(owners), len(rebuilt)) != (len(memory), len(records)):
        raise SpirogradRuntimeError("the module has other fields as made again")
    return owners, rebuilt


def _primal(record: FieldRecord) -> ScalarField:
    if not record.element_shape:
        return ScalarField(record.dtype, record.name)
    return MatrixField(record.element_shape, record.dtype, make_host_element, record.name)


def _shadow(primal: ScalarField | None, record: FieldRecord) -> ScalarField:
    field = _primal(record) if primal is None else primal  # the field of a gradient may be in no tree of the module
    for attribute in _SHADOWS[record.role]:
        field = getattr(field, attribute)
        if field is None:
            raise SpirogradRuntimeError(f"field `{record.name}` of the module has no {record.role}")
    return field


def _build(above: SNode, nodes: Sequence[NodeRecord | PlaceRecord], records: Sequence[FieldRecord], fields: Sequence[ScalarField]) -> None:
    for node in nodes:
        if isinstance(node, PlaceRecord):
            fields[node.field].place_components([node.component], above, records[node.field].origin)
        else:
            _build(_level(above, node), node.nodes, records, fields)


def _level(above: SNode, record: NodeRecord) -> SNode:
    """Return a node as described."""
    kind = KINDS[record.kind]
    options = {"cells": record.cells} if issubclass(kind, Tabled) else {}
    if issubclass(kind, Dynamic):
        options["chunk"] = record.chunk
    node = above.add_level(kind, record.axes, record.extents, **options)
    if isinstance(node, Sparse):
        node.number = record.number
    if isinstance(node, Tabled) and record.most:
        node.capacity = record.first, record.most
    return node
