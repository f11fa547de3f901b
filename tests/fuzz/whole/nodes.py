"""The programs of this fuzzer as data: memory, functions, kernels, and what Python does between their launches.

`render` writes a program as a Python file, `reference` evaluates it. A *component* of an element is None for numbers, an index for vectors,
(row, column) for matrices, and for structs `(member, None)` or `(member, index)`; `ALL` stands for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

ALL = "*"
MEMBERS = (("a", None), ("b", 0), ("b", 1))
Component = Any


@dataclass(frozen=True)
class Memory:
    """``kind``: scalar, vector, matrix, struct. ``place``: field, array (an ndarray); torch, numpy, which are
    arguments that kernels read. ``layout`` of fields: "", order, soa, root, blocks, together.

    ``values``: floats, small (integers from 0 to 3), permutation.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    place: str = "field"
    values: str = "floats"
    grad: bool = True
    layout: str = ""
    width: int = 2  # of vectors

    @property
    def components(self) -> tuple[Component, ...]:
        if self.kind == "vector":
            return tuple(range(self.width))
        if self.kind == "matrix":
            return tuple((r, c) for r in range(2) for c in range(2))
        return MEMBERS if self.kind == "struct" else (None,)

    @property
    def foreign(self) -> bool:
        return self.place in ("torch", "numpy")

    @property
    def seed(self) -> int:
        """The seed of its first contents."""
        return sum(map(ord, self.name))

    @property
    def indices(self) -> list[tuple[int, ...]]:
        return [tuple(int(k) for k in index) for index in np.ndindex(*self.shape)]

    @property
    def element_shape(self) -> tuple[int, ...]:
        return {"scalar": (), "vector": (self.width,), "matrix": (2, 2)}[self.kind]

    def alike(self, other: Memory) -> bool:
        """Whether the one can be bound or copied where the other is."""
        mine, others = ((m.kind, m.shape, m.place, m.values, m.grad, m.width) for m in (self, other))
        return mine == others and self.name != other.name


# --- expressions: of kernels and of Python -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Const:
    value: Any


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class Load:
    memory: str
    index: tuple[Any, ...]
    component: Component = None


@dataclass(frozen=True)
class Op:
    """An operation on numbers, or on vectors entry by entry; ``op`` is a key of `render.OPERATIONS`."""

    op: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    function: str
    args: tuple[Any, ...]


# --- statements of kernels ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Let:
    name: str
    value: Any


@dataclass(frozen=True)
class Store:
    """``op``: =, +=, -=, *=."""

    memory: str
    index: tuple[Any, ...]
    component: Component
    op: str
    value: Any


@dataclass(frozen=True)
class If:
    condition: Any
    body: tuple[Any, ...]
    orelse: tuple[Any, ...] = ()


@dataclass(frozen=True)
class For:
    name: str
    bound: Any
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Over:
    """A loop over the indices of a memory."""

    names: tuple[str, ...]
    memory: str
    body: tuple[Any, ...]


@dataclass(frozen=True)
class While:
    """Counts ``name`` from 0 to ``bound``, or until ``until`` holds at the end of an iteration. ``bound`` None: `while False`."""

    name: str
    bound: Any
    body: tuple[Any, ...]
    until: Any = None


@dataclass(frozen=True)
class Function:
    """A function that kernels call."""

    name: str
    params: tuple[str, ...]
    body: tuple[Any, ...]
    result: Any


@dataclass(frozen=True)
class Param:
    """``kind``: float, int, or memory, which is passed as an argument; ``like`` is then a memory of its type."""

    name: str
    kind: str
    like: str = ""


@dataclass(frozen=True)
class Kernel:
    name: str
    params: tuple[Param, ...]
    body: tuple[Any, ...]


# --- statements of Python ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A slice of an array, or the whole of a memory."""

    memory: str
    cut: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Launch:
    kernel: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Repeat:
    name: str
    count: int
    body: tuple[Any, ...]


@dataclass(frozen=True)
class When:
    condition: Any
    body: tuple[Any, ...]
    orelse: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Fill:
    """``component``: None or ALL for all of the element, or one of a vector or a member that is a number."""

    part: Part
    value: Any
    component: Component = None


@dataclass(frozen=True)
class Copy:
    target: Part
    source: Part


@dataclass(frozen=True)
class Put:
    """Python writes one number."""

    memory: str
    index: tuple[int, ...]
    component: Component
    value: Any


@dataclass(frozen=True)
class Read:
    """Python reads one number."""

    name: str
    memory: str
    index: tuple[int, ...]
    component: Component


@dataclass(frozen=True)
class Data:
    """New contents from ``seed``, by NumPy or torch."""

    memory: str
    seed: int
    by: str = "numpy"


@dataclass(frozen=True)
class Transfer:
    """``factor`` times the contents of another memory, by NumPy or torch, which gradients do not see."""

    target: str
    source: str
    factor: float
    by: str = "numpy"


@dataclass(frozen=True)
class Nested:
    """A call of a function that the main function defines; ``checkpoint``: by `sg.ad.checkpoint`."""

    name: str
    body: tuple[Any, ...]
    checkpoint: bool = False


@dataclass(frozen=True)
class Replaced:
    """A launch with a gradient of its own: ``target[i]`` gets ``factor * cos(source[i])`` as its derivative, or that of the kernel if
    ``factor`` is None. The kernel writes all of ``target``, which it does not read, from ``source``."""

    launch: Launch
    source: str
    target: str
    factor: float | None


@dataclass(frozen=True)
class Tape:
    """``seeds``: gradients at the end, if there is no loss. ``graph``: recorded as a graph, which then runs once more on other contents
    of the memory ``again``."""

    loss: str
    body: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...] = ()
    thread: bool = False
    graph: bool = False
    again: str = ""
    seeds: tuple[tuple[str, int], ...] = ()
    times: int = 1


@dataclass(frozen=True)
class Clear:
    """All gradients are set to zero."""


@dataclass(frozen=True)
class AtOnce:
    """Tapes of memory that they do not share, each in a thread of its own."""

    body: tuple[Tape, ...]


@dataclass(frozen=True)
class Second:
    """A Hessian of ``loss`` times a direction of ``x``."""

    loss: str
    x: str
    seed: int
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Forward:
    result: str
    x: str
    seed: int
    body: tuple[Any, ...]


@dataclass(frozen=True)
class Look:
    """All memory and all gradients are compared here."""


@dataclass(frozen=True)
class Program:
    memories: tuple[Memory, ...]
    functions: tuple[Function, ...]
    kernels: tuple[Kernel, ...]
    main: tuple[Any, ...]
    type: str  # f32, f64
    cell: tuple[str, ...]
    pulls: tuple[tuple[str, str, int], ...] = ()  # source and target of what may be `Replaced`, and their length
    options: tuple[tuple[str, Any], ...] = ()  # of `sg.init`
    duals: bool = False
    variants: tuple[tuple[str, str], ...] = ()  # (back end, what `variants` names): the form that runs there

    def memory(self, name: str) -> Memory:
        return next(m for m in self.memories if m.name == name)

    def __repr__(self) -> str:
        from .render import source
        from .variants import varied

        text = "".join(f"# variant on {arch}: {name}\n" for arch, name in self.variants)
        return "\n" + text + source(varied(self, self.variants[0][1]) if len(self.variants) == 1 else self)


def walk(node: Any) -> Iterator[Any]:
    """All nodes below and the node itself."""
    if isinstance(node, tuple):
        for inner in node:
            yield from walk(inner)
    elif hasattr(node, "__dataclass_fields__"):
        yield node
        for name in node.__dataclass_fields__:
            yield from walk(getattr(node, name))


def mapped(node: Any, change: Callable[[Any], Any]) -> Any:
    """The node with ``change`` of all nodes below and of itself."""
    if isinstance(node, tuple):
        return tuple(mapped(inner, change) for inner in node)
    if hasattr(node, "__dataclass_fields__"):
        return change(replace(node, **{f.name: mapped(getattr(node, f.name), change) for f in fields(node)}))
    return node


def memories_of(nodes: Any) -> set[str]:
    """Names of the memory that kernel code accesses."""
    return {node.memory for node in walk(nodes) if isinstance(node, (Load, Store, Over))}


def contents(memory: Memory, seed: int, type: str) -> Any:
    """Contents from a seed, as the rendered text makes them; of a struct a dictionary of its members."""
    if memory.values == "small":
        return np.random.default_rng(seed).integers(0, 4, memory.shape).astype(np.int32)
    if memory.values == "permutation":
        return np.random.default_rng(seed).permutation(memory.shape[0]).astype(np.int32)
    if memory.kind == "struct":
        return {"a": _floats(seed, memory.shape, type), "b": _floats(seed + 1, (*memory.shape, 2), type)}
    return _floats(seed, (*memory.shape, *memory.element_shape), type)


def _floats(seed: int, shape: tuple[int, ...], type: str) -> Any:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32 if type == "f32" else np.float64)
