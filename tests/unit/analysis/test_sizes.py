"""Size expressions against their definition: evaluated, and simplified."""

from __future__ import annotations

import pickle
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from random_sizes import World, expressions, worlds

from spirograd.analysis.size_rules import simplify
from spirograd.base import size_ranges
from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.dtypes import i32, i64, u64
from spirograd.base.size_words import in_words
from spirograd.base.sizes import evaluate, leaves, needs_memory, needs_whole, parts, rebuilt, variables
from spirograd.runtime.cache import decode, encode

N, M, I, J = ("arg", 0), ("arg", 1), ("bound", 0), ("bound", 1)
ROWS = ("shape", 0, 0)


def element(index, dtype=i32, number=0):
    return ("memory", "array", number, ("mul", index, dtype.size), dtype, 0, (index,))


def over(end, body, begin=0, v=0):
    return ("max_over", v, begin, end, body)


@settings(max_examples=300, deadline=None)
@given(expressions(), worlds())
def test_evaluated(size, world):
    assert world.value(size) == world.worth(size)


@settings(max_examples=300, deadline=None)
@given(expressions(depth=4), worlds())
def test_simplified(size, world):
    simple = simplify(size)
    assert world.value(simple) == world.worth(size), simple
    assert variables(simple) == frozenset()
    assert set(map(kind_of, leaves(simple))) <= set(map(kind_of, leaves(size)))


def kind_of(leaf):
    return leaf[:3] if leaf[0] != "memory" else (*leaf[:3], leaf[4])


@settings(max_examples=300, deadline=None)
@given(expressions())
def test_plain_data(size):
    copy = pickle.loads(pickle.dumps(size))
    assert copy == size and hash(copy) == hash(size)
    assert rebuilt(size, lambda part: part) == size
    assert set(leaves(size)) >= {leaf for part in parts(size) for leaf in leaves(part)}
    assert needs_memory(size) == ("'memory'" in repr(size))


@pytest.mark.parametrize(
    ("size", "simple"),
    [
        (("max", ("max", N, 0), ("max", 0, N)), ("max", N, 0)),
        (("add", ("sub", ("mul", N, 3), 4), ("sub", 9, ("mul", N, 2))), ("add", N, 5)),
        (("floordiv", ("add", ("mul", N, 8), ("add", M, 16)), 8), ("add", ("add", N, ("floordiv", M, 8)), 2)),
        (("floordiv", ("floordiv", N, 4), 8), ("floordiv", N, 32)),
        (("mod", ("add", ("mul", N, 6), 7), 3), 1),
        (("max", ROWS, 0), ROWS),
        (("min", ("add", N, 2), ("min", N, ("add", N, 7))), N),
        (("if_less", N, ("add", N, 1), M), M),
        (element(-1), 0),
        # Bounds that change with the loop around them.
        (over(N, I), ("max", ("sub", N, 1), 0)),
        (over(ROWS, over(I, J, v=1)), ("max", ("sub", ROWS, 2), 0)),
        (over(N, ("sub", N, I)), ("max", N, 0)),
        (over(N, ("sub", ("min", N, ("add", I, 32)), I)), ("max", ("min", N, 32), 0)),
        (over(N, ("floordiv", ("add", I, 7), 8)), ("max", ("floordiv", ("add", N, 6), 8), 0)),
        (over(N, ("if_less", I, M, I)), ("max", ("sub", ("min", N, M), 1), 0)),
        (over(N, ("mul", I, ("max", M, 0))), ("if_less", 0, N, ("mul", ("max", M, 0), ("sub", N, 1)))),
        # The end alone will not do where the range may be empty.
        (over(N, ("add", I, 3)), ("if_less", 0, N, ("add", N, 2))),
        (over(N, M), ("if_less", 0, N, ("max", M, 0))),
        (over(N, M, begin=N), 0),
        # What memory says stays, over as little as will do.
        (over(N, element(I)), over(N, element(I))),
        (over(N, over(I, element(J), v=1)), over(("sub", N, 1), element(J), v=1)),
        (over(N, ("max", I, element(I))), ("max", ("sub", N, 1), over(N, element(I)))),
    ],
)
def test_forms(size, simple):
    found = simplify(size)
    assert found == simple
    assert simplify(found) == found


FAMILIES = [
    over(N, ("if_less", M, I, ("sub", 9, I))),
    over(N, ("if_less", I, M, ("add", I, 4)), begin=-2),
    over(N, ("if_less", ("sub", M, I), 2, ("min", I, 3))),
    over(N, ("sub", M, ("mul", I, M)), begin=-2),
    over(N, ("floordiv", ("sub", M, I), 2), begin=M),
    over(N, over(("add", I, M), ("sub", J, I), v=1), begin=-1),
    over(M, over(N, ("mul", ("sub", 3, J), ("add", I, 2)), begin=I, v=1)),
]


@pytest.mark.parametrize("size", FAMILIES, ids=str)
def test_families(size):
    """With all small arguments: ranges that are empty, that end before they begin, that hold one number ..."""
    simple = simplify(size)
    for n in range(-4, 7):
        for m in range(-4, 7):
            world = World([n, m], [], {})
            assert world.value(simple) == world.value(size) == world.worth(size), (n, m, simple)


@pytest.mark.parametrize("piece", [1, 5, 64])
def test_pieces(piece, monkeypatch):
    """Rows of all lengths, none among them, cut anywhere; what is found in a row goes to that row."""
    monkeypatch.setattr(size_ranges, "_PIECE", piece)
    lengths = np.array([0, 3, 0, 0, 1, 9, 0, 2, 5, 0, 1, 1, 0], np.int32)
    row = over(element(I), ("add", ("mul", J, 3), ("mod", I, 5)), v=1)
    for other in (0, 1):
        for k in range(lengths.size):
            # The row k alone, from either side.
            size = over(ROWS, ("if_less", ("sub", I, k), 1, ("if_less", ("sub", k, I), 1, ("add", row, other))))
            mine = max([0, *[3 * j + k % 5 for j in range(lengths[k])]])
            assert evaluate(size, **numbered(lengths)) == mine + other
            weighted = over(ROWS, ("sub", row, ("mul", 100, ("max", ("sub", I, k), ("sub", k, I)))))
            assert evaluate(weighted, **numbered(lengths)) == mine


def numbered(data, **kwargs):
    """How `evaluate` reads one array."""
    raw = np.asarray(data).view(np.uint8)
    return {"scalar": lambda k: 0, "extent": lambda k, axis: len(data), "whole": lambda kind, number: raw, **kwargs}


LONG = 2**24 + 1
LONG_RANGES = {
    "of memory": (over(LONG, element(I)), 7000),
    "of neighbours": (over(LONG - 1, ("sub", element(("add", I, 1)), element(I))), 7000 - 3),
    "of arithmetic": (over(LONG, ("mod", ("mul", I, 7), 1013)), 1012),
    "past the end": (over(LONG + 5, element(("add", I, 5))), 7000),
    "in a nest": (over(4097, over(4097, ("min", element(("add", ("mul", I, 4096), J)), 6000), v=1)), 6000),
}


@pytest.mark.parametrize("what", LONG_RANGES)
def test_long(what):
    """More than 2**24 iterations: in little memory and time."""
    size, expected = LONG_RANGES[what]
    data = np.arange(LONG, dtype=np.int32) % 4
    data[-1], data[-2] = 7000, 3
    start = time.perf_counter()
    assert evaluate(size, **numbered(data)) == expected
    assert time.perf_counter() - start < 8, "about a second on a machine with nothing else to do"
    tracemalloc.start()
    evaluate(size, **numbered(data))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20


def test_long_ranges_of_few():
    """A row of many iterations next to many rows of none."""
    lengths = np.zeros(300_000, np.int32)
    lengths[[5, 250_000]] = 200_001, 100
    size = over(("shape", 0, 0), over(element(I), ("add", ("mul", I, 2), J), v=1))
    assert evaluate(size, **numbered(lengths)) == max(2 * 5 + 200_000, 2 * 250_000 + 99)


@pytest.mark.parametrize("number", [2**63 - 1, 2**64 - 1])
def test_nothing_wraps(number):
    data = np.array([1, number, 2], np.uint64)
    readers = numbered(data)
    assert evaluate(over(3, ("mul", element(I, u64), element(I, u64))), **readers) == number**2
    assert evaluate(over(3, ("add", element(I, u64), ("mul", I, 2**62))), **readers) == number + 2**62
    assert evaluate(over(2**63 + 2, ("sub", I, 2**63 - 2), begin=2**63 - 1), **readers) == 3
    assert evaluate(over(-(2**70) + 3, ("add", I, 2**70), begin=-(2**70)), **readers) == 2


def test_each_read_of_the_host_once():
    """What does not change along a range is read once, and only if there is an iteration."""
    reads = []

    def memory(kind, number, offset, dtype):
        reads.append(offset)
        return 4

    size = over(N, ("add", ("mul", I, element(M)), ("mod", I, 3)))
    for n, times in ((300_000, 1), (0, 0)):
        reads.clear()
        evaluate(size, lambda k, n=n: (n, 6)[k], lambda k, axis: 0, memory)
        assert reads == [24] * times
    reads.clear()
    assert evaluate(element(M), lambda k: -1, lambda k, axis: 0, memory) == 0 and not reads
    assert not needs_whole(size) and needs_memory(size)
    assert needs_whole(over(N, element(I)))


def test_leaves_that_nothing_visits():
    """Those of a range that is empty, and of a branch that is not taken."""
    size = ("add", over(0, over(("shape", 0, 1), element(("add", J, element(M))), v=1)), ("if_less", 1, 0, N))
    assert [leaf[0] for leaf in leaves(size)] == ["shape", "memory", "memory", "arg", "arg"]
    assert variables(element(("add", J, I))) == {0, 1}


def test_words():
    names = {("arg", 0): "n", ("arg", 1): "i", ("array", 0): "counts", ("field", 9): "steps"}
    field = ("memory", "tree", 2, ("add", ("mul", I, 8), 4), i64, 9, (I, 1))
    words = {
        5: "5",
        ("max", N, 0): "n",
        ("sub", N, ("sub", M, -1)): "n - (i - (-1))",
        ("mul", ("add", N, 1), ("floordiv", N, ("mul", M, 2))): "(n + 1) * (n // (i * 2))",
        ("max", ("max", N, M), 3): "max(n, i, 3)",
        ROWS: "shape of counts, axis 0",
        over(M, element(I)): "max over j in [0, i) of counts[j]",
        over(N, over(field, ("add", element(I), J), v=1)): "max over j in [0, n) of max over k in [0, steps[j, 1]) of counts[j] + k",
        ("if_less", 0, N, M): "i if 0 < n, else 0",
        ("add", ("memory", "tree", 2, 0, i64, 9, ()), 1): "steps[None] + 1",
    }
    assert {size: in_words(size, names) for size in words} == words


def test_stored_with_a_kernel():
    """In the offline cache, which reads plain data only."""
    size = over(N, over(element(I), ("floordiv", ("add", J, 1), 2), v=1))
    kernel = CompiledKernel("k", "cpu", "key", ArgBlock((), "<", 0), (TaskInfo("t", "range_for", "t", 0, 0, size),))
    assert decode(encode(kernel)).tasks[0].end == size
