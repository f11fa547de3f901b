"""The nodes of symbolic sizes. A size is an `int` or a node; nodes are immutable, compare by value, and go into the offline cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Union

from spirograd.base.constraints import Axis, Index, one_of
from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class Node:
    """A size that is not a constant."""

    @property
    def operands(self) -> tuple[Size, ...]:
        """The sizes that this one is computed from directly."""
        return ()

    def rebuilt(self, change: Callable[[Size], Size]) -> Node:
        """Return the same node with other operands."""
        return self


@dataclass(frozen=True, slots=True)
class Arg(Node):
    """Scalar argument ``number`` of the kernel."""

    number: Index


@dataclass(frozen=True, slots=True)
class Extent(Node):
    """The extent of array argument ``array`` along ``axis``; never negative."""

    array: Index
    axis: Axis


@dataclass(frozen=True, slots=True)
class Variable(Node):
    """The variable of the `MaxOver` around it with this number."""

    number: Index


@dataclass(frozen=True, slots=True)
class Element(Node):
    """The integer at byte ``offset`` of a field tree or an array argument; 0 if it lies outside of the memory.

    ``kind``: "tree" or "array"; ``number``: the number of the tree or array; ``key``: that of the field (`FieldRef.key`; 0 for arrays).
    ``indices`` are those of the element, for messages; they do not affect the value.
    """

    kind: Annotated[str, one_of("tree", "array")]
    number: Index
    offset: Size
    dtype: DType
    key: Index
    indices: tuple[Size, ...]

    @property
    def operands(self) -> tuple[Size, ...]:
        return (self.offset,)

    def rebuilt(self, change: Callable[[Size], Size]) -> Element:
        return replace(self, offset=change(self.offset), indices=tuple([change(index) for index in self.indices]))


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """An operation on two sizes; the class says which one."""

    a: Size
    b: Size

    @property
    def operands(self) -> tuple[Size, ...]:
        return self.a, self.b

    def rebuilt(self, change: Callable[[Size], Size]) -> Binary:
        return type(self)(change(self.a), change(self.b))


class Add(Binary):
    __slots__ = ()


class Sub(Binary):
    __slots__ = ()


class Mul(Binary):
    __slots__ = ()


class FloorDiv(Binary):
    """The quotient, rounded down; 0 if ``b`` is 0."""

    __slots__ = ()


class Mod(Binary):
    """The remainder, which has the sign of ``b``; 0 if ``b`` is 0."""

    __slots__ = ()


class Min(Binary):
    __slots__ = ()


class Max(Binary):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class IfLess(Node):
    """``value`` if ``a < b``, else 0."""

    a: Size
    b: Size
    value: Size

    @property
    def operands(self) -> tuple[Size, ...]:
        return self.a, self.b, self.value

    def rebuilt(self, change: Callable[[Size], Size]) -> IfLess:
        return IfLess(change(self.a), change(self.b), change(self.value))


@dataclass(frozen=True, slots=True)
class MaxOver(Node):
    """The maximum of 0 and of ``body`` for all values of ``variable`` in [begin, end)."""

    variable: Index
    begin: Size
    end: Size
    body: Size

    @property
    def operands(self) -> tuple[Size, ...]:
        return self.begin, self.end, self.body

    def rebuilt(self, change: Callable[[Size], Size]) -> MaxOver:
        return MaxOver(self.variable, change(self.begin), change(self.end), change(self.body))


Size = Union[int, Node]
NODES: tuple[type[Node], ...] = (Arg, Extent, Variable, Element, Add, Sub, Mul, FloorDiv, Mod, Min, Max, IfLess, MaxOver)


def walk(size: Size) -> Iterator[Size]:
    """Iterate over ``size`` and every size in it, outer before inner."""
    yield size
    if isinstance(size, Node):
        for operand in size.operands:
            yield from walk(operand)


def leaves(size: Size) -> tuple[Arg | Extent | Element, ...]:
    """Return the leaves that the value of ``size`` can depend on, each once, in order of appearance."""
    return tuple(dict.fromkeys([part for part in walk(size) if isinstance(part, (Arg, Extent, Element))]))


def needs_memory(size: Size) -> bool:
    """Return whether ``size`` reads memory."""
    return any(isinstance(part, Element) for part in walk(size))


def variables(size: Size) -> frozenset[int]:
    """Return the free variables of ``size``: those of `MaxOver` nodes around it."""
    if isinstance(size, int):
        return frozenset()
    if isinstance(size, Variable):
        return frozenset((size.number,))
    if isinstance(size, MaxOver):
        return variables(size.begin) | variables(size.end) | (variables(size.body) - {size.variable})
    return frozenset().union(*map(variables, size.operands))


def replaced(size: Size, variable: int, value: Size) -> Size:
    """Return ``size`` with ``value`` substituted for a free variable."""
    if isinstance(size, int):
        return size
    return value if size == Variable(variable) else size.rebuilt(lambda operand: replaced(operand, variable, value))


def flattened(kind: type[Binary], size: Size) -> list[Size]:
    """Return the operands of nested minima, or of nested maxima."""
    if not isinstance(size, kind):
        return [size]
    return [x for operand in size.operands for x in flattened(kind, operand)]
