"""Random size expressions, and what they are worth by the definition."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from spirograd.base.dtypes import i32, i64, storage, u8, u64
from spirograd.base.sizes import evaluate

DTYPES = (i32, i64, u8, u64)
KINDS = ("add", "sub", "mul", "min", "max", "floordiv", "mod")
FAR = 100  # variables from here on are far from 0
numbers = st.one_of(st.integers(-4, 9), st.integers(-4, 9), st.sampled_from([2**31, -(2**31), 2**63 - 1, -(2**63), 2**64]))


class World:
    """Arguments, extents and contents of memory."""

    def __init__(self, scalars, extents, memories):
        self.scalars, self.extents, self.memories = scalars, extents, memories

    def worth(self, size, bound=None):
        """By the definition, one number at a time."""
        bound = bound or {}
        if isinstance(size, int):
            return size
        kind, *rest = size
        if kind == "arg":
            return self.scalars[rest[0]]
        if kind == "shape":
            return self.extents[rest[0]][rest[1]]
        if kind == "bound":
            return bound[rest[0]]
        if kind == "max_over":
            v, begin, end, body = rest
            return max([0, *[self.worth(body, {**bound, v: n}) for n in range(self.worth(begin, bound), self.worth(end, bound))]])
        if kind == "if_less":
            return self.worth(rest[2], bound) if self.worth(rest[0], bound) < self.worth(rest[1], bound) else 0
        if kind == "memory":
            return self.element(rest[0], rest[1], self.worth(rest[2], bound), rest[3])
        a, b = [self.worth(x, bound) for x in rest]
        if kind in ("floordiv", "mod"):
            return (a // b if kind == "floordiv" else a % b) if b else 0
        return {"add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b)}[kind]

    def element(self, kind, number, offset, dtype):
        raw, t = self.memories[kind, number], storage(dtype).np
        return int(raw[offset : offset + t.itemsize].view(t)[0]) if 0 <= offset <= raw.size - t.itemsize else 0

    def value(self, size):
        """What the launcher gets."""
        return evaluate(
            size,
            self.scalars.__getitem__,
            lambda k, axis: self.extents[k][axis],
            self.element,
            lambda kind, number: self.memories[kind, number],
        )


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
            return ("bound", draw(st.sampled_from(bound)))
        return draw(st.one_of(numbers, st.sampled_from([("arg", 0), ("arg", 1), ("shape", 0, 0), ("shape", 1, 1)])))
    if choice <= 6:
        return (draw(st.sampled_from(KINDS)), draw(inner), draw(inner))
    if choice == 7:
        dtype = draw(st.sampled_from(DTYPES))
        kind, number = draw(st.sampled_from([("array", 0), ("tree", 3)]))
        index = draw(inner)
        return ("memory", kind, number, ("mul", index, dtype.size), dtype, 0, (index,))
    if choice == 8:
        return ("if_less", draw(inner), draw(inner), draw(inner))
    far = draw(st.integers(0, 9)) == 0
    v = len(bound) + FAR * far
    begin, end = draw(ranges(bound))
    if far:
        begin, end = ("add", begin, 2**63 - 4), ("add", end, 2**63 - 4)
    return ("max_over", v, begin, end, draw(expressions(depth - 1, (*bound, v))))


@st.composite
def ranges(draw, bound):
    """The ends of a range: not far apart."""
    near = [st.integers(-3, 5), st.sampled_from([("arg", 0), ("arg", 1), ("shape", 0, 0), ("shape", 1, 0)])]
    few = [v for v in bound if v < FAR]
    if few:
        near.append(st.sampled_from([("bound", v) for v in few]))
        near.append(st.sampled_from([("mod", ("memory", "array", 0, ("mul", ("bound", v), 8), i64, 0, (("bound", v),)), 5) for v in few]))
    near.append(st.tuples(st.sampled_from(["add", "sub", "min", "max"]), st.one_of(*near), st.one_of(*near)))
    return draw(st.one_of(*near)), draw(st.one_of(*near))
