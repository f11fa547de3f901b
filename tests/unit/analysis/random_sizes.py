"""Random size expressions, and what they are worth by the definition."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st

from spirograd.base.dtypes import i32, i64, storage, u8, u64
from spirograd.base.sizes.evaluate import evaluate
from spirograd.base.sizes.size_nodes import Add, Arg, Element, Extent, FloorDiv, IfLess, Max, MaxOver, Min, Mod, Mul, Sub, Variable

DTYPES = (i32, i64, u8, u64)
KINDS = (Add, Sub, Mul, Min, Max, FloorDiv, Mod)
FAR = 100  # variables from here on are far from 0
numbers = st.one_of(st.integers(-4, 9), st.integers(-4, 9), st.sampled_from([2**31, -(2**31), 2**63 - 1, -(2**63), 2**64]))


class World:
    """Arguments, extents and contents of memory."""

    def __init__(self, scalars, extents, memories):
        self.scalars, self.arrays, self.memories = scalars, [SimpleNamespace(shape=shape) for shape in extents], memories

    def worth(self, size, bound=None):
        """The value by the definition, one number at a time."""
        bound = bound or {}

        def of(part):
            return self.worth(part, bound)

        match size:
            case int():
                return size
            case Arg(number):
                return self.scalars[number]
            case Extent(array, axis):
                return self.arrays[array].shape[axis]
            case Variable(number):
                return bound[number]
            case MaxOver(v, begin, end, body):
                return max([0, *[self.worth(body, {**bound, v: n}) for n in range(of(begin), of(end))]])
            case IfLess(a, b, value):
                return of(value) if of(a) < of(b) else 0
            case Element():
                return self.element(size, of(size.offset))
            case FloorDiv(a, b):
                return of(a) // of(b) if of(b) else 0
            case Mod(a, b):
                return of(a) % of(b) if of(b) else 0
        a, b = of(size.a), of(size.b)
        return {Add: a + b, Sub: a - b, Mul: a * b, Min: min(a, b), Max: max(a, b)}[type(size)]

    def element(self, element, offset):
        raw, t = self.memories[element.kind, element.number], storage(element.dtype).np
        return int(raw[offset : offset + t.itemsize].view(t)[0]) if 0 <= offset <= raw.size - t.itemsize else 0

    def value(self, size):
        """What the launcher gets."""
        return evaluate(size, self.scalars, self.arrays, self.element)


@st.composite
def worlds(draw):
    def memory():
        words = draw(st.lists(numbers.map(lambda n: n % 2**64), max_size=6))
        return np.array(words, np.uint64).view(np.uint8)

    scalars = draw(st.lists(st.integers(-5, 7), min_size=2, max_size=2))
    extents = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=2, max_size=2))
    return World(scalars, extents, {("array", 0): memory(), ("tree", 3): memory()})


@st.composite
def expressions(draw, depth=3, bound=()):
    """A size whose ranges stay short enough to count through."""
    inner = expressions(depth - 1, bound) if depth else None
    choice = draw(st.integers(0, 9 if depth else 4))
    if choice <= 4:
        if bound and draw(st.booleans()):
            return Variable(draw(st.sampled_from(bound)))
        return draw(st.one_of(numbers, st.sampled_from([Arg(0), Arg(1), Extent(0, 0), Extent(1, 1)])))
    if choice <= 6:
        return draw(st.sampled_from(KINDS))(draw(inner), draw(inner))
    if choice == 7:
        dtype = draw(st.sampled_from(DTYPES))
        kind, number = draw(st.sampled_from([("array", 0), ("tree", 3)]))
        index = draw(inner)
        return Element(kind, number, Mul(index, dtype.size), dtype, 0, (index,))
    if choice == 8:
        return IfLess(draw(inner), draw(inner), draw(inner))
    far = draw(st.integers(0, 9)) == 0
    v = len(bound) + FAR * far
    begin, end = draw(ranges(bound))
    if far:
        begin, end = Add(begin, 2**63 - 4), Add(end, 2**63 - 4)
    return MaxOver(v, begin, end, draw(expressions(depth - 1, (*bound, v))))


@st.composite
def ranges(draw, bound):
    """The ends of a range: not far apart."""
    near = [st.integers(-3, 5), st.sampled_from([Arg(0), Arg(1), Extent(0, 0), Extent(1, 0)])]
    few = [v for v in bound if v < FAR]
    if few:
        near.append(st.sampled_from([Variable(v) for v in few]))
        near.append(st.sampled_from([Mod(Element("array", 0, Mul(Variable(v), 8), i64, 0, (Variable(v),)), 5) for v in few]))
    near.append(st.builds(lambda kind, a, b: kind(a, b), st.sampled_from([Add, Sub, Min, Max]), st.one_of(*near), st.one_of(*near)))
    return draw(st.one_of(*near)), draw(st.one_of(*near))
