"""Trees of nodes that say how fields lie in memory: ``root.dense(ij, (4, 8)).place(x, y)``.

A tree is open while nodes and fields are added, and closes when one of its fields is used for the first time (or by `finalize`). Then
its layout is fixed and its memory, all zeros, is allocated. What is placed under `root` afterwards forms a new tree. If there is no memory
for all that was placed under `root`, its nodes become trees of their own, so that only fields that are too large cannot be used.

Each thread has a tree under `root` of its own. Nodes are added, trees are closed and get their memory under the lock of `base.once`.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.errors import (
    OutOfDeviceMemory,
    SpirogradCallError,
    SpirogradRuntimeError,
    SpirogradTypeError,
)
from spirograd.base.near_names import NearNames
from spirograd.base.once import one_at_a_time
from spirograd.lang import context
from spirograd.lang.data.node_inspection import Inspected
from spirograd.lang.data.regions import Region, Regions, is_sparse, is_sparse_kind, make_regions
from spirograd.lang.data.shapes import extents_along
from spirograd.lang.data.tree_layout import Digit, assign_offsets, decode_of

_tree_ids = itertools.count(1)
_node_ids = itertools.count()
_NAMED = 4  # fields in a message
_sparse_trees: weakref.WeakSet[Tree] = weakref.WeakSet()
with_memory: weakref.WeakSet[Tree] = weakref.WeakSet()


def _count(n: Any, what: str) -> int:
    """``n``, a positive integer."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise SpirogradTypeError(f"{what} is a positive integer, got {n!r}")
    return int(n)


class SNode(Inspected):
    """A node of a field tree, made by the methods of another one: the root, a dense or a sparse level, or the place of a scalar.

    ``shape``: extents down to here, one per axis in the order of axis numbers.
    """

    # Of sparse nodes, and of places below them, once the tree is closed: see `regions`.
    number = 0
    cells: int | None = None
    capacity: tuple[int, int] | None = None  # cells at first and at most, as `Region` counts them, if that is given
    table: Any = None
    mask: Any = None
    length: Any = None
    chunk = 0  # entries in each chunk of the lists of a `dynamic` node
    cells_in: Any = None
    stored_node: SNode | None = None

    kind = "dense"
    dtype: DType | None = None
    _shape: tuple[int, ...] | None = None  # once it was computed

    def __init__(self, tree: Tree, above: SNode | None, axes: tuple[int, ...] = (), extents: tuple[int, ...] = ()) -> None:
        self.id = next(_node_ids)
        self.tree = tree
        self.above = above
        self.axes = axes
        self.extents = extents
        self.nodes: list[SNode] = []
        self.offset = 0  # bytes within the parent's cell
        self.cell_size = 0  # bytes

    @property
    def children(self) -> Sequence[SNode]:
        """The nodes right below this one."""
        return self.nodes

    # --- building ---

    def dense(self, axes: Any, shape: Any) -> SNode:
        """A dense level below this node: ``shape`` (an int counts for every axis) cells along ``axes`` (``ij``, the last fastest)."""
        return self._level("dense", axes, shape)

    def pointer(self, axes: Any, shape: Any, cells: int | None = None) -> SNode:
        """A level whose cells have memory only where they are active. A write to a cell activates it. ``axes``, ``shape``: as of `dense`.

        ``cells``: how many may be active at a time; by default all, or as many as take 1 GiB. Raises SpirogradTypeError for no such number.
        """
        found = None if cells is None else _count(cells, "`cells` of a pointer node")
        node = self._level("pointer", axes, shape)
        node.cells = found
        return node

    def bitmasked(self, axes: Any, shape: Any) -> SNode:
        """A level with memory for all its cells, and one bit for each that tells whether it is active. A write to a cell activates it.

        ``axes``, ``shape``: as of `dense`.
        """
        return self._level("bitmasked", axes, shape)

    def hash(self, axes: Any, shape: Any, cells: int | None = None) -> SNode:
        """As `pointer`, with the same ``axes``, ``shape`` and ``cells``: there is no hash table, but a table with 4 bytes for each cell."""
        node = self.pointer(axes, shape, cells)
        node.kind = "hash"
        return node

    def dynamic(self, axis: Any, dimension: int, chunk_size: int | None = None, cells: int | None = None) -> SNode:
        """A list of up to ``dimension`` entries in each cell of this node, along an axis that no other node has. `append` makes it longer,
        and so does a write beyond its end. Memory comes in chunks of ``chunk_size`` entries, all by default.

        ``cells``: how many chunks may be in use at a time; by default all, or as many as take 1 GiB. Raises SpirogradTypeError for numbers
        below 1, and for an axis that a node above has.
        """
        capacity = _count(dimension, "the dimension of a dynamic node")
        chunk = capacity if chunk_size is None else min(_count(chunk_size, "`chunk_size` of a dynamic node"), capacity)
        found = None if cells is None else _count(cells, "`cells` of a dynamic node")
        node = self._level("dynamic", axis, capacity)
        if len(node.axes) != 1 or node.axes[0] in self.axis_numbers:
            self.nodes.remove(node)
            hint = "as in `.dynamic(sg.j, 100)` below `sg.i`"
            raise SpirogradTypeError("a dynamic node has one axis, which no node above it has", None, hint)
        node.chunk, node.cells = chunk, found
        return node

    @one_at_a_time
    def _level(self, kind: str, axes: Any, shape: Any) -> SNode:
        self.tree.check_open()
        numbers = (int(axes),) if isinstance(axes, (int, np.integer)) else tuple(int(a) for a in axes)
        if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0:
            raise SpirogradTypeError(f"the axes of a {kind} node are distinct and at least one, got {axes!r}")
        listed = next((a for at in self.path if at.kind == "dynamic" for a in at.axes if a in numbers), None)
        if listed is not None:
            raise SpirogradTypeError(f"axis {listed} counts the entries of a dynamic node above: no other node can have it")
        node = SNode(self.tree, self, numbers, extents_along(kind, numbers, shape))
        if kind != "dense":
            node.kind, node.number = kind, self.tree.next_number()
        return self._add(node)

    def deactivate_all(self) -> None:
        """Deactivate all cells of this node if it is sparse, else of the sparse nodes below it; lists are empty then. What is stored there
        reads as 0."""
        self.tree.deactivate(self)

    def _add(self, node: SNode) -> SNode:
        self.nodes.append(node)
        return node

    @one_at_a_time
    def place(self, *fields: Any, offset: Any = None) -> SNode:
        """Put fields into the cells of this node, side by side. ``offset``: the smallest index of each axis (0). Returns this node.

        Raises SpirogradRuntimeError if a field has a place already, or the tree is closed; SpirogradTypeError for what is no field.
        """
        self.tree.check_open()
        for f in fields:
            if isinstance(f, (list, tuple)):
                self.place(*f, offset=offset)
                continue
            if not hasattr(f, "place_in"):
                raise SpirogradTypeError(f"`place` takes fields, got {type(f).__name__}")
            f.place_in(self, self._origin(offset))
        return self

    def _origin(self, offset: Any) -> tuple[int, ...]:
        ndim = len(self.axis_numbers)
        if offset is None:
            return ()
        origin = tuple(offset) if isinstance(offset, (tuple, list, np.ndarray)) else (offset,)
        if len(origin) != ndim or not all(isinstance(o, (int, np.integer)) for o in origin):
            raise SpirogradCallError(f"`offset` needs one integer for each of {ndim} axes, got {offset!r}")
        return tuple(int(o) for o in origin)

    def add_place(self, field: Any, component: int, dtype: DType) -> Place:
        """A place for the scalar number ``component`` of ``field`` in the cells of this node."""
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
        """The node ``n`` levels up; None above the root."""
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
        if self._shape is None:  # a tape asks at each launch; of a node, what is above it stays the same
            path = self.path
            extents = ([e for node in path for a, e in zip(node.axes, node.extents) if a == axis] for axis in self.axis_numbers)
            self._shape = tuple(math.prod(found) for found in extents)
        return self._shape

    @property
    def places(self) -> Iterator[Place]:
        """All places below, in memory order."""
        for node in self.nodes:
            if isinstance(node, Place):
                yield node
            else:
                yield from node.places

    def move_to(self, tree: Tree) -> None:
        """Belong to ``tree``, with all that is below."""
        self.tree = tree
        for node in self.nodes:
            node.move_to(tree)

    def decode(self) -> list[Digit]:
        """Digits (axis, div, mod, mul), slowest first, that turn a loop counter into the index of a cell, in memory order:
        ``index[axis] = sum((counter // div % mod) * mul)``, mod 0 meaning no modulo."""
        return decode_of(self.path, self.axis_numbers)

    def __sg_describe__(self) -> str:
        return "a node of a field tree"

    def __repr__(self) -> str:
        return " => ".join(node._label() for node in self.path)

    def _label(self) -> str:
        return f"{self.kind} {list(self.shape)}" if self.above is not None else "root"


class Root(SNode):
    """The root of one tree. Those of all trees that `root` began are equal to it, and to each other."""

    kind = "root"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, FieldsBuilder):
            return self.tree is other.tree or (isinstance(other, GlobalRoot) and self.tree.divisible)
        return isinstance(other, Root) and self.tree.divisible and other.tree.divisible

    def __hash__(self) -> int:
        return hash(None if self.tree.divisible else self.tree.id)


class Place(SNode):
    """Where one scalar of a field lies."""

    kind = "place"

    def __init__(self, tree: Tree, above: SNode, field: Any, component: int, dtype: DType) -> None:
        super().__init__(tree, above)
        self.field = field
        self.component = component
        self.dtype = dtype
        self.stored_node: Place | None = None  # of trees with sparse nodes: the place in the region

    @property
    def byte_offset(self) -> int:
        """Bytes from the start of the tree to element 0."""
        return sum(node.offset for node in self.path)


class Tree(NearNames):
    """A tree of nodes and the memory of its fields. ``id`` is unique in the process. ``divisible``: see `settle`."""

    def __init__(self, divisible: bool = False) -> None:
        self.id = next(_tree_ids)
        self.divisible = divisible
        self.root = Root(self, None)
        self.closed = False
        self.settled = False  # closed, and divided if need be
        self.next: Tree | None = None  # open: has the nodes that had no fields when this tree was closed
        self.nbytes = 0
        self.regions: Regions | None = None  # of a tree with sparse nodes, once it is closed
        self.region: Region | None = None  # whose cells, or ledger, it has
        self.whole: weakref.ref[Tree] = weakref.ref(self)  # the user's tree that it is a part of
        self._numbers = 0  # sparse nodes so far
        # What was compiled for fields of this tree, which goes with them: objects with a method `release`.
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._allocation: Any = None
        self._session: Any = None
        self._destroyed = False

    def __repr__(self) -> str:
        return f"<field tree {self.id}, {self.nbytes} bytes>" if self.closed else f"<open field tree {self.id}>"

    def next_number(self) -> int:
        """A number for a sparse node."""
        self._numbers += 1
        return self._numbers

    def check_open(self) -> None:
        if self.closed:
            raise SpirogradRuntimeError(
                "this field tree is closed: one of its fields has been used, or `finalize` was called; start a new one with "
                "`sg.root` or `sg.FieldsBuilder()`"
            )

    @one_at_a_time
    def close(self) -> None:
        """Fix the layout. Raises SpirogradRuntimeError for gradients that were asked for and never placed."""
        if self.closed:
            return
        for place in self.root.places:
            place.field.check_shadows()
        if is_sparse(self.root) and next(self.root.places, None) is not None:
            self.regions = make_regions(self)
            self.nbytes = sum([tree.nbytes for tree in self.regions.trees])
            _sparse_trees.add(self)
        else:
            self.nbytes = assign_offsets(self.root, is_root=True)[0]
        self.closed = True

    def deactivate(self, node: SNode) -> None:
        """Deactivate all cells of ``node`` if it is sparse, else of the sparse nodes below it."""
        self.settle()
        if self.regions is None:
            return
        if is_sparse_kind(node):
            context.services().deactivate_cells(node)
        else:
            for child in node.nodes:
                self.deactivate(child)

    def settle(self) -> None:
        """Close the tree before its fields are used. If there is no memory for all of them, and the tree is ``divisible``, each node below
        the root that can do with an allocation of its own gets a tree of its own."""
        if not self.settled:
            self._settle()

    @one_at_a_time
    def _settle(self) -> None:
        if not self.closed:
            if self.divisible:
                self._leave_unfinished()
            self.close()
            self._divide()
        self.settled = True

    def _leave_unfinished(self) -> None:
        """Have the nodes that no field was placed in yet, such as another thread is building, in a tree that stays open."""
        unfinished = [node for node in self.root.nodes if not isinstance(node, Place) and next(node.places, None) is None]
        if unfinished:
            self.next = Tree(divisible=True)
            self.root.nodes = [node for node in self.root.nodes if node not in unfinished]
            self.next._numbers = self._numbers
            self.next.root.nodes = unfinished
            for node in unfinished:
                node.above = self.next.root
                node.move_to(self.next)

    def _divide(self) -> None:
        """Give the memory to one tree, or to several."""
        if self.regions is not None:
            return
        groups = _separable(self.root.nodes) if self.divisible and context.has_session() else []
        if len(groups) < 2:
            return
        try:
            self._allocate()
        except OutOfDeviceMemory:
            for nodes in groups[1:]:
                Tree(divisible=True)._adopt(nodes)
            self._adopt(groups[0])

    def _adopt(self, nodes: Sequence[SNode]) -> None:
        """Have these nodes below the root, and no others."""
        self.root.nodes = list(nodes)
        for node in nodes:
            node.above = self.root
            node.move_to(self)
        self.nbytes = assign_offsets(self.root, is_root=True)[0]
        self.closed = True

    @one_at_a_time
    def _allocate(self) -> None:
        if self._allocation is not None:  # another thread was here first
            return
        session = context.session()
        try:
            region = self.region
            allocation = session.field_memory(max(self.nbytes, 1)) if region is None else region.memory(session)[self.id]
        except OutOfDeviceMemory as error:
            fields = list({id(place.field): place.field for place in self.root.places}.values())
            for field in fields:
                field.take_name()
            names = ", ".join([f"`{field.name}`" for field in fields[:_NAMED]]) + (" ..." if len(fields) > _NAMED else "")
            raise OutOfDeviceMemory(f"there is no memory for {names}: {error}") from None
        self._session = session
        self._allocation = allocation  # last: others look at it without the lock
        with_memory.add(self)
        weakref.finalize(self, _collected, self.users).atexit = False
        context.fields_have_memory()

    @property
    def allocation(self) -> Any:
        """The memory of the tree, allocated at the first call. Raises SpirogradRuntimeError after `reset` or `destroy`."""
        if self._allocation is None:
            if self._destroyed:
                raise SpirogradRuntimeError("this field tree was destroyed: declare its fields anew")
            self.close()
            self._allocate()
        elif not context.has_session() or context.session() is not self._session:
            raise SpirogradRuntimeError("this field belongs to an earlier session, whose memory is gone: make fields after `sg.init`")
        return self._allocation

    def has_memory(self) -> bool:
        """Whether its memory is there, and of the running session."""
        return self._allocation is not None and context.has_session() and context.session() is self._session

    @one_at_a_time
    def destroy(self) -> None:
        """Give the memory back now, and what kernels are compiled to for it; the fields of the tree cannot be used afterwards."""
        if self.regions is not None:
            self.regions.destroy()
        if self._allocation is not None:
            self._allocation.free()
        self._allocation = None
        self._destroyed = self.closed = True
        for user in list(self.users):
            user.release()
        self.users.clear()


def _separable(nodes: Sequence[SNode]) -> list[list[SNode]]:
    """``nodes`` in groups, such that no field has components in two of them."""
    groups: list[tuple[list[SNode], set[int]]] = []
    for node in nodes:
        fields = {id(place.field) for place in ([node] if isinstance(node, Place) else node.places)}
        meeting = [group for group in groups if not group[1].isdisjoint(fields)]
        groups = [group for group in groups if group not in meeting]
        merged = [n for group in meeting for n in group[0]]
        groups.append(([*merged, node], fields.union(*[group[1] for group in meeting])))
    return [group for group, _ in groups]


def _collected(users: weakref.WeakSet[Any]) -> None:
    """Nothing refers to a tree any more: what was compiled for its fields lets go of the memory, too."""
    for user in list(users):
        user.release()
        user.trees.clear()


class FieldsBuilder(NearNames):
    """A separate field tree: ``fb = FieldsBuilder(); fb.dense(i, 8).place(x); tree = fb.finalize()``. ``tree.destroy()`` frees it."""

    def __init__(self) -> None:
        self.tree = Tree()

    def _root(self) -> SNode:
        return self.tree.root

    def dense(self, axes: Any, shape: Any) -> SNode:
        """A dense level below the root: `SNode.dense`."""
        return self._root().dense(axes, shape)

    def pointer(self, axes: Any, shape: Any, cells: int | None = None) -> SNode:
        """A sparse level below the root: `SNode.pointer`."""
        return self._root().pointer(axes, shape, cells)

    def bitmasked(self, axes: Any, shape: Any) -> SNode:
        """A sparse level below the root: `SNode.bitmasked`."""
        return self._root().bitmasked(axes, shape)

    def hash(self, axes: Any, shape: Any, cells: int | None = None) -> SNode:
        """A sparse level below the root: `SNode.hash`."""
        return self._root().hash(axes, shape, cells)

    def dynamic(self, axis: Any, dimension: int, chunk_size: int | None = None, cells: int | None = None) -> SNode:
        """One list, below the root: `SNode.dynamic`."""
        return self._root().dynamic(axis, dimension, chunk_size, cells)

    def deactivate_all(self) -> None:
        """Deactivate all cells of the tree: `SNode.deactivate_all`."""
        self._root().deactivate_all()

    def place(self, *fields: Any, offset: Any = None) -> SNode:
        """Put 0-d fields into the root's one cell: `SNode.place`."""
        return self._root().place(*fields, offset=offset)

    def lazy_grad(self) -> None:
        """Place the gradients of all fields next to them."""
        self._root().lazy_grad()

    def lazy_dual(self) -> None:
        """Place the duals of all fields next to them."""
        self._root().lazy_dual()

    def finalize(self, raise_warning: bool = True) -> Tree:
        """Close the tree and return it. ``raise_warning`` is accepted and has no meaning here."""
        tree = self.tree
        tree.check_open()
        tree.close()
        return tree

    def parent(self, n: int = 1) -> SNode | None:
        """The root has no parent: None."""
        return self._root().parent(n)

    def _get_children(self) -> list[SNode]:
        return list(self._root().nodes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the root: none."""
        return self._root().shape


class _TreeOfThread(threading.local):
    def __init__(self) -> None:
        self.tree = Tree(divisible=True)


class GlobalRoot(FieldsBuilder):
    """`root`: the tree under construction, of each thread its own. Once that is closed, the next placement starts another."""

    def __init__(self) -> None:
        self._trees = _TreeOfThread()

    @property
    def tree(self) -> Tree:  # type: ignore[override]
        """The tree of the calling thread."""
        return self._trees.tree

    def _root(self) -> SNode:
        trees = self._trees
        while trees.tree.closed:
            trees.tree = trees.tree.next or Tree(divisible=True)
        return trees.tree.root

    def __sg_describe__(self) -> str:
        return "`root`"

    def __repr__(self) -> str:
        return "root"

    def reset(self) -> None:
        """Forget the trees under construction, of all threads (`reset` of the API)."""
        self._trees = _TreeOfThread()


root = GlobalRoot()


def deactivate_all_snodes() -> None:
    """Deactivate all cells of all sparse nodes of the running session."""
    for tree in list(_sparse_trees):
        if tree.regions is not None and any(made.has_memory() for made in tree.regions.trees):
            tree.deactivate(tree.root)


def trees_of(fields: Iterable[Any], user: Any) -> dict[int, Any]:
    """The allocations of the trees of ``fields``, by their numbers. When one is destroyed or collected, ``user`` is released."""
    trees = {field.tree.id: field.tree for field in fields}
    for tree in trees.values():
        tree.users.add(user)
    return {number: tree.allocation for number, tree in trees.items()}
