"""Random programs of activation, deactivation, writes, reads, loops and appends on one sparse tree."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

AXES = "ij"
LIST_AXIS = 2


@dataclass(frozen=True)
class Node:
    """A level of the tree: extents along i and j; of "dynamic" nodes the room of a list, along an axis of its own, and its chunks."""

    kind: str
    extents: tuple[int, int]
    chunk: int = 0


@dataclass(frozen=True)
class Step:
    """One launch. ``depth``: of the node; ``cells``: indices in the index space of the node, or of elements; ``values``: one for each."""

    kind: str
    depth: int = 0
    cells: tuple[tuple[int, ...], ...] = ()
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """``vector``: whether elements are vectors of 2 numbers, else they are numbers."""

    nodes: tuple[Node, ...]
    steps: tuple[Step, ...]
    debug: bool = False
    vector: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_to(self.nodes, len(self.nodes) - 1)


def shape_to(nodes: tuple[Node, ...], depth: int) -> tuple[int, ...]:
    """The index space of a node."""
    grid = [math.prod(node.extents[axis] for node in nodes[: depth + 1] if node.kind != "dynamic") for axis in range(2)]
    return (*grid, *[node.extents[0] for node in nodes[: depth + 1] if node.kind == "dynamic"])


def write(seed: int) -> Program:
    """The program of a seed."""
    r = random.Random(seed)
    nodes = _nodes(r)
    steps = [_step(r, nodes) for _ in range(r.randint(4, 14))]
    return Program(nodes, tuple(steps), debug=r.random() < 0.25, vector=r.random() < 0.25)


def _nodes(r: random.Random) -> tuple[Node, ...]:
    nodes = []
    for _ in range(r.randint(1, 3)):
        kind = r.choice(("dense", "pointer", "pointer", "bitmasked"))
        nodes.append(Node(kind, r.choice(((2, 3), (4, 4), (1, 5), (3, 1), (8, 2)))))
    if r.random() < 0.5:
        room = r.randint(1, 40)
        nodes.append(Node("dynamic", (room, 1), r.choice((1, 2, 8, room))))
    elif all(node.kind == "dense" for node in nodes):
        nodes.append(Node("pointer", (2, 2)))
    return tuple(nodes)


def _step(r: random.Random, nodes: tuple[Node, ...]) -> Step:
    sparse = [k for k, node in enumerate(nodes) if node.kind != "dense"]
    kinds = ["write", "write", "add", "add", "activate", "deactivate", "deactivate", "deactivate_all", "loop", "python"]
    kind = r.choice([*kinds, *(["append"] * 5 if nodes[-1].kind == "dynamic" else [])])
    depth = r.choice(sparse)
    shape = shape_to(nodes, len(nodes) - 1 if kind in ("write", "add", "python") else depth)
    if kind == "append" or (kind == "deactivate" and nodes[depth].kind == "dynamic"):
        shape = shape_to(nodes, len(nodes) - 2)
    count = 0 if kind in ("deactivate_all", "loop") else 1 if kind == "python" else r.choice((1, 2, 5, 30))
    cells = _cells(r, shape, count, repeated=kind != "write")
    return Step(kind, depth, cells, tuple([r.randint(1, 9) for _ in cells]))


def _cells(r: random.Random, shape: tuple[int, ...], count: int, repeated: bool) -> tuple[tuple[int, ...], ...]:
    chosen = [tuple([r.randrange(n) for n in shape]) for _ in range(count)]
    return tuple(chosen if repeated else dict.fromkeys(chosen))


class Model:
    """What a program leaves, in sets and dictionaries. ``values``: of elements, by index; ``active``: cells of each sparse node;
    ``lengths``: of lists, by the index of the cell around."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = nodes
        self.values: dict[tuple[int, ...], int] = {}
        self.active: dict[int, set[tuple[int, ...]]] = {k: set() for k, n in enumerate(nodes) if n.kind in ("pointer", "bitmasked")}
        self.lengths: dict[tuple[int, ...], int] = {}

    def cell(self, depth: int, index: tuple[int, ...], of: int) -> tuple[int, ...]:
        """The cell of the node at ``depth`` that holds ``index``, which is in the index space of the node at ``of``."""
        inner = [math.prod(n.extents[axis] for n in self.nodes[depth + 1 : of + 1] if n.kind != "dynamic") for axis in range(2)]
        return tuple([i // n for i, n in zip(index, inner)])

    def activate(self, index: tuple[int, ...], of: int) -> None:
        for depth, cells in self.active.items():
            if depth <= of:
                cells.add(self.cell(depth, index, of))
        if self.nodes[of].kind == "dynamic":
            self.lengths[index[:2]] = max(self.lengths.get(index[:2], 0), index[LIST_AXIS] + 1)

    def deactivate(self, cell: tuple[int, ...], depth: int) -> None:
        if self.nodes[depth].kind == "dynamic":
            self.lengths.pop(cell, None)
            self.values = {i: v for i, v in self.values.items() if i[:2] != cell}
            return
        if cell not in self.active[depth]:
            return
        last = len(self.nodes) - 1
        for below, cells in self.active.items():
            if below >= depth:
                self.active[below] = {c for c in cells if self.cell(depth, c, below) != cell}
        self.lengths = {c: n for c, n in self.lengths.items() if self.cell(depth, c, last) != cell}
        self.values = {i: v for i, v in self.values.items() if self.cell(depth, i[:2], last) != cell}

    def visited(self, index: tuple[int, ...]) -> bool:
        """Whether a loop over the field comes to an element."""
        last = len(self.nodes) - 1
        if any(self.cell(depth, index, last) not in cells for depth, cells in self.active.items()):
            return False
        return self.nodes[last].kind != "dynamic" or index[LIST_AXIS] < self.lengths.get(index[:2], 0)

    def run(self, step: Step, indices: list[tuple[int, ...]]) -> None:
        """Do what a step does, but for "append": see `appended`. ``indices``: of all elements."""
        last = len(self.nodes) - 1
        for cell, value in zip(step.cells, step.values):
            if step.kind == "activate":
                self.activate(cell, step.depth)
            elif step.kind == "deactivate":
                self.deactivate(cell, step.depth)
            elif step.kind != "append":
                self.activate(cell, last)
                self.values[cell] = value + (self.values.get(cell, 0) if step.kind == "add" else 0)
        if step.kind == "deactivate_all":
            for cell in list(self.active.get(step.depth, self.lengths)):
                self.deactivate(cell, step.depth)
        if step.kind == "loop":
            for index in indices:
                if self.visited(index):
                    self.values[index] = 3 * self.values.get(index, 0) + 1
