"""A field, its gradient and its tangents, each in a layout of its own: their extents agree, or an error names both lines."""

import copy
import itertools

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

SHAPE = (6, 10)
LAYOUTS = {
    "rows": lambda f, offset: sg.root.dense(sg.ij, SHAPE).place(f, offset=offset),
    "columns": lambda f, offset: sg.root.dense(sg.j, 10).dense(sg.i, 6).place(f, offset=offset),
    "blocks": lambda f, offset: sg.root.dense(sg.ij, (3, 2)).dense(sg.ij, (2, 5)).place(f, offset=offset),
    "beside others": lambda f, offset: sg.root.dense(sg.ij, SHAPE).place(sg.field(sg.u8), f, sg.field(sg.i64), offset=offset),
    "other axes": lambda f, offset: sg.root.dense(sg.axes(1, 3), SHAPE).place(f, offset=offset),
}
PAIRS = list(itertools.permutations(LAYOUTS, 2))


def each_component(v, place):
    """Components of a vector field in arrays of their own."""
    for k in range(v.n):
        place(v.get_scalar_field(k))


@pytest.mark.parametrize(("primal", "gradient"), [PAIRS[k] for k in (0, 1, 4, 6, 9, 11, 14, 15)])
def test_tape_with_layouts_that_differ(session, primal, gradient):
    x, loss = sg.field(sg.f32), sg.field(sg.f32, shape=(), needs_grad=True)
    LAYOUTS[primal](x, None)
    LAYOUTS[gradient](x.grad, None)
    rng = np.random.default_rng(3)
    start = rng.uniform(0.5, 1.5, SHAPE).astype(np.float32)

    @sg.kernel
    def step():  # overwrites what its gradient needs, so that the tape saves and restores it
        for i, j in x:
            x[i, j] = x[i, j] * x[i, j] * (1 + i)

    @sg.kernel
    def total():
        for i, j in sg.ndrange(*SHAPE):
            loss[None] += (1 + j) * x[i, j]

    for scale in (1.0, 0.5):
        x.from_numpy(start * np.float32(scale))
        loss[None] = 0
        with sg.ad.Tape(loss):
            step()
            step()
            total()
        i, j = np.indices(SHAPE)
        expected = 4 * (start * scale) ** 3 * (1.0 + i) ** 3 * (1 + j)
        np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-4)
        assert x.grad[5, 9] == pytest.approx(expected[5, 9], rel=1e-4)
        np.testing.assert_allclose(x.to_numpy(), (start * scale) ** 4 * (1.0 + i) ** 3, rtol=1e-4)


@pytest.mark.parametrize(("primal", "gradient"), [PAIRS[k] for k in (2, 8, 13)])
def test_host_access_and_offsets(session, primal, gradient):
    x = sg.field(sg.f32)
    LAYOUTS[primal](x, (-2, 4))
    LAYOUTS[gradient](x.grad, (-2, 4))
    LAYOUTS[primal](x.dual, (-2, 4))
    values = np.arange(60, dtype=np.float32).reshape(SHAPE)
    x.from_numpy(values)
    x.grad.copy_from(x)
    x.dual.from_numpy(x.grad.to_numpy() + 1)
    x.grad[3, 13] = -1
    assert (x[-2, 4], x.grad[-2, 5], x.grad[3, 13], x.dual[3, 13]) == (0, 1, -1, 60)
    x.grad.fill(2)
    assert (x.to_numpy() == values).all() and (x.grad.to_numpy() == 2).all() and (x.dual.to_numpy() == values + 1).all()


def test_components_structs_and_forward_mode(session):
    v, each = sg.Vector.field(2, sg.f32), sg.field(sg.f32, shape=5, needs_dual=True)
    sg.root.dense(sg.i, 5).place(v)
    each_component(v.grad, sg.root.dense(sg.i, 5).place)
    each_component(v.dual, lambda c: sg.root.dense(sg.i, 5).place(c))
    pair = sg.types.struct(a=sg.f32, b=sg.types.vector(2, sg.f32)).field()
    sg.root.dense(sg.i, 5).place(pair.a)
    sg.root.dense(sg.i, 5).dense(sg.i, 1).place(pair.b, pair.a.grad)
    each_component(pair.b.grad, lambda c: sg.root.dense(sg.i, 5).place(c))
    whole = sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def squares():
        for i in v:
            each[i] = v[i].x * v[i].y + pair[i].a

    @sg.kernel
    def total():
        for i in pair:
            whole[None] += pair[i].a * pair[i].b.dot(v[i])

    data = np.arange(1, 11, dtype=np.float32).reshape(5, 2)
    v.from_numpy(data)
    pair.from_numpy({"a": data[:, 0], "b": data + 1})
    with sg.ad.Tape(whole):
        total()
    np.testing.assert_allclose(v.grad.to_numpy(), data[:, :1] * (data + 1))
    np.testing.assert_allclose(pair.b.grad.to_numpy(), data[:, :1] * data)
    np.testing.assert_allclose(pair.a.grad.to_numpy(), ((data + 1) * data).sum(1))
    with sg.ad.FwdMode(loss=each, param=v, seed=np.ones((5, 2))):
        squares()
    np.testing.assert_allclose(each.dual.to_numpy(), data.sum(1))


def refused(act):
    with pytest.raises(sg.SpirogradRuntimeError) as error:
        act()
    return str(error.value)


def test_extents_and_offsets_must_agree():
    sg.init(arch=sg.interpreter)
    x = sg.field(sg.f32)
    sg.root.dense(sg.i, 800).place(x)
    text = refused(lambda: sg.root.dense(sg.i, 4).place(x.grad))
    assert "shape (4,)" in text and "shape (800,)" in text
    lines = [line for line in text.splitlines() if f"at {__file__}" in line]
    assert len(lines) == 2 and lines[0] != lines[1] and "sg.root.dense(sg.i, 800).place(x)" in text
    for shape in ((800, 1), (20, 40), ()):
        assert "shape" in refused(lambda s=shape: (sg.root.dense(sg.ij[: len(s)], s) if s else sg.root).place(x.dual))
    assert "offset (-1,)" in refused(lambda: sg.root.dense(sg.i, 800).place(x.grad, offset=-1))
    sg.root.dense(sg.i, 800).place(x.grad, offset=0)
    # The gradient first, the field afterwards; after the tree of one has closed; the tangents of the gradient.
    y = sg.field(sg.f32)
    sg.root.dense(sg.i, 3).place(y.grad)
    y.grad.fill(1)
    assert "`field" in refused(lambda: sg.root.dense(sg.i, 4).place(y))
    assert "offset" in refused(lambda: sg.FieldsBuilder().dense(sg.i, 3).place(y, offset=1))
    sg.FieldsBuilder().dense(sg.i, 3).place(y)
    assert "shape (2,)" in refused(lambda: sg.root.dense(sg.i, 2).place(y.grad.dual))


def test_components_and_members_must_agree():
    sg.init(arch=sg.interpreter)
    v = sg.Vector.field(2, sg.f32)
    sg.root.dense(sg.i, 8).place(v.get_scalar_field(0))
    assert "component" in refused(lambda: sg.root.dense(sg.i, 7).place(v.get_scalar_field(1)))
    assert "offset (1,)" in refused(lambda: sg.root.dense(sg.i, 8).place(v.get_scalar_field(1), offset=1))
    s = sg.types.struct(a=sg.f32, b=sg.types.struct(c=sg.i32, d=sg.types.vector(2, sg.f64))).field()
    sg.root.dense(sg.ij, (2, 3)).place(s.a)
    for member in (s.b.c, s.b.d, s.b.d.get_scalar_field(1), s.b, s.a.grad, s.b.d.dual):
        assert "shape (3, 2)" in refused(lambda m=member: sg.root.dense(sg.ij, (3, 2)).place(m))
    sg.root.dense(sg.j, 3).dense(sg.i, 2).place(s.b)
    assert s.shape == (2, 3)


def test_the_gradient_of_an_ndarray_has_its_type_and_shape(session):
    x, loss = sg.ndarray(sg.f32, 8, needs_grad=True), sg.ndarray(sg.f32, (), needs_grad=True)

    @sg.kernel
    def total(a: sg.types.ndarray(), out: sg.types.ndarray()):
        for i in a:
            out[None] += a[i] * a[i]

    x.fill(2)
    total(x, loss)
    for wrong in (
        sg.ndarray(sg.f32, 4),
        sg.ndarray(sg.f64, 8),
        sg.Vector.ndarray(2, sg.f32, 4),
        np.zeros(8, np.float32),
        sg.ndarray(sg.f32, (8, 1)),
    ):
        with pytest.raises(sg.SpirogradValueError, match=r"must be an ndarray of f32 and shape \(8,\)"):
            x.grad = wrong
    x.grad = other = sg.ndarray(sg.f32, 8)
    loss.grad.fill(1)
    total.grad(x, loss)
    assert (other.to_numpy() == 4).all()
    twin = copy.deepcopy(x)
    twin.grad.fill(5)
    with sg.ad.Tape(loss):  # which clears all gradients
        total(x, loss)
    assert (twin.grad.to_numpy() == 0).all() and (x.grad.to_numpy() == 4).all()
    x.grad = None
    with pytest.raises(sg.SpirogradCompilationError):
        total.grad(x, sg.ndarray(sg.f32, ()))


LEVELS = {
    "two levels of an axis": lambda x: sg.root.dense(sg.i, 4).dense(sg.i, 2).place(x),
    "a level for each axis": lambda x: sg.root.dense(sg.i, 4).dense(sg.j, 2).place(x),
    "the second axis first": lambda x: sg.root.dense(sg.j, 4).dense(sg.i, 2).place(x),
    "an axis at two levels": lambda x: sg.root.dense(sg.ij, (4, 2)).dense(sg.i, 3).place(x),
    "three axes": lambda x: sg.root.dense(sg.ij, (4, 2)).dense(sg.k, 3).place(x),
    "only later axes": lambda x: sg.root.dense(sg.k, 4).dense(sg.j, 3).place(x),
    "a level of one": lambda x: sg.root.dense(sg.i, 4).dense(sg.i, 1).dense(sg.j, 2).place(x),
}
SHAPES = [(8,), (4, 2), (2, 4), (12, 2), (4, 2, 3), (3, 4), (4, 2)]  # as Taichi and Quadrants have them


@pytest.mark.parametrize("case", LEVELS)
def test_axes_of_trees(case, session):
    """Fields have the axes that the levels above them have, in order, and so have their gradients."""
    x, loss = sg.field(sg.f32), sg.field(sg.f32)
    LEVELS[case](x)
    sg.root.place(loss)
    sg.root.lazy_grad()
    shape = dict(zip(LEVELS, SHAPES))[case]
    assert x.shape == x.grad.shape == shape
    values = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    x.from_numpy(values)

    @sg.kernel
    def squares():
        for I in sg.grouped(x):
            loss[None] += x[I] ** 2

    @sg.kernel
    def named():
        if sg.static(len(shape) == 1):
            for i in x:
                loss[None] += 3.0 * x[i]
        elif sg.static(len(shape) == 2):
            for i, j in x:
                loss[None] += 3.0 * x[i, j]
        else:
            for i, j, k in x:
                loss[None] += 3.0 * x[i, j, k]

    with sg.ad.Tape(loss):
        squares()
        named()
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * values + 3)
    np.testing.assert_allclose(loss[None], (values**2 + 3 * values).sum(), rtol=1e-5)
