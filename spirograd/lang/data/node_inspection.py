"""The properties of a node of a field tree under the names of the family: on the node, and on the object that it has as ``ptr``."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, cast

from spirograd.base.dtypes import DType
from spirograd.base.near_names import NearNames

if TYPE_CHECKING:
    from spirograd.lang.data.nodes import Place, SNode
    from spirograd.lang.data.scalar_field import ScalarField

_AXES = 12  # Positions of a node of the family.


class SNodeType(enum.IntEnum):
    """The kinds of nodes of field trees. There are no nodes of the last three."""

    __str__ = enum.Enum.__str__

    root = 0
    dense = 1
    dynamic = 2
    pointer = 3
    bitmasked = 4
    hash = 5
    place = 6
    bit_struct = 7
    quant_array = 8
    undefined = 9


class SNodeGradType(enum.IntEnum):
    """The contents of a place. There are no places for the last one."""

    __str__ = enum.Enum.__str__

    PRIMAL = 0
    ADJOINT = 1
    DUAL = 2
    ADJOINT_CHECKBIT = 3


_GRAD_TYPES = {"primal": SNodeGradType.PRIMAL, "grad": SNodeGradType.ADJOINT, "dual": SNodeGradType.DUAL}


class Inspected(NearNames):
    """Methods of nodes for programs that inspect them."""

    @property
    def ptr(self) -> NodePointer:
        """The node under the internal names of the family."""
        raise NotImplementedError

    def _get_children(self) -> list[SNode]:
        """Return the nodes right below this one."""
        return list(self.ptr._node.children)

    def _path_from_root(self) -> list[SNode]:
        """Return the nodes from the root to this one."""
        return self.ptr._node.path

    def _physical_index_position(self) -> dict[int, int]:
        """Return a map from the position of an index to the axis of the tree that it counts along."""
        return dict(enumerate(self.ptr._node.axis_numbers))

    @property
    def _id(self) -> int:
        return self.ptr.id

    @property
    def _name(self) -> str:
        return self.ptr.name()

    @property
    def _dtype(self) -> DType | None:
        return self.ptr.data_type()

    @property
    def _snode_tree_id(self) -> int:
        return self.ptr.get_snode_tree_id()

    @property
    def _in_memory(self) -> SNode:
        """Return the node that defines the layout of the cells: below sparse nodes a node of a region. Closes the tree."""
        self.ptr._node.tree.close()
        return self.ptr._node.memory_node

    @property
    def _cell_size_bytes(self) -> int:
        """Return the bytes of a cell, padding included; of the scalar of a place; of an entry of a list. Closes the tree."""
        node = self._in_memory
        return (node.nodes[0] if len(self.ptr._node.parts()) > 1 else node).cell_size

    @property
    def _offset_bytes_in_parent_cell(self) -> int:
        """Return the bytes from the beginning of the cell of the node above; 0 for nodes whose cells are not in it. Closes the tree."""
        node = self._in_memory
        return 0 if self.ptr._node.region_of_cells is not None else node.offset

    @property
    def _num_dynamically_allocated(self) -> int:
        """Return the number of cells with memory of their own: active cells of `pointer` and `hash` nodes, and chunks of lists."""
        self.ptr._node.tree.settle()
        region = self.ptr._node.region_of_cells
        return 0 if region is None else int(region.used[None] - region.free_count[None])


class NodePointer(NearNames):
    """A node to inspect; two objects of one node are equal.

    It changes nothing and reads no element, unlike fields: other names of the family raise AttributeError.
    """

    __slots__ = ("_node",)

    def __init__(self, node: SNode) -> None:
        self._node = node

    @property
    def _field(self) -> ScalarField:
        """Return the field in a place."""
        return cast("Place", self._node).field

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodePointer) and self._node is other._node

    def __hash__(self) -> int:
        return hash(id(self._node))

    def __sg_describe__(self) -> str:
        return "the `ptr` of a node of a field tree"

    @property
    def id(self) -> int:
        """A number that no other node of the process has."""
        return self._node.id

    @property
    def type(self) -> SNodeType:
        """The kind of the node."""
        return SNodeType[self._node.kind]

    @property
    def parent(self) -> NodePointer | None:
        """The node above; None above the root."""
        above = self._node.above
        return None if above is None else NodePointer(above)

    @property
    def offset(self) -> list[int]:
        """The smallest index of a place along each axis; empty if it is 0 along all."""
        return list(self._field.origin) if self.is_place() else []

    @property
    def cell_size_bytes(self) -> int:
        """The bytes of a cell, padding included; of the scalar of a place. Closes the tree."""
        return self._node._cell_size_bytes

    @property
    def offset_bytes_in_parent_cell(self) -> int:
        """The bytes from the beginning of the cell of the node above. Closes the tree."""
        return self._node._offset_bytes_in_parent_cell

    def name(self) -> str:
        """Return the name of the field in a place; empty for others."""
        return self._field.name if self.is_place() else ""

    def data_type(self) -> DType | None:
        """Return the type of the scalar in a place; None for others."""
        return self._node.dtype

    def get_num_ch(self) -> int:
        """Return the number of nodes right below."""
        return len(self._node.children)

    def get_ch(self, number: int) -> NodePointer:
        """Return one of the nodes right below. Raises IndexError for others."""
        return NodePointer(self._node.children[number])

    def get_snode_tree_id(self) -> int:
        """Return the number of the tree."""
        return self._node.tree.id

    def num_active_indices(self) -> int:
        """Return the number of indices of an element."""
        return len(self._node.axis_numbers)

    def get_physical_index_position(self) -> list[int]:
        """Return, for each position of an index, the axis of the tree that it counts along; -1 for missing positions."""
        axes = list(self._node.axis_numbers)
        return axes + [-1] * (_AXES - len(axes))

    def get_shape_along_axis(self, number: int) -> int:
        """Return the extent along the axis of index ``number``, down to here. Raises IndexError if there is no such index."""
        return self._node.shape[number]

    def is_place(self) -> bool:
        """Return whether scalars lie here."""
        return self._node.dtype is not None

    def is_primal(self) -> bool:
        """Return whether these are the scalars of a field, not gradients or tangents."""
        return self.is_place() and self._field.role == "primal"

    def has_adjoint(self) -> bool:
        """Return whether the field has a gradient."""
        return self.is_primal() and self._field.has_grad()

    def has_dual(self) -> bool:
        """Return whether the field has tangents."""
        return self.is_primal() and self._field.has_dual()

    def get_snode_grad_type(self) -> SNodeGradType:
        """Return the contents of a place. Raises TypeError for other nodes."""
        if not self.is_place():
            raise TypeError("only the place of a scalar has a type of gradient")
        return _GRAD_TYPES[self._field.role]
