"""Vectors and matrices whose components are placed one by one, at strides that differ or below nodes of other kinds."""

import numpy as np
import pytest

import spirograd as sg

N = 12


def beside_others(f, start=0):
    for k in range(f.n * f.m):
        others = [sg.field(sg.f64) for _ in range((start + k) % 3)]
        sg.root.dense(sg.i, N).place(f.get_scalar_field(*np.unravel_index(k, f.element_shape)), *others)


def in_blocks(f, start=0):
    for k in range(f.n * f.m):
        outer = (12, 3, 4)[(start + k) % 3]
        node = sg.root.dense(sg.i, outer)
        node = node.dense(sg.i, N // outer) if outer < N else node
        node.place(f.get_scalar_field(*np.unravel_index(k, f.element_shape)), sg.field(sg.i32))


def some_sparse(f, start=0):
    for k in range(f.n * f.m):
        node = sg.root.dense(sg.i, N) if (start + k) % 2 else sg.root.pointer(sg.i, 4).dense(sg.i, 3)
        node.place(f.get_scalar_field(*np.unravel_index(k, f.element_shape)))


PLACEMENTS = [beside_others, in_blocks, some_sparse]
DENSE = [beside_others, in_blocks]


@pytest.mark.parametrize("place", PLACEMENTS)
def test_kernels_and_python_access_them(session, place):
    v, m = sg.Vector.field(3, sg.f32), sg.Matrix.field(2, 2, sg.i32)
    place(v)
    place(m)
    assert v.shape == m.shape == (N,)
    rng = np.random.default_rng(5)
    a, b = rng.integers(-9, 9, (N, 3)).astype(np.float32), rng.integers(-9, 9, (N, 2, 2)).astype(np.int32)
    v.from_numpy(a)
    m.from_numpy(b)

    @sg.kernel
    def work(k: sg.i32) -> sg.f32:
        for i in range(N):
            v[i] = 2 * v[i] + m[i][0, 1]
            v[i].y -= 1
            v[i].xz *= 3
            m[i][k, 0] += 7
            m[i][k] += sg.Vector([i, -i])
            m[i][:, 1] -= 1
        total = 0.0
        for i in v:
            total += v[i].sum() * m[i][k, 1 - k]
        return total

    for k in (0, 1):
        v.from_numpy(a)
        m.from_numpy(b)
        got = work(k)
        x, y = 2 * a + b[:, :1, 1], b.copy()
        x[:, 1] -= 1
        x[:, ::2] *= 3
        y[:, k, 0] += 7
        y[:, k] += np.stack([np.arange(N), -np.arange(N)], 1)
        y[:, :, 1] -= 1
        assert (v.to_numpy() == x).all() and (m.to_numpy() == y).all()
        assert got == (x.sum(1) * y[:, k, 1 - k]).sum()
    assert v[5].to_list() == x[5].tolist() and m[11].to_list() == y[11].tolist()
    v[5] = [1, 2, 3]
    v[6].y = 4
    assert v[5].to_list() == [1, 2, 3] and v[6].to_list() == [x[6, 0], 4, x[6, 2]]
    m.fill([[1, 2], [3, 4]])
    assert (m.to_numpy() == [[1, 2], [3, 4]]).all()
    other = sg.Vector.field(3, sg.f32, shape=N)
    other.copy_from(v)
    v.fill(0)
    assert not v.to_numpy().any()
    v.copy_from(other)
    assert v[5].to_list() == [1, 2, 3] and (other.to_numpy() == v.to_numpy()).all()


@pytest.mark.parametrize("place", PLACEMENTS)
def test_updates_are_atomic(session, place):
    v = sg.Vector.field(2, sg.i32)
    place(v)

    @sg.func
    def add(x: sg.template(), y):
        x += y

    @sg.kernel
    def count(many: sg.i32):
        for i in range(many):
            add(v[5], 2)
            v[1][i % 2] += 1
            v[2].y += i
            v[3] += sg.Vector([1, i])
            sg.atomic_max(v[4][(i + 1) % 2], i)

    count(1000)
    assert v.to_numpy()[1:6].tolist() == [[500, 500], [0, 499500], [1000, 499500], [999, 998], [2000, 2000]]


@pytest.mark.parametrize("place", PLACEMENTS)
def test_run_time_components_are_checked(arch, place):
    sg.init(arch=arch, debug=True)
    v = sg.Vector.field(2, sg.f32)
    place(v)

    @sg.kernel
    def store(k: sg.i32):
        v[3][k] = 1

    store(1)
    with pytest.raises(sg.SpirogradAssertionError, match="out of range"):
        store(2)
        sg.sync()
    assert v[3].to_list() == [0, 1]


@pytest.mark.parametrize("place", DENSE)
@pytest.mark.parametrize("which", ["primal", "gradient", "both"])
def test_tapes_differentiate_them(session, place, which):
    v, loss = sg.Vector.field(3, sg.f32), sg.field(sg.f32, (), needs_grad=True)
    for f, apart, start in ((v, which != "gradient", 0), (v.grad, which != "primal", 1)):
        if apart:
            place(f, start)
        else:
            sg.root.dense(sg.i, N).place(f)

    @sg.kernel
    def step(scale: sg.f32):
        for i in range(N):
            v[i] = scale * v[i] * v[i]  # overwrites what its gradient needs
            v[i].x += v[i].y * v[i].z

    @sg.kernel
    def total():
        for i in range(N):
            loss[None] += i * v[i].sum()

    start = np.random.default_rng(6).uniform(0.5, 1.5, (N, 3))
    v.from_numpy(start.astype(np.float32))
    with sg.ad.Tape(loss):
        step(0.5)
        step(1.5)
        total()

    def value(a):
        for scale in (0.5, 1.5):
            a = scale * a * a
            a[:, 0] += a[:, 1] * a[:, 2]
        return (np.arange(N)[:, None] * a).sum()

    expected = np.empty_like(start)
    for at in np.ndindex(start.shape):
        h = np.zeros_like(start)
        h[at] = 1e-6
        expected[at] = (value(start + h) - value(start - h)) / 2e-6
    np.testing.assert_allclose(v.grad.to_numpy(), expected, rtol=2e-4, atol=1e-4)


def test_two_pointer_nodes_have_cells_of_their_own(session):
    v, x = sg.Vector.field(2, sg.f32), sg.field(sg.f32)
    nodes = [sg.root.pointer(sg.i, 4) for _ in range(2)]
    nodes[0].dense(sg.i, 3).place(v.get_scalar_field(0))
    nodes[1].dense(sg.i, 3).place(v.get_scalar_field(1), x)
    x[7] = 5.0  # activates one cell of the second node alone

    @sg.kernel
    def work():
        for i in range(3):
            v[i] += sg.Vector([1.0, 2.0])

    work()
    work()
    expected = np.zeros((N, 2))
    expected[:3] = 2, 4
    assert (v.to_numpy() == expected).all() and x.to_numpy().nonzero()[0].tolist() == [7]


def test_components_in_two_trees(session):
    v = sg.Vector.field(2, sg.f32)
    trees = [sg.FieldsBuilder() for _ in range(2)]
    for k, tree in enumerate(trees):
        tree.dense(sg.i, N).place(v.get_scalar_field(k))
    trees[0].finalize()
    with pytest.raises(sg.SpirogradRuntimeError, match="the components of field `v` are in two field trees: place them in one"):
        v.fill(1)


def test_one_component_below_a_sparse_node(session):
    v = sg.Vector.field(2, sg.f32)
    sg.root.pointer(sg.i, 4).dense(sg.i, 3).place(v)
    y = v.get_scalar_field(1)

    @sg.kernel
    def work():
        for i in range(3):
            y[i] = i + 1

    work()
    assert v.to_numpy()[:, 1].tolist() == y.to_numpy().tolist() == [1, 2, 3] + [0] * 9
