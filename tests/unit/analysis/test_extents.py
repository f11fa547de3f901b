"""What loops reach, known before they run: against the interpreter, which runs them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.analysis.random_sizes import World

from spirograd.analysis.extents import element_of, extent_of
from spirograd.analysis.sizes import size_of
from spirograd.analysis.trial import run
from spirograd.base.dtypes import f32, i8, i32, i64, u32
from spirograd.base.sizes.size_nodes import Element, needs_memory
from spirograd.base.sizes.size_text import count_text
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, FieldRef, Kernel, Layout, LoopAttr, ScalarArg, TempRef, Term
from spirograd.ir.size_names import size_names
from spirograd.ir.spec import verify

COUNTS = ArrayRef("counts", 0, i32, 1)
TABLE = ArrayRef("table", 1, i64, 2)
STEPS = FieldRef("steps", 4, 17, i8, (5, 2), (), Layout((Term(0, 1, 0, 4), Term(1, 1, 0, 1)), (3,)))
ARGS = (ArrayArg("counts", i32, 1), ArrayArg("table", i64, 2), ScalarArg("n", i32), ScalarArg("m", i32))
MOST, VISITS = TempRef("most", i32), TempRef("visits", i32)
EXTENTS = {COUNTS: (5,), TABLE: (2, 4), STEPS: (5, 2)}


class Nest:
    """A kernel of loops and branches around one note of a number, written by ``choose``: a function that picks one of its arguments."""

    def __init__(self, choose=None):
        self.b = Builder()
        self.b.begin()
        self.choose = choose
        self.b.store(MOST, self.b.const(0))
        self.b.store(VISITS, self.b.const(0))
        self.known = [self.b.emit(ops.arg, attr=2, type=i32), self.b.emit(ops.arg, attr=3, type=i32)]
        self.n, self.m = self.known
        self.known.append(self.b.emit(ops.shape, attr=(0, 0), type=i32))

    def c(self, n, t=i32):
        return self.b.const(n, t)

    def op(self, code, a, b, attr=None):
        return self.b.emit(code, a, b, attr=attr)

    def note(self, value):
        self.b.atomic("max", MOST, self.op(ops.max_, value, self.c(0)))
        self.b.atomic("add", VISITS, self.c(1))

    def loop(self, begin, end, body, parallel=False):
        (i,) = self.b.begin(begin.type)
        body(i)
        self.b.for_(begin, end, (), self.b.end(), LoopAttr(parallel=parallel))

    def branch(self, condition, body, then=True):
        regions = []
        for side in (True, False):
            self.b.begin()
            if side is then:
                body()
            regions.append(self.b.end())
        self.b.if_(condition, *regions)

    def kernel(self):
        kernel = Kernel("nest", ARGS, self.b.end(), (MOST, VISITS))
        verify(kernel, "kernel")
        return kernel

    # --- random ones -----------------------------------------------------------------------------------------------------

    def number(self, indices, depth=2):
        choose = self.choose
        what = choose("known", "const", "index", "index", "sum", "op", "load") if depth else choose("known", "const", "index")
        if what == "index" and indices:
            return choose(*indices)
        if what in ("known", "index"):
            return choose(*self.known)
        if what == "const":
            return self.c(choose(*range(-3, 6)))
        if what == "load":
            ref = choose(COUNTS, TABLE, STEPS)
            at = [self.op(ops.floormod, self.number(indices, depth - 1), self.c(n)) for n in EXTENTS[ref]]
            value = self.b.load(ref, *at)
            if ref is TABLE:  # a narrowing that its limits allow
                value = self.op(ops.min_, self.op(ops.max_, value, self.c(-9, i64)), self.c(9, i64))
            return self.b.cast(value, i32)
        code = (
            choose(ops.add, ops.sub)
            if what == "sum"
            else choose(ops.min_, ops.max_, ops.floordiv, ops.floormod, ops.mul, ops.shr, ops.and_)
        )
        a, b = self.number(indices, depth - 1), self.number(indices, depth - 1)
        if code in (ops.shr, ops.and_, ops.mul):
            b = self.c(choose(1, 3))
        return self.op(code, a, b)

    def condition(self, indices, depth=2):
        what = self.choose("and", "or", "not", "lt", "le", "gt", "ge", "eq", "ne") if depth else "lt"
        if what == "not":
            return self.b.emit(ops.not_, self.condition(indices, depth - 1))
        if what in ("and", "or"):
            return self.op(getattr(ops, what + "_"), self.condition(indices, depth - 1), self.condition(indices, depth - 1))
        return self.op(getattr(ops, what), self.number(indices, 1), self.number(indices, 1))

    def grow(self, depth, indices=()):
        """Control around what is inside; what comes before is emitted at any level."""
        if not depth:
            return self.note(self.number(indices))
        if self.choose(0, 0, 0, 1):
            then = self.choose(True, False)
            return self.branch(self.condition(indices), lambda: self.grow(depth - 1, indices), then)
        begin, length = self.number(indices, 1), self.op(ops.min_, self.number(indices, 1), self.c(6))
        end = self.op(ops.add, begin, length)
        if self.choose(0, 1):
            begin, end = self.c(self.choose(0, 0, 1)), self.op(ops.min_, self.number(indices, 1), self.c(7))
        return self.loop(begin, end, lambda i: self.grow(depth - 1, (*indices, i)), parallel=not indices and self.b.depth == 1)


def found_in(kernel):
    """The note, and what is around it."""

    def look(region, around):
        for op in region.ops:
            if op.code is ops.atomic and op.attr == ("max", MOST):
                yield op, around
            for inner in op.regions:
                yield from look(inner, (*around, op))

    ((note, around),) = look(kernel.body, ())
    return note, around


class Memory:
    def __init__(self, counts, table, tree, n, m):
        self.args = [np.array(counts, np.int32), np.array(table, np.int64).reshape(2, 4), n, m]
        self.tree = np.array(tree, np.int8).view(np.uint8)

    def value(self, size):
        raw = {("tree", 4): self.tree, **{("array", k): self.args[k].reshape(-1).view(np.uint8) for k in (0, 1)}}
        return World(self.args, [array.shape for array in self.args[:2]], raw).worth(size)

    def reached(self, kernel):
        """The largest number that is noted, and how often one is."""
        outcome = run(kernel, self.args, {4: self.tree})
        assert outcome.fault is None, outcome.fault
        return tuple(map(int, outcome.returns))


small = st.integers(-3, 8)


def several(n):
    return st.lists(small, min_size=n, max_size=n)


memories = st.builds(Memory, several(5), several(8), several(24), small, small)


@settings(max_examples=200, deadline=None)
@given(st.data(), memories, st.integers(1, 4))
def test_random_nests(data, memory, depth):
    nest = Nest(lambda *options: options[data.draw(st.integers(0, len(options) - 1))])
    nest.grow(depth)
    kernel = nest.kernel()
    size = extent_of(*found_in(kernel))
    assert size is not None
    most, visits = memory.reached(kernel)
    assert memory.value(size) == most if visits else memory.value(size) >= 0, count_text(size, size_names(kernel))


def extent(kernel):
    size = extent_of(*found_in(kernel))
    return size if size is None else count_text(size, size_names(kernel))


def test_words():
    """Nests that people write, as they read."""

    def over_counts(nest):
        nest.loop(nest.c(0), nest.m, lambda i: nest.note(nest.b.load(COUNTS, i)), parallel=True)

    def triangle(nest):
        nest.loop(nest.c(0), nest.n, lambda i: nest.note(i), parallel=True)

    def blocks(nest):
        def body(i):
            nest.note(nest.op(ops.sub, nest.op(ops.min_, nest.op(ops.add, i, nest.c(32)), nest.n), i))

        nest.loop(nest.c(0), nest.n, body, parallel=True)

    def ragged(nest):
        def row(i):
            begin, end = nest.b.load(COUNTS, i), nest.b.load(COUNTS, nest.op(ops.add, i, nest.c(1)))
            nest.loop(begin, end, lambda j: nest.note(nest.b.cast(nest.b.load(STEPS, j, nest.c(1)), i32)))

        nest.loop(nest.c(0), nest.op(ops.sub, nest.known[2], nest.c(1)), row, parallel=True)

    def fixed(nest):
        nest.loop(nest.c(0), nest.n, lambda i: nest.note(nest.b.load(COUNTS, nest.m)), parallel=True)

    words = {
        over_counts: "max over i in [0, m) of counts[i]",
        triangle: "n - 1",
        blocks: "min(n, 32)",
        ragged: "max over i in [0, counts.shape[0] - 1) of max over j in [counts[i], counts[i + 1]) of steps[j, 1]",
        fixed: "counts[m]",
    }
    for write, expected in words.items():
        nest = Nest()
        write(nest)
        assert extent(nest.kernel()) == expected


def test_what_only_running_tells():
    def carried(nest):
        zero = nest.c(0)
        i, x = nest.b.begin(i32, i32)
        nest.note(x)
        nest.b.for_(zero, nest.n, (nest.m,), nest.b.end([nest.op(ops.mul, x, i)]))

    def counted_by_while(nest):
        (x,) = nest.b.begin(i32)
        condition = nest.b.end([nest.op(ops.lt, x, nest.n)])
        (x,) = nest.b.begin(i32)
        nest.note(x)
        nest.b.while_((nest.m,), condition, nest.b.end([nest.op(ops.add, x, x)]))

    def rounded(nest):
        nest.note(nest.b.cast(nest.b.emit(ops.sqrt, nest.b.cast(nest.n, f32)), i32))

    def narrowed(nest):
        nest.note(nest.b.cast(nest.b.load(TABLE, nest.c(0), nest.c(0)), i32))

    def unsigned(nest):
        nest.note(nest.b.cast(nest.b.cast(nest.n, u32), i32))

    def written(nest):
        nest.note(nest.b.load(MOST))

    for write in (carried, counted_by_while, rounded, narrowed, unsigned, written):
        nest = Nest()
        write(nest)
        assert extent(nest.kernel()) is None, write


def of_float(nest):
    return nest.op(ops.gt, nest.b.cast(nest.n, f32), nest.c(0.5, f32))


@pytest.mark.parametrize(
    ("number", "loads_outside", "expected"),
    [
        (lambda nest, i: nest.n, False, "n"),
        (lambda nest, i: nest.b.load(COUNTS, nest.c(2)), False, "counts[2]"),
        (lambda nest, i: i, False, None),
        (lambda nest, i: nest.b.load(COUNTS, i), False, None),
        (lambda nest, i: nest.b.load(COUNTS, nest.b.load(COUNTS, nest.c(2))), False, None),
        (lambda nest, i: nest.b.load(COUNTS, nest.b.load(COUNTS, nest.c(2))), True, "max(counts[counts[2]], 0) if 0 < m, else 0"),
    ],
)
def test_branch_of_which_nothing_is_known(number, loads_outside, expected):
    """It is left out unless it tells iterations apart, or guards a read at a place that only those who get there need to have."""
    nest = Nest()

    def body(i):
        outside = number(nest, i) if loads_outside else None
        nest.branch(of_float(nest), lambda: nest.note(outside or number(nest, i)))

    nest.loop(nest.c(0), nest.m, body, parallel=True)
    assert extent(nest.kernel()) == expected


@pytest.mark.parametrize("then", [True, False])
@pytest.mark.parametrize("code", [ops.lt, ops.le, ops.gt, ops.ge, ops.eq, ops.ne], ids=str)
def test_conditions(code, then):
    """Which iterations get to the note."""
    nest = Nest()

    def body(i):
        nest.branch(nest.op(code, nest.op(ops.sub, i, nest.n), nest.m), lambda: nest.note(nest.op(ops.sub, nest.c(9), i)), then)

    nest.loop(nest.c(0), nest.c(6), body, parallel=True)
    kernel = nest.kernel()
    size = extent_of(*found_in(kernel))
    for n in range(-2, 8):
        for m in (-2, 0, 1):
            memory = Memory([0] * 5, [0] * 8, [0] * 24, n, m)
            assert memory.value(size) == memory.reached(kernel)[0], (n, m)


def test_garbage_that_nothing_reads():
    """Elements that no iteration gets to may be anything."""
    nest = Nest()

    def row(i):
        count = nest.b.load(COUNTS, i)
        nest.branch(
            nest.op(ops.ge, count, nest.c(0)),
            lambda: nest.loop(nest.c(0), count, lambda j: nest.note(nest.b.cast(nest.b.load(STEPS, i, nest.c(0)), i32))),
        )

    nest.loop(nest.c(0), nest.known[2], row, parallel=True)
    kernel = nest.kernel()
    size = extent_of(*found_in(kernel))
    steps = np.full(24, 120, np.int8)
    steps[[3, 3 + 8]] = 5, 7
    memory = Memory([2, 0, 1, -4, 0], [0] * 8, steps, 0, 0)
    assert memory.value(size) == memory.reached(kernel)[0] == 7


def known_element(load):
    indices = [size_of(a, known_element) for a in load.args]
    return None if None in indices else element_of(load, indices)


def test_known_element():
    """What the host can read: at constant indices, and at those that arguments and other such elements tell."""
    nest = Nest()
    at = [(COUNTS, (nest.c(3),)), (TABLE, (nest.c(1), nest.n)), (STEPS, (nest.b.load(COUNTS, nest.c(0)), nest.c(1)))]
    loads = [nest.b.load(ref, *index) for ref, index in at]
    nest.note(nest.n)
    outside = [nest.b.load(STEPS, nest.c(5), nest.c(0)), nest.b.load(STEPS, nest.c(0), nest.c(-1)), nest.b.load(COUNTS, nest.c(-1))]
    memory = Memory([2, 0, 1, 9, 0], [0, 1, 2, 3, 4, 5, 6, 7], np.arange(24), 2, 0)
    assert [memory.value(known_element(load)) for load in loads] == [9, 6, 3 + 2 * 4 + 1]
    assert all(needs_memory(known_element(load)) for load in loads)
    assert [known_element(load) for load in outside] == [None] * 3
    assert known_element(loads[0]) == Element("array", 0, 12, i32, 0, (3,))


def test_origin():
    field = FieldRef("f", 4, 18, i32, (4,), (), Layout((Term(0, 1, 0, 4),), (0,), (-2,)))
    b = Builder()
    b.begin()
    size = known_element(b.load(field, b.const(-1)))
    assert size.offset == 4
    assert known_element(b.load(field, b.const(2))) is None


def test_expressions_that_grow():
    """Each step uses the one before twice: written out, there would be a million operations."""
    nest = Nest()
    value = nest.n
    for _ in range(20):
        value = nest.op(ops.add, nest.op(ops.floordiv, value, nest.m), value)
    nest.note(value)
    assert extent(nest.kernel()) is None
