"""Size expressions against their definition: evaluated, and simplified."""

from __future__ import annotations

import pickle

from hypothesis import given, settings
from random_sizes import expressions, worlds

from spirograd.analysis.size_rules import simplify
from spirograd.base.dtypes import i32
from spirograd.base.sizes import leaves, needs_memory, parts, rebuilt, variables

N, M, I, J = ("arg", 0), ("arg", 1), ("bound", 0), ("bound", 1)


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
