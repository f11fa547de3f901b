"""Size expressions against their definition: evaluated, and simplified."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import assume, given, settings
from unit.analysis.random_sizes import World, expressions, worlds

from spirograd.base.artifact import AdstackSizing, ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.dtypes import i32, i64
from spirograd.base.sizes.evaluate import evaluate
from spirograd.base.sizes.python_expressions import function, size_expression
from spirograd.base.sizes.simplify_sizes import simplify
from spirograd.base.sizes.size_nodes import (
    Add,
    Arg,
    Element,
    Extent,
    FloorDiv,
    IfLess,
    Max,
    MaxOver,
    Min,
    Mod,
    Mul,
    Sub,
    Variable,
    leaves,
    needs_memory,
    variables,
    walk,
)
from spirograd.base.sizes.size_text import count_text
from spirograd.runtime.encoding import CLASSES, encoded
from spirograd.runtime.offline_cache import decode, encode
from spirograd.runtime.typed_decoding import Reader

N, M, I, J = Arg(0), Arg(1), Variable(0), Variable(1)
ROWS = Extent(0, 0)


def element(index, dtype=i32, number=0):
    return Element("array", number, Mul(index, dtype.size), dtype, 0, (index,))


def over(end, body, begin=0, v=0):
    return MaxOver(v, begin, end, body)


@settings(max_examples=150, deadline=None)
@given(expressions(), worlds())
def test_evaluated(size, world):
    assume(not any(isinstance(part, MaxOver) for part in walk(size)))
    assert world.value(size) == world.worth(size)
    if not needs_memory(size):
        assert function(("s", "a"), size_expression(size))(world.scalars, world.arrays) == world.worth(size)


@settings(max_examples=150, deadline=None)
@given(expressions(depth=4), worlds())
def test_simplified(size, world):
    simple = simplify(size)
    assert world.worth(simple) == world.worth(size), simple
    assert variables(simple) == frozenset()
    assert set(map(kind_of, leaves(simple))) <= set(map(kind_of, leaves(size)))


def kind_of(leaf):
    return (leaf.kind, leaf.number, leaf.dtype) if isinstance(leaf, Element) else leaf


@settings(max_examples=150, deadline=None)
@given(expressions())
def test_plain_data(size):
    copy = pickle.loads(pickle.dumps(size))
    assert copy == size and hash(copy) == hash(size)
    if not isinstance(size, int):
        assert size.rebuilt(lambda part: part) == size
        assert set(leaves(size)) >= {leaf for part in size.operands for leaf in leaves(part)}
    assert needs_memory(size) == ("Element(" in repr(size))


@pytest.mark.parametrize(
    ("size", "simple"),
    [
        (Max(Max(N, 0), Max(0, N)), Max(N, 0)),
        (Add(Sub(Mul(N, 3), 4), Sub(9, Mul(N, 2))), Add(N, 5)),
        (FloorDiv(Add(Mul(N, 8), Add(M, 16)), 8), Add(Add(N, FloorDiv(M, 8)), 2)),
        (FloorDiv(FloorDiv(N, 4), 8), FloorDiv(N, 32)),
        (Mod(Add(Mul(N, 6), 7), 3), 1),
        (Max(ROWS, 0), ROWS),
        (Min(Add(N, 2), Min(N, Add(N, 7))), N),
        (IfLess(N, Add(N, 1), M), M),
        (element(-1), 0),
        # Bounds that change with the loop around them.
        (over(N, I), Max(Sub(N, 1), 0)),
        (over(ROWS, over(I, J, v=1)), Max(Sub(ROWS, 2), 0)),
        (over(N, Sub(N, I)), Max(N, 0)),
        (over(N, Sub(Min(N, Add(I, 32)), I)), Max(Min(N, 32), 0)),
        (over(N, FloorDiv(Add(I, 7), 8)), Max(FloorDiv(Add(N, 6), 8), 0)),
        (over(N, IfLess(I, M, I)), Max(Sub(Min(N, M), 1), 0)),
        (over(N, Mul(I, Max(M, 0))), IfLess(0, N, Mul(Max(M, 0), Sub(N, 1)))),
        # The end alone will not do where the range may be empty.
        (over(N, Add(I, 3)), IfLess(0, N, Add(N, 2))),
        (over(N, M), IfLess(0, N, Max(M, 0))),
        (over(N, M, begin=N), 0),
        # What memory says stays, over as little as will do.
        (over(N, element(I)), over(N, element(I))),
        (over(N, over(I, element(J), v=1)), over(Sub(N, 1), element(J), v=1)),
        (over(N, Max(I, element(I))), Max(Sub(N, 1), over(N, element(I)))),
    ],
)
def test_forms(size, simple):
    found = simplify(size)
    assert found == simple
    assert simplify(found) == found


FAMILIES = [
    over(N, IfLess(M, I, Sub(9, I))),
    over(N, IfLess(I, M, Add(I, 4)), begin=-2),
    over(N, IfLess(Sub(M, I), 2, Min(I, 3))),
    over(N, Sub(M, Mul(I, M)), begin=-2),
    over(N, FloorDiv(Sub(M, I), 2), begin=M),
    over(N, over(Add(I, M), Sub(J, I), v=1), begin=-1),
    over(M, over(N, Mul(Sub(3, J), Add(I, 2)), begin=I, v=1)),
]


@pytest.mark.parametrize("size", FAMILIES, ids=str)
def test_families(size):
    """With all small arguments: ranges that are empty, that end before they begin, that hold one number ..."""
    simple = simplify(size)
    for n in range(-4, 7):
        for m in range(-4, 7):
            world = World([n, m], [], {})
            assert world.worth(simple) == world.worth(size), (n, m, simple)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**64 - 1])
def test_nothing_wraps(number):
    world = World([number, 3], [], {})
    for size in (Mul(N, N), Add(Mul(N, 2), M), Sub(M, N), FloorDiv(Mul(N, N), M), Mod(Mul(N, N), 1000)):
        assert world.value(size) == world.worth(size) == world.worth(simplify(size))


def test_what_is_not_reached_is_not_read():
    reads = []

    def read(element, offset):
        reads.append(offset)
        return 4

    assert evaluate(IfLess(0, N, element(M)), (1, 6), [], read) == 4 and reads == [24]
    reads.clear()
    assert evaluate(IfLess(0, N, element(M)), (0, 6), [], read) == 0
    assert evaluate(element(M), (0, -1), [], read) == 0
    assert not reads


def test_leaves_that_nothing_visits():
    """Those of a range that is empty, and of a branch that is not taken."""
    size = Add(over(0, over(Extent(0, 1), element(Add(J, element(M))), v=1)), IfLess(1, 0, N))
    assert [type(leaf) for leaf in leaves(size)] == [Extent, Element, Element, Arg, Arg]
    assert variables(element(Add(J, I))) == {0, 1}


def test_text():
    names = {("arg", 0): "n", ("arg", 1): "i", ("array", 0): "counts", ("field", 9): "steps"}
    field = Element("tree", 2, Add(Mul(I, 8), 4), i64, 9, (I, 1))
    words = {
        5: "5",
        Max(N, 0): "n",
        Sub(N, Sub(M, -1)): "n - (i - (-1))",
        Mul(Add(N, 1), FloorDiv(N, Mul(M, 2))): "(n + 1) * (n // (i * 2))",
        Max(Max(N, M), 3): "max(n, i, 3)",
        ROWS: "counts.shape[0]",
        over(M, element(I)): "max over j in [0, i) of counts[j]",
        over(N, over(field, Add(element(I), J), v=1)): "max over j in [0, n) of max over k in [0, steps[j, 1]) of counts[j] + k",
        IfLess(0, N, M): "i if 0 < n, else 0",
        Add(Element("tree", 2, 0, i64, 9, ()), 1): "steps[None] + 1",
    }
    assert {size: count_text(size, names) for size in words} == words


def test_stored_with_a_kernel():
    """In modules and in the offline cache, which read plain data only. What the host computes before a launch reads no memory."""
    size = over(N, over(element(I), FloorDiv(Add(J, 1), 2), v=1))
    sizing = AdstackSizing((size, None))
    assert Reader(CLASSES).read(AdstackSizing, encoded(sizing, []), ()) == sizing
    for end, stored in ((size, False), (FloorDiv(Add(N, ROWS), 2), True)):
        kernel = CompiledKernel("k", "cpu", "key", ArgBlock((), "<", 0), (TaskInfo("t", "range_for", "t", 0, 0, end),))
        back = decode(encode(kernel))
        assert back.tasks[0].end == end if stored else back is None
