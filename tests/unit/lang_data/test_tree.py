"""Random field trees: addresses are disjoint, aligned and in bounds; loops visit every cell once, in memory order."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spirograd.base.dtypes import ALL, f32, f64, i32
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError
from spirograd.lang import annotations
from spirograd.lang.data.axes import ij, ijk, j
from spirograd.lang.data.field import ScalarField, field
from spirograd.lang.data.tree import FieldsBuilder, root

AXES = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)


@st.composite
def trees(draw):
    """A builder with fields in it: nested levels, several children, several fields to a cell."""
    builder = FieldsBuilder()
    fields = []

    def grow(node, depth):
        for _ in range(draw(st.integers(1, 2))):
            if depth == 0 or draw(st.booleans()):
                axes = draw(AXES)
                child = node.dense(axes, [draw(st.integers(1, 4)) for _ in axes])
                if depth < 2:
                    grow(child, depth + 1)
            else:
                child = node
            for _ in range(draw(st.integers(0, 2))):
                dtype = draw(st.sampled_from(ALL))
                n = draw(st.integers(1, 3))
                f = ScalarField(dtype) if n == 1 else annotations.vector(n, dtype).unplaced_field("", False, False, None)
                child.place(f)
                fields.append(f)

    grow(builder, 0)
    return builder, fields


def addresses(f):
    """Byte addresses of all scalars of a field, from its terms alone."""
    layout = f.refs().layout
    out = []
    for index in np.ndindex(*f.shape):
        base = sum((index[t.axis] // t.div % t.mod if t.mod else index[t.axis] // t.div) * t.stride for t in layout.terms)
        out += [base + c for c in layout.components]
    return out


@settings(max_examples=80, deadline=None)
@given(trees())
def test_addresses_are_disjoint_aligned_and_in_bounds(made):
    builder, fields = made
    tree = builder.finalize()
    taken = np.zeros(tree.nbytes, bool)
    for f in fields:
        size = f.dtype.size
        for a in addresses(f):
            assert a % size == 0 and a >= 0 and a + size <= tree.nbytes
            assert not taken[a : a + size].any()
            taken[a : a + size] = True
        assert all(t.stride % size == 0 for t in f.refs().layout.terms)


@settings(max_examples=80, deadline=None)
@given(trees())
def test_loops_visit_every_cell_once_in_memory_order(made):
    _, fields = made
    for f in fields:
        counters = np.arange(int(np.prod(f.shape)))
        index = [np.zeros_like(counters) for _ in f.shape]
        for axis, div, mod, mul in f.decode():
            digit = counters // div
            index[axis] = index[axis] + (digit % mod if mod else digit) * mul
        seen = list(zip(*[x.tolist() for x in index])) if index else [()]
        assert sorted(seen) == sorted(np.ndindex(*f.shape))
        by_index = dict(zip(np.ndindex(*f.shape), itertools.islice(addresses(f), 0, None, f.components)))
        visited = [by_index[i] for i in seen]
        assert visited == sorted(visited)


@settings(max_examples=40, deadline=None)
@given(trees())
def test_transfers_do_not_disturb_neighbours(made):
    _, fields = made
    rng = np.random.default_rng(0)
    contents = []
    for f in fields:
        data = rng.integers(0, 2, f.view.full_shape).astype(f.dtype.np)
        f.from_numpy(data)
        contents.append(data)
    for f, data in zip(fields, contents):
        np.testing.assert_array_equal(f.to_numpy(), data)
    for n, f in enumerate(fields):
        f.fill(1)
        contents[n] = np.ones_like(contents[n])
        for g, data in zip(fields, contents):
            np.testing.assert_array_equal(g.to_numpy(), data)


def test_contiguous_levels_become_one_term():
    x = ScalarField(f32)
    root.dense(0, 4).dense(0, 8).place(x)
    assert len(x.refs().layout.terms) == 1 and x.refs().layout.terms[0].stride == 4
    assert x.shape == (32,) and x.decode() == [(0, 1, 0, 1)]


def test_axes_and_shapes():
    x, y = ScalarField(f32), ScalarField(f32)
    block = root.dense(ij, (2, 3))
    block.dense(ij, 4).place(x)
    root.dense(j, 5).place(y)
    assert block.shape == (2, 3) and x.shape == (8, 12) and y.shape == (5,)
    assert x.parent().shape == (8, 12) and x.parent(2) is block and x.parent(3).parent() is None
    assert repr(x.snode) == "root => dense [2, 3] => dense [8, 12] => place [8, 12]"
    assert len(ijk) == 3


def test_closed_trees():
    x, y, z = ScalarField(f32), ScalarField(f32), ScalarField(f32)
    block = root.dense(0, 4)
    block.place(x)
    assert x.to_numpy().tolist() == [0, 0, 0, 0]
    with pytest.raises(SpirogradRuntimeError, match="closed"):
        block.place(y)
    root.dense(0, 2).place(z)
    assert z.tree is not x.tree and z.refs().tree != x.refs().tree
    builder = FieldsBuilder()
    w = ScalarField(i32)
    builder.dense(0, 3).place(w)
    tree = builder.finalize()
    w[1] = 5
    assert w.to_numpy().tolist() == [0, 5, 0]
    tree.destroy()
    with pytest.raises(SpirogradRuntimeError, match="destroyed"):
        w[1]


def test_errors():
    x = field(f32, 3)
    with pytest.raises(SpirogradRuntimeError, match="place already"):
        root.dense(0, 3).place(x)
    with pytest.raises(SpirogradRuntimeError, match="no place yet"):
        _ = ScalarField(f32).shape
    with pytest.raises(SpirogradTypeError, match="distinct"):
        root.dense((0, 0), (2, 2))
    with pytest.raises(SpirogradRuntimeError, match="positive"):
        root.dense(0, 0)
    with pytest.raises(SpirogradTypeError, match="extents"):
        root.dense(ij, (1, 2, 3))


def test_lazy_gradients():
    x, y, k = ScalarField(f32), annotations.vector(2, f64).unplaced_field("y", False, False, None), ScalarField(i32)
    block = root.dense(0, 4)
    block.place(x, y)
    block.dense(0, 2).place(k)
    root.lazy_grad()
    root.lazy_dual()
    assert x.has_grad() and y.has_grad() and y.has_dual() and k.grad is None and x.grad.grad is None
    assert x.grad.shape == (4,) and y.refs("grad").role == "grad" and y.refs("grad").key == y.refs().key
    every = [a for f in (x, x.grad, x.dual, y, y.grad, y.dual, k) for a in addresses(f)]
    assert len(set(every)) == len(every)


def test_wanted_gradients_must_be_placed():
    x = ScalarField(f32, "x", needs_grad=True)
    root.dense(0, 4).place(x)
    with pytest.raises(SpirogradRuntimeError, match="grad has no place"):
        x.fill(1)
