"""Trees of nodes that define how fields lie in memory: ``root.dense(ij, (4, 8)).place(x, y)``.

A tree is open while nodes and fields are added, and closes when one of its fields is used for the first time (or by `finalize`). Then its
layout is fixed and its memory, all zeros, is allocated. Fields placed under `root` afterwards form a new tree. If there is not enough
memory for all fields under `root`, its nodes become trees of their own, so that only fields that are too large cannot be used.

Each thread has its own tree under `root`. Nodes are added, trees are closed and get their memory under the lock of `base.once`.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.base.near_names import NearNames
from spirograd.base.once import one_at_a_time
from spirograd.lang import context
from spirograd.lang.data.nodes import Place, Root, SNode
from spirograd.lang.data.regions import CellRegion, Regions, make_regions
from spirograd.lang.data.tree_layout import assign_offsets

if TYPE_CHECKING:
    from spirograd.base.protocols import Allocation
    from spirograd.lang.data.scalar_field import ScalarField
    from spirograd.lang.session_protocol import Session

_tree_ids = itertools.count(1)
_NAMED = 4  # The most fields named in a message.
_sparse_trees: weakref.WeakSet[Tree] = weakref.WeakSet()
with_memory: weakref.WeakSet[Tree] = weakref.WeakSet()


class TreeUser(Protocol):
    """A user of ``trees``: an object compiled for their fields. ``trees``: their allocations, by number."""

    trees: dict[int, Allocation]

    def release(self) -> None:
        """Release compiled code, because one of the trees is gone."""


class Tree(NearNames):
    """A tree of nodes and the memory of its fields. ``id`` is unique in the process. ``divisible``: see `settle`."""

    def __init__(self, divisible: bool = False) -> None:
        self.id = next(_tree_ids)
        self.divisible = divisible
        self.root = Root(self, None)
        self.closed = False
        self.settled = False  # Closed, and divided if necessary.
        self.next: Tree | None = None  # Of an open tree: has the nodes that had no fields when this tree was closed.
        self.nbytes = 0
        self.regions: Regions | None = None  # Of a tree with sparse nodes, once it is closed.
        self.region: CellRegion | None = None  # The region whose cells, or ledger, it has.
        self.owner: weakref.ref[Tree] = weakref.ref(self)  # The user's tree that it is a part of.
        self._numbers = 0  # Number of sparse nodes.
        # Code compiled for fields of this tree, which is released with them: objects with a method `release`.
        self.users: weakref.WeakSet[TreeUser] = weakref.WeakSet()
        self._allocation: Allocation | None = None
        self._session: Session | None = None
        self._destroyed = False

    def __repr__(self) -> str:
        return f"<field tree {self.id}, {self.nbytes} bytes>" if self.closed else f"<open field tree {self.id}>"

    def next_number(self) -> int:
        """Return a number for a sparse node."""
        self._numbers += 1
        return self._numbers

    def is_begun_by(self, other: object) -> bool:
        """Return whether ``other`` is the builder of this tree, or `root` if that began it."""
        return isinstance(other, FieldsBuilder) and (self is other.tree or (isinstance(other, GlobalRoot) and self.divisible))

    def check_open(self) -> None:
        if self.closed:
            raise SpirogradRuntimeError(
                "this field tree is closed: one of its fields has been used, or `finalize` was called; start a new one with "
                "`sg.root` or `sg.FieldsBuilder()`"
            )

    @one_at_a_time
    def close(self) -> None:
        """Fix the layout. Raises SpirogradRuntimeError for gradients that were requested and never placed."""
        if self.closed:
            return
        for place in self.root.places:
            place.field.check_shadows()
        if self.root.has_sparse and next(self.root.places, None) is not None:
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
        if node.is_sparse:
            context.services().deactivate_cells(node)
        else:
            for child in node.nodes:
                self.deactivate(child)

    def settle(self) -> None:
        """Close the tree before its fields are used.

        If there is not enough memory for all of them, and the tree is ``divisible``, each node below the root that can have an allocation
        of its own gets a tree of its own.
        """
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
        """Move nodes without fields, such as those that another thread is building, to a tree that stays open."""
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
        """Allocate the memory of one tree, or of several."""
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
        """Replace the nodes below the root by these."""
        self.root.nodes = list(nodes)
        for node in nodes:
            node.above = self.root
            node.move_to(self)
        self.nbytes = assign_offsets(self.root, is_root=True)[0]
        self.closed = True

    @one_at_a_time
    def _allocate(self) -> None:
        if self._allocation is not None:  # Another thread was here first.
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
        self._allocation = allocation  # Last: other threads read it without the lock.
        for field in {id(place.field): place.field for place in self.root.places}.values():
            field.write_initial()
        with_memory.add(self)
        weakref.finalize(self, _collected, self.users).atexit = False
        context.fields_have_memory()

    @property
    def allocation(self) -> Allocation:
        """The memory of the tree, allocated at the first call. Raises SpirogradRuntimeError after `reset` or `destroy`."""
        allocation = self._allocation
        if allocation is None:
            if self._destroyed:
                raise SpirogradRuntimeError("this field tree was destroyed: declare its fields anew")
            self.close()
            self._allocate()
            allocation = self._allocation
            assert allocation is not None
        elif not context.has_session() or context.session() is not self._session:
            raise SpirogradRuntimeError("this field belongs to an earlier session, whose memory is gone: make fields after `sg.init`")
        return allocation

    def has_memory(self) -> bool:
        """Return whether its memory exists, and belongs to the running session."""
        return self._allocation is not None and context.has_session() and context.session() is self._session

    @one_at_a_time
    def destroy(self) -> None:
        """Free the memory and the code compiled for it; the fields of the tree cannot be used afterwards."""
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
    """Return ``nodes`` in groups, such that no field has components in two of them."""
    groups: list[tuple[list[SNode], set[int]]] = []
    for node in nodes:
        fields = {id(place.field) for place in ([node] if isinstance(node, Place) else node.places)}
        meeting = [group for group in groups if not group[1].isdisjoint(fields)]
        groups = [group for group in groups if group not in meeting]
        merged = [n for group in meeting for n in group[0]]
        groups.append(([*merged, node], fields.union(*[group[1] for group in meeting])))
    return [group for group, _ in groups]


def _collected(users: weakref.WeakSet[TreeUser]) -> None:
    """Release code compiled for the fields of a collected tree, so that its memory is freed, too."""
    for user in list(users):
        user.release()
        user.trees.clear()


class FieldsBuilder(NearNames):
    """A separate field tree: ``fb = FieldsBuilder(); fb.dense(i, 8).place(x); tree = fb.finalize()``. ``tree.destroy()`` frees it."""

    def __init__(self) -> None:
        self.tree = Tree()

    def _root(self) -> SNode:
        return self.tree.root

    def dense(self, axes: int | Iterable[int], shape: object) -> SNode:
        """Add a dense level below the root: `SNode.dense`."""
        return self._root().dense(axes, shape)

    def pointer(self, axes: int | Iterable[int], shape: object, cells: int | None = None) -> SNode:
        """Add a sparse level below the root: `SNode.pointer`."""
        return self._root().pointer(axes, shape, cells)

    def bitmasked(self, axes: int | Iterable[int], shape: object) -> SNode:
        """Add a sparse level below the root: `SNode.bitmasked`."""
        return self._root().bitmasked(axes, shape)

    def hash(self, axes: int | Iterable[int], shape: object, cells: int | None = None) -> SNode:
        """Add a sparse level below the root: `SNode.hash`."""
        return self._root().hash(axes, shape, cells)

    def dynamic(self, axis: int | Iterable[int], dimension: int, chunk_size: int | None = None, cells: int | None = None) -> SNode:
        """Add one list below the root: `SNode.dynamic`."""
        return self._root().dynamic(axis, dimension, chunk_size, cells)

    def deactivate_all(self) -> None:
        """Deactivate all cells of the tree: `SNode.deactivate_all`."""
        self._root().deactivate_all()

    def place(self, *fields: object, offset: object = None) -> SNode:
        """Place 0-d fields in the root's one cell: `SNode.place`."""
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
        """Return None: the root has no parent."""
        return self._root().parent(n)

    def _get_children(self) -> list[SNode]:
        return list(self._root().nodes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the root: none."""
        return self._root().shape

    @property
    def finalized(self) -> bool:
        """Whether the tree is closed: then nothing more can be placed in it."""
        return self._root().tree.closed

    @property
    def empty(self) -> bool:
        """Whether nothing is below the root."""
        return not self._root().nodes


class _TreeOfThread(threading.local):
    def __init__(self) -> None:
        self.tree = Tree(divisible=True)


class GlobalRoot(FieldsBuilder):
    """The object `root`: the tree under construction, one for each thread. Once that is closed, the next placement starts another."""

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
        """Drop the trees under construction, of all threads (`reset` of the API)."""
        self._trees = _TreeOfThread()


root = GlobalRoot()


def deactivate_all_snodes() -> None:
    """Deactivate all cells of all sparse nodes of the running session."""
    for tree in list(_sparse_trees):
        if tree.regions is not None and any(part.has_memory() for part in tree.regions.trees):
            tree.deactivate(tree.root)


def trees_of(fields: Iterable[ScalarField], user: TreeUser) -> dict[int, Allocation]:
    """Return the allocations of the trees of ``fields``, by their numbers. When one is destroyed or collected, ``user`` is released."""
    trees = {field.tree.id: field.tree for field in fields}
    for tree in trees.values():
        tree.users.add(user)
    return {number: tree.allocation for number, tree in trees.items()}
