"""Nodes of field trees: the effect of each kind of level on an index, and the layout of its cells.

A kind of node is a subclass of `SNode`, with a row in `KINDS` and a method of `SNode` that makes it. A dense level has axes and extents
only. A sparse one also defines the parts into which it divides an index (`parts`), its storage in the surrounding region (`store`), and the
lookup of an access (`level`): see `regions`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spirograd.base.dtypes import DType, i32, u32
from spirograd.base.errors import SpirogradCallError, SpirogradTypeError
from spirograd.base.once import one_at_a_time
from spirograd.lang import context
from spirograd.lang.data.node_inspection import Inspected, NodePointer
from spirograd.lang.data.regions import WORD, WORD_AXIS, CellRegion, Level, List, Part, PathWalk, Storage
from spirograd.lang.data.shapes import extents_along
from spirograd.lang.data.tree_layout import Digit, decode_of

if TYPE_CHECKING:
    from spirograd.lang.data.scalar_field import ScalarField
    from spirograd.lang.data.tree import Tree

_node_ids = itertools.count()


def _count(n: object, what: str) -> int:
    """Return ``n``, a positive integer, or raise an error."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise SpirogradTypeError(f"{what} is a positive integer, got {n!r}")
    return int(n)


class SNode(Inspected):
    """A node of a field tree, made by the methods of another one: the root, a dense or a sparse level, or the place of a scalar.

    ``shape``: extents down to here, one per axis in the order of axis numbers.
    """

    kind: str  # The name in messages and files.
    is_sparse = False  # Whether its cells may be inactive.
    # The hint if it has too many cells.
    division_hint = "divide the extents: among two nodes, one below the other, or with a `dense` node below"
    dtype: DType | None = None
    stored_node: SNode | None = None  # In trees with sparse nodes, once they are closed: the node in the region.
    _shape: tuple[int, ...] | None = None  # Once it was computed.

    def __init__(self, tree: Tree, above: SNode | None, axes: tuple[int, ...] = (), extents: tuple[int, ...] = ()) -> None:
        self.id = next(_node_ids)
        self.tree = tree
        self.above = above
        self.axes = axes
        self.extents = extents
        self.nodes: list[SNode] = []
        self.offset = 0  # Bytes within the parent's cell.
        self.cell_size = 0  # In bytes.

    @property
    def ptr(self) -> NodePointer:
        return NodePointer(self)

    @property
    def children(self) -> Sequence[SNode]:
        """The nodes right below this one."""
        return self.nodes

    # --- building ---

    def dense(self, axes: int | Iterable[int], shape: object) -> SNode:
        """Add a dense level below this node: ``shape`` cells along ``axes`` (``ij``, the last fastest). A single int counts for
        every axis. A level without axes has one cell."""
        return self.add_level(Dense, axes, shape)

    def pointer(self, axes: int | Iterable[int], shape: object, cells: int | None = None) -> SNode:
        """Add a level whose cells have memory only where they are active. A write to a cell activates it.

        ``axes``, ``shape``: the arguments of `dense`. ``cells``: the most active cells at a time; by default all, or as many as fit in 1
        GiB. Raises SpirogradTypeError for invalid numbers.
        """
        return self.add_level(Pointer, axes, shape, cells=_cells(cells, "pointer"))

    def bitmasked(self, axes: int | Iterable[int], shape: object) -> SNode:
        """Add a level with memory for all its cells, and one activity bit for each. A write to a cell activates it.

        ``axes``, ``shape``: the arguments of `dense`.
        """
        return self.add_level(Bitmasked, axes, shape)

    def hash(self, axes: int | Iterable[int], shape: object, cells: int | None = None) -> SNode:
        """Add the same level as `pointer`, with the same ``axes``, ``shape`` and ``cells``. There is no hash table, but a table with
        4 bytes for each cell."""
        return self.add_level(Hash, axes, shape, cells=_cells(cells, "pointer"))

    def dynamic(self, axis: int | Iterable[int], dimension: int, chunk_size: int | None = None, cells: int | None = None) -> SNode:
        """Add a list of up to ``dimension`` entries in each cell of this node, along an axis that no other node has.

        `append` makes it longer, and so does a write beyond its end. Memory is allocated in chunks of ``chunk_size`` entries, all by
        default. ``cells``: the most chunks in use at a time; by default all, or as many as fit in 1 GiB. Raises SpirogradTypeError for
        numbers below 1, and for an axis of a node above.
        """
        capacity = _count(dimension, "the dimension of a dynamic node")
        chunk = capacity if chunk_size is None else min(_count(chunk_size, "`chunk_size` of a dynamic node"), capacity)
        return self.add_level(Dynamic, axis, capacity, cells=_cells(cells, "dynamic"), chunk=chunk)

    @one_at_a_time
    def add_level(self, kind: type[SNode], axes: int | Iterable[int], shape: object, **options: int | None) -> SNode:
        """Add a level of ``kind`` below this node.

        ``axes``, ``shape``: the arguments of `dense`. ``options``: other arguments of its constructor. Raises SpirogradTypeError for axes
        that are not distinct, or that a list above has.
        """
        self.tree.check_open()
        numbers = (int(axes),) if isinstance(axes, (int, np.integer)) else tuple(int(a) for a in axes)
        if len(set(numbers)) != len(numbers) or min(numbers, default=0) < 0 or (kind.is_sparse and not numbers):
            and_some = " and at least one" if kind.is_sparse else ""
            raise SpirogradTypeError(f"the axes of a {kind.kind} node are distinct{and_some}, got {axes!r}")
        listed = next((a for at in self.path if isinstance(at, Dynamic) for a in at.axes if a in numbers), None)
        if listed is not None:
            raise SpirogradTypeError(f"axis {listed} counts the entries of a dynamic node above: no other node can have it")
        node = kind(self.tree, self, numbers, extents_along(kind.kind, numbers, shape), **options)
        self.nodes.append(node)
        return node

    def deactivate_all(self) -> None:
        """Deactivate all cells of this node if it is sparse, else of the sparse nodes below it; lists become empty. Stored values read as
        0."""
        self.tree.deactivate(self)

    @one_at_a_time
    def place(self, *fields: object, offset: object = None) -> SNode:
        """Place fields in the cells of this node, side by side. Return this node.

        ``offset``: the smallest index of each axis (0). Raises SpirogradRuntimeError if a field has a place already, or the tree is closed;
        SpirogradTypeError for other objects.
        """
        self.tree.check_open()
        context.refuse_batch("fields that are placed by hand are not of a batch", "`sg.field(sg.f32, shape)`, without `place`")
        for f in fields:
            if isinstance(f, (list, tuple)):
                self.place(*f, offset=offset)
                continue
            if not hasattr(f, "place_in"):
                raise SpirogradTypeError(f"`place` takes fields, got {type(f).__name__}")
            f.place_in(self, self._origin(offset))
        return self

    def _origin(self, offset: object) -> tuple[int, ...]:
        ndim = len(self.axis_numbers)
        if offset is None:
            return ()
        origin = tuple(offset) if isinstance(offset, (tuple, list, np.ndarray)) else (offset,)
        if len(origin) != ndim or not all(isinstance(o, (int, np.integer)) for o in origin):
            raise SpirogradCallError(f"`offset` needs one integer for each of {ndim} axes, got {offset!r}")
        return tuple(int(o) for o in origin)

    def add_place(self, field: ScalarField, component: int, dtype: DType) -> Place:
        """Add a place for the scalar number ``component`` of ``field`` to the cells of this node."""
        node = Place(self.tree, self, field, component, dtype)
        self.nodes.append(node)
        return node

    def lazy_grad(self) -> None:
        """Place the gradients of all fields below this node next to the fields."""
        self._lazy("grad")

    def lazy_dual(self) -> None:
        """Place the duals (tangents) of all fields below this node next to the fields."""
        self._lazy("dual")

    @one_at_a_time
    def _lazy(self, role: str) -> None:
        self.tree.check_open()
        for node in list(self.nodes):
            if not isinstance(node, Place):
                node._lazy(role)
        shadows = []
        for field, origin in {id(n.field): (n.field, n.field.origin) for n in self.nodes if isinstance(n, Place)}.values():
            shadow = field.grad if role == "grad" else field.dual
            if field.role == "primal" and shadow is not None and not shadow.placed and shadow not in shadows:
                shadows.append(shadow)
                shadow.place_in(self, origin)

    # --- queries ---

    def parent(self, n: int = 1) -> SNode | None:
        """Return the node ``n`` levels up; None above the root."""
        node: SNode | None = self
        for _ in range(n):
            node = node.above if node is not None else None
        return node

    @property
    def path(self) -> list[SNode]:
        """The nodes from the root to this one."""
        out: list[SNode] = [self]
        while out[-1].above is not None:
            out.append(out[-1].above)
        return out[::-1]

    @property
    def axis_numbers(self) -> tuple[int, ...]:
        """The tree axes that indices of what lies here stand for, in order."""
        return tuple(sorted({a for node in self.path for a in node.axes}))

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents down to here, one per axis in the order of axis numbers."""
        if self._shape is None:  # A tape asks at each launch; the nodes above a node never change.
            path = self.path
            extents = ([e for node in path for a, e in zip(node.axes, node.extents) if a == axis] for axis in self.axis_numbers)
            self._shape = tuple(math.prod(axis_extents) for axis_extents in extents)
        return self._shape

    @property
    def places(self) -> Iterator[Place]:
        """Return all places below, in memory order."""
        for node in self.nodes:
            if isinstance(node, Place):
                yield node
            else:
                yield from node.places

    def move_to(self, tree: Tree) -> None:
        """Move this node, with all nodes below it, to ``tree``."""
        self.tree = tree
        for node in self.nodes:
            node.move_to(tree)

    def decode(self) -> list[Digit]:
        """Return the digits (axis, div, mod, mul), slowest first, that turn a loop counter into the index of a cell, in memory order.

        ``index[axis] = sum((counter // div % mod) * mul)``; mod 0 means no modulo.
        """
        return decode_of(self.path, self.axis_numbers)

    # --- storage, of trees with sparse nodes ---

    @property
    def has_sparse(self) -> bool:
        """Return whether this node, or one below it, is sparse."""
        return self.is_sparse or any(child.has_sparse for child in self.nodes)

    def parts(self) -> list[Part]:
        """Return what this node does to an index."""
        return [Part(self, self.axes, self.extents)]

    def store(self, into: SNode, storage: Storage) -> None:
        """Store the cells of this node, and the nodes below it, in the node ``into`` of a region, with ``storage``."""
        self.stored_node = into.dense(_region_axes(self.axes), self.extents)
        storage.store_below(self, self.stored_node)

    def level(self, walk: PathWalk) -> Level | None:
        """Return what an access along the path ``walk`` looks up at this node; None if its cells are always active."""
        return None

    @property
    def region_of_cells(self) -> CellRegion | None:
        """The region with the cells, or the chunks of the lists; None before the tree is closed, and for nodes without one of their own."""
        return None

    @property
    def memory_node(self) -> SNode:
        """Return the node that defines the layout of the cells in memory."""
        return self.stored_node or self

    def bytes_around(self) -> int:
        """Return about how many bytes it takes in a cell of the node above, without the cells of sparse nodes."""
        return math.prod(self.extents) * self.bytes_below()

    def bytes_below(self) -> int:
        """Return about how many bytes a cell takes, without the cells of sparse nodes below."""
        return sum([child.bytes_around() for child in self.nodes])

    def __sg_describe__(self) -> str:
        return "a node of a field tree"

    def __repr__(self) -> str:
        return " => ".join(node._label() for node in self.path)

    def _label(self) -> str:
        return f"{self.kind} {list(self.shape)}" if self.above is not None else "root"


class Root(SNode):
    """The root of one tree. The roots of all trees that `root` began are equal to it, and to each other."""

    kind = "root"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Root):
            return self.tree.divisible and other.tree.divisible
        return self.tree.is_begun_by(other)

    def __hash__(self) -> int:
        return hash(None if self.tree.divisible else self.tree.id)


class Dense(SNode):
    """A level whose cells all exist."""

    kind = "dense"


class Sparse(SNode):
    """A level whose cells may be inactive. ``number``: its number in its tree."""

    is_sparse = True

    def __init__(self, tree: Tree, above: SNode, axes: tuple[int, ...], extents: tuple[int, ...]) -> None:
        super().__init__(tree, above, axes, extents)
        self.number = tree.next_number()

    def hidden(self, storage: Storage, dtype: DType, name: str) -> ScalarField:
        """Return a field of the region that only the language sees."""
        return storage.hidden(dtype, f"{self.kind}{self.number}.{name}")


class Bitmasked(Sparse):
    """A level with memory for all its cells, and a mask, one bit for each cell."""

    kind = "bitmasked"
    mask: ScalarField | None = None  # The hidden field, once the tree is closed.

    def store(self, into: SNode, storage: Storage) -> None:
        self.mask = self.hidden(storage, u32, "mask")
        into.dense(WORD_AXIS, -(-math.prod(self.extents) // WORD)).place(self.mask)
        super().store(into, storage)

    def level(self, walk: PathWalk) -> Level:
        extents = dict(zip(self.axes, self.extents))
        own = walk.digits(walk.depth, walk.depth).parts
        numbered = tuple([(digit, extents[walk.field_axes[digit[0]]]) for digit in own])
        return Level(self, walk.digits(walk.start, walk.depth - 1), numbered, walk.digits(walk.start, walk.depth), mask=self.mask)


class Tabled(Sparse):
    """A level whose cells are in a region of their own, and have their numbers in a table of the surrounding region.

    ``cells``: the most active cells; None: all, or as many as fit. ``capacity``: the first and the largest number of cells, as `Region`
    counts them, if they are given.
    """

    arguments = "axes, shape"  # Name of the method that makes it.
    table: ScalarField | None = None  # The hidden field, once the tree is closed.
    cells_in: CellRegion | None = None
    capacity: tuple[int, int] | None = None

    def __init__(self, tree: Tree, above: SNode, axes: tuple[int, ...], extents: tuple[int, ...], cells: int | None = None) -> None:
        super().__init__(tree, above, axes, extents)
        self.cells = cells

    def parts(self) -> list[Part]:
        return [Part(self, self.axes, self.extents, in_region=True)]

    def store(self, into: SNode, storage: Storage) -> None:
        table, *inside = [part.extents for part in self.parts()]
        axes = _region_axes(self.axes)
        self.table = self.hidden(storage, i32, "table")
        self.table.sparse_node = self
        into.dense(axes, table).place(self.table)
        self.cells_in = storage.region_of(self)
        cells = self.cells_in.cells
        storage.store_below(self, cells.dense(axes, inside[0]) if inside else cells)

    def level(self, walk: PathWalk) -> Level | None:
        if not walk.part.in_region:
            return None
        digits = walk.digits(walk.start, walk.depth)
        return Level(self, digits, walk.numbered(), digits, table=self.table, region=self.cells_in, list=self.list_at(walk))

    def list_at(self, walk: PathWalk) -> List | None:
        """Return the list that the cells belong to, if they are its chunks."""
        return None

    @property
    def region_of_cells(self) -> CellRegion | None:
        return self.cells_in

    @property
    def memory_node(self) -> SNode:
        return super().memory_node if self.cells_in is None else self.cells_in.cells

    def bytes_around(self) -> int:
        return 4 * math.prod(self.parts()[0].extents)


class Pointer(Tabled):
    """A level whose cells have memory only where they are active."""

    kind = "pointer"


class Hash(Tabled):
    """The same as `Pointer`, under another name of the family."""

    kind = "hash"


class Dynamic(Tabled):
    """Lists along one axis. Its cells are chunks, of ``chunk`` entries each."""

    kind = "dynamic"
    arguments = "axis, dimension"
    division_hint = "have larger chunks: `chunk_size`"
    length: ScalarField | None = (
        None  # The hidden field, once the tree is closed: more than the capacity if too many entries were appended.
    )

    def __init__(
        self, tree: Tree, above: SNode, axes: tuple[int, ...], extents: tuple[int, ...], cells: int | None = None, chunk: int = 0
    ) -> None:
        super().__init__(tree, above, axes, extents, cells)
        if len(axes) != 1 or axes[0] in above.axis_numbers:
            hint = "as in `.dynamic(sg.j, 100)` below `sg.i`"
            raise SpirogradTypeError("a dynamic node has one axis, which no node above it has", None, hint)
        self.chunk = chunk

    def parts(self) -> list[Part]:
        """Return the two parts of an index: the chunks, and the entries of each."""
        chunks = -(-self.extents[0] // self.chunk)
        return [Part(self, self.axes, (chunks,), in_region=True), Part(self, self.axes, (self.chunk,))]

    def store(self, into: SNode, storage: Storage) -> None:
        self.length = self.hidden(storage, i32, "length")
        into.place(self.length)
        super().store(into, storage)

    def list_at(self, walk: PathWalk) -> List:
        around, own = walk.digits(walk.start, walk.depth - 1), walk.field_axes.index(self.axes[0])
        assert self.length is not None
        return List(self.length, around, own, self.extents[0], self.chunk)


class Place(SNode):
    """The place of one scalar of a field."""

    kind = "place"

    def __init__(self, tree: Tree, above: SNode, field: ScalarField, component: int, dtype: DType) -> None:
        super().__init__(tree, above)
        self.field = field
        self.component = component
        self.dtype: DType = dtype
        self.stored_node: Place | None = None

    def store(self, into: SNode, storage: Storage) -> None:
        self.stored_node = into.add_place(self.field, self.component, self.dtype)

    def bytes_around(self) -> int:
        return self.dtype.size

    @property
    def byte_offset(self) -> int:
        """The bytes from the start of the tree to element 0."""
        return sum(node.offset for node in self.path)


# The kinds of levels, by their names in files.
KINDS: dict[str, type[SNode]] = {kind.kind: kind for kind in (Dense, Pointer, Hash, Bitmasked, Dynamic)}


def _region_axes(axes: Sequence[int]) -> list[int]:
    """Return the axes of a region that stand for ``axes``: its first axis counts the cells."""
    return [axis + 1 for axis in axes]


def _cells(cells: object, kind: str) -> int | None:
    """Return the option ``cells`` of a node, if it is given."""
    return None if cells is None else _count(cells, f"`cells` of a {kind} node")
