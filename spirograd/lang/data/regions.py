"""Storage of trees with sparse nodes: dense trees of cells, and integer tables that tell which cells there are.

A tree with sparse nodes has one *region* for the cell of its root, and one for the cells of each `pointer` node; a `hash` node is the same.
A `dynamic` node is a length, and a `pointer` node of chunks with a `dense` one below (`Part`): the cells of its region are the chunks. A
region is a dense field tree whose outermost axis is the number of a cell (the region of the root has one cell, and no such axis). It holds
the fields that the user placed there, and hidden ones:

- a *table* for each `pointer` node below: for each of its cells the number in the region of that node, 0 where the cell is inactive, and
  `BUSY` while an invocation activates it;
- a *mask* for each `bitmasked` node below: one bit for each of its cells, in words of 32;
- for each `dynamic` node below a table of chunks, and the *length* of the list: more than the capacity if too much was appended.
  All chunks up to the length are active once a kernel has run, and what is beyond the length is zero.

Cell `NULL` of a region is all zeros and is never written, so that reads of inactive cells need no branch. Cell `OVERFLOW` takes the writes
to cells for which there is no memory, and is never read.

The memory of a region, but that of the root, is a `runtime.pools.Pool`: the number of a cell is the slowest index, so nothing moves when
there are more cells.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field as attribute
from typing import TYPE_CHECKING, cast

from spirograd.base.dtypes import DType, i32, i64
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.records import dataclass
from spirograd.lang import context

if TYPE_CHECKING:
    from spirograd.base.protocols import Allocation, CellPool
    from spirograd.lang.data.nodes import Place, SNode, Sparse, Tabled
    from spirograd.lang.data.scalar_field import ScalarField
    from spirograd.lang.data.tree import Tree
    from spirograd.lang.data.tree_layout import Extended
    from spirograd.lang.session_protocol import Session

NULL, OVERFLOW, FIRST = 0, 1, 2
BUSY = -1
WORD = 32  # Bits of a word of a mask.
_DEFAULT_BYTES = 1 << 30  # The most bytes of the cells of a region, unless the user sets a number.
_LEAST_CELLS = 1024
_MOST_ENTRIES = 2**31 - 1  # of one table; and cells that are active at a time, whose numbers have 31 bits
_COUNTERS = ("used", "capacity", "free_count", "freed_count")
_OF_EACH = ("home", "free", "freed")
_CELL_AXIS = 0  # of a region; the axes of the user follow
WORD_AXIS = 10_000

Make = Callable[[DType, str], "ScalarField"]  # a hidden field, by its type and name


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The contents of one node of the cells of a region: the places of fields, and the tables of sparse nodes. ``node``: the node below the
    cells."""

    node: SNode
    places: tuple[Place, ...]
    tables: tuple[Tabled, ...]

    @property
    def count(self) -> int:
        """The number of each of them in a cell."""
        return math.prod(n for level in self.node.path[2:] for n in level.extents)


@dataclass(slots=True, eq=False)
class Region:
    """The cells of a node, in a dense ``tree``: by themselves the one cell of the root.

    ``cells``: the node of ``tree`` whose cells they are; ``groups``: what lies below it.
    """

    tree: Tree
    cells: SNode
    groups: tuple[Group, ...] = attribute(default=(), init=False)

    @property
    def trees(self) -> list[Tree]:
        """The trees that have the memory."""
        return [self.tree]


@dataclass(slots=True, eq=False)
class CellRegion(Region):
    """The cells of ``node``, in a memory that grows. ``most``: cells that there may be, NULL and OVERFLOW included; ``first``: how many
    there are at first, where the device does not have memory for all of them.

    Fields of the tree ``ledger``: ``used``: how many cells were ever given a number, more than there are if those were too few.
    ``capacity``: how many there are, NULL and OVERFLOW included. ``home``: for each cell 1 + the row-major number of the cell in the index
    space of ``node``, 0 if it is not active. ``free``: the numbers of cells that can be given again, the first ``free_count``. ``freed``:
    those that the running kernel has deactivated, the first ``freed_count``; they are free at its end.
    """

    node: Tabled
    most: int
    first: int
    ledger: Tree
    used: ScalarField
    capacity: ScalarField
    free_count: ScalarField
    freed_count: ScalarField
    home: ScalarField
    free: ScalarField
    freed: ScalarField
    pool: CellPool | None = None  # Once it has memory.
    reserved: int = FIRST  # Cells that are never active.

    @property
    def trees(self) -> list[Tree]:
        return [self.ledger, self.tree]

    @property
    def growing(self) -> tuple[SNode, SNode]:
        """Return the nodes of both trees with the allocations that grow with the number of cells, the ledger first."""
        return self.ledger.root.nodes[-1], self.tree.root.nodes[-1]

    @property
    def call(self) -> str:
        """Return the user's call that sets the number of cells."""
        return f".{self.node.kind}({self.node.arguments}, cells={{}})"

    @property
    def first_sizes(self) -> tuple[int, int]:
        """Return the bytes of the ledger and of the cells at first."""
        ledger, cells = [node.offset + node.cell_size * self.first for node in self.growing]
        return ledger, cells

    @property
    def extent(self) -> int:
        """Return the number of cells that may store values; memory beyond them is never to be accessed."""
        return self.pool.extent() if self.pool is not None else self.first

    def memory(self, session: Session) -> dict[int, Allocation]:
        """Return the allocations of the ledger and of the cells, which `Tree.allocation` requests."""
        if self.pool is None or self.pool.allocations[0].freed:
            self.pool = session.cells_memory(self)
        return dict(zip((self.ledger.id, self.tree.id), self.pool.allocations))


@dataclass(frozen=True, slots=True)
class Part:
    """The effect of one node of a path on an index. A `dynamic` node is two parts, the chunks and their entries.

    ``in_region``: whether the cells of the part are in a region of their own.
    """

    node: SNode
    axes: tuple[int, ...]
    extents: tuple[int, ...]
    cell_size: int = 0  # has no meaning here: parts are made into digits, not addresses
    in_region: bool = False


@dataclass(frozen=True, slots=True)
class List:
    """The list of a `dynamic` node in a cell around it.

    ``length``: the hidden field; ``digits``: of the list in the cell around; ``axis``: the position in an index that counts its entries;
    ``limit``: its capacity; ``chunk``: the entries of each chunk.
    """

    length: ScalarField
    digits: Digits
    axis: int
    limit: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Digits:
    """The digits of a field's index that an access to a region takes, axis by axis: ``index[axis] // div % mod``, mod 0: no modulo."""

    parts: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Level:
    """A sparse node on the path to a field.

    ``table``: of `pointer` nodes, whose cells are in ``region``, and of `dynamic` nodes, whose cells are chunks of their ``list``.
    ``mask``: of `bitmasked` nodes. ``digits``: of the entry in the table, or of the mask, in the cell around the node. ``number``: of the
    cell, row by row: the digits with their extents; for `pointer` nodes among all cells of the node, for `bitmasked` nodes among those in
    the cell around it. ``cell``: the digits of the cell in the region around it.
    """

    node: Sparse
    digits: Digits
    number: tuple[tuple[tuple[int, int, int], int], ...]
    cell: Digits
    table: ScalarField | None = None
    region: CellRegion | None = None
    mask: ScalarField | None = None
    list: List | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """A path to memory below sparse nodes: the levels from the root, and the digits of an element in the last region."""

    levels: tuple[Level, ...]
    digits: Digits
    region: Region


@dataclass(slots=True, eq=False)
class Regions:
    """All regions of a tree: the one of the ``root``, and those of sparse nodes."""

    root: Region
    below: list[CellRegion] = attribute(default_factory=list)

    @property
    def trees(self) -> list[Tree]:
        """Return the trees that have the memory."""
        return [tree for region in (self.root, *self.below) for tree in region.trees]

    def destroy(self) -> None:
        """Free the memory."""
        for tree in self.trees:
            tree.destroy()
        for region in self.below:
            for allocation in region.pool.allocations if region.pool is not None else ():
                allocation.free()


class Storage:
    """The regions of a tree under construction. ``root``: the one of its root; ``make`` makes an internal field."""

    def __init__(self, root: Region, make: Make) -> None:
        self.regions = Regions(root)
        self._make = make

    def hidden(self, dtype: DType, name: str) -> ScalarField:
        """Return an internal field."""
        field = self._make(dtype, name)
        field.hidden = True
        return field

    def store_below(self, node: SNode, into: SNode) -> None:
        """Store the cells below the user's ``node`` in a region, below its node ``into``."""
        for child in node.nodes:
            child.store(into, self)

    def region_of(self, node: Tabled) -> CellRegion:
        """Add the region for the cells of ``node``."""
        region = _region_of(node, self.hidden)
        self.regions.below.append(region)
        return region


def make_regions(tree: Tree) -> Regions:
    """Return the storage of a tree that is complete, see the docstring of the module."""
    dense = type(tree)()
    storage = Storage(Region(dense, dense.root), next(tree.root.places).field.hidden_field)
    regions = storage.regions
    storage.store_below(tree.root, regions.root.cells)
    for region in (regions.root, *regions.below):
        region.groups = tuple(_groups(region.cells))
    for part in regions.trees:
        part.owner = weakref.ref(tree)
        part.close()
    return regions


def _groups(node: SNode) -> Iterator[Group]:
    """Return the groups of the cells of a region, from ``node`` on."""
    places = cast("list[Place]", [child for child in node.nodes if child.dtype is not None])
    if places:
        tables = {id(place.field.sparse_node): place.field.sparse_node for place in places if place.field.sparse_node is not None}
        yield Group(node, tuple([p for p in places if p.field.sparse_node is None]), tuple(tables.values()))
    for child in node.nodes:
        yield from _groups(child)


def _region_of(node: Tabled, make: Make) -> CellRegion:
    *above, own = [at.parts() for at in node.path]
    entries = math.prod(own[0].extents)
    possible = math.prod(n for parts in above for part in parts for n in part.extents) * entries
    if entries > _MOST_ENTRIES or possible >= 2**63:
        one = entries > _MOST_ENTRIES
        many = f"{entries} cells in each cell around it, of 2**31 - 1 at most" if one else f"{possible} cells, of 2**63 - 1 at most"
        raise SpirogradUnsupportedError(f"a `{node.kind}` node of shape {node.shape} has {many}", None, node.division_hint)
    bytes_of_cell = max(node.bytes_below() * math.prod(n for part in own[1:] for n in part.extents), 1)
    most = min(possible, node.cells or max(context.memory_limit() // bytes_of_cell - FIRST, 1), _MOST_ENTRIES - FIRST)
    wanted = node.cells or max(_DEFAULT_BYTES // bytes_of_cell, _LEAST_CELLS)
    first, most = node.capacity or (FIRST + min(most, wanted), FIRST + most)
    tree, ledger = type(node.tree)(), type(node.tree)()
    used, capacity, free_count, freed_count = counters = [make(i32, f"{node.kind}{node.number}.{name}") for name in _COUNTERS]
    ledger.root.place(*counters)
    wide = possible > _MOST_ENTRIES
    home, free, freed = of_each = [make(i64 if wide and name == "home" else i32, f"{node.kind}{node.number}.{name}") for name in _OF_EACH]
    ledger.root.dense(_CELL_AXIS, most).place(*of_each)
    cells = tree.root.dense(_CELL_AXIS, most)
    region = CellRegion(tree, cells, node, most, first, ledger, used, capacity, free_count, freed_count, home, free, freed)
    tree.region = ledger.region = region
    return region


# --- paths ---------------------------------------------------------------------------------------------------------------


def parts_to(node: SNode) -> list[Part]:
    """Return the parts of the nodes from the root to ``node``."""
    return [part for at in node.path for part in at.parts()]


@dataclass(frozen=True, slots=True)
class PathWalk:
    """A position on the path to a node: at part number ``depth`` of ``parts``, in the region that begins with part number ``start``."""

    parts: Sequence[Part]
    field_axes: Sequence[int]
    start: int
    depth: int

    @property
    def part(self) -> Part:
        """The part at this position."""
        return self.parts[self.depth]

    def digits(self, start: int, stop: int) -> Digits:
        """Return the parts of an index that the parts from number ``start`` to ``stop`` take."""
        return _digits(self.parts, start, stop, self.field_axes)

    def numbered(self) -> tuple[tuple[tuple[int, int, int], int], ...]:
        """Return the number of a cell among all of its node: digits, with their extents."""
        above = self.parts[: self.depth + 1]
        return tuple([(digit, _extent(above, self.field_axes[digit[0]]) or 1) for digit in self.digits(0, self.depth).parts])


def path_to(node: SNode, field_axes: Sequence[int]) -> Path:
    """Return the path to the cells of ``node``, of a tree that is closed, for indices with one entry for each of ``field_axes``."""
    parts = parts_to(node)
    levels: list[Level] = []
    assert node.tree.regions is not None
    start: int = 0
    region: Region = node.tree.regions.root
    for depth, part in enumerate(parts):
        level = part.node.level(PathWalk(parts, field_axes, start, depth))
        if level is not None:
            levels.append(level)
        if part.in_region:
            below = cast("Tabled", part.node).cells_in
            assert below is not None
            start, region = depth + 1, below
    return Path(tuple(levels), _digits(parts, start, len(parts) - 1, field_axes), region)


def _digits(nodes: Sequence[Extended], start: int, stop: int, field_axes: Sequence[int]) -> Digits:
    """Return the parts of an index that the nodes from number ``start`` to ``stop`` take, by axis in order."""
    parts = []
    for position, axis in enumerate(field_axes):
        own = _extent(nodes[start : stop + 1], axis)
        if own is None:
            continue
        below = _extent(nodes[stop + 1 :], axis) or 1
        above = _extent(nodes[:start], axis)
        parts.append((position, below, 0 if above is None else own))
    return Digits(tuple(parts))


def _extent(nodes: Sequence[Extended], axis: int) -> int | None:
    """Return the product of the extents along ``axis``; None if no node has it."""
    extents = [extent for node in nodes for a, extent in zip(node.axes, node.extents) if a == axis]
    return math.prod(extents) if extents else None
