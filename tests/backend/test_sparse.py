"""Fields below sparse nodes, against dense NumPy arrays and a set of active cells."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

SHAPES = {
    "pointer": lambda root: root.pointer(sg.ij, (4, 3)).dense(sg.ij, (4, 5)),
    "pointer of elements": lambda root: root.pointer(sg.ij, (16, 15)),
    "pointer in pointer": lambda root: root.pointer(sg.i, 2).pointer(sg.ij, (2, 3)).dense(sg.ij, (4, 5)),
    "hash": lambda root: root.hash(sg.ij, (4, 3)).dense(sg.ij, (4, 5)),
    "three deep": lambda root: root.dense(sg.j, 3).pointer(sg.i, 4).dense(sg.i, 2).pointer(sg.ij, (2, 5)),
    "bitmasked": lambda root: root.bitmasked(sg.ij, (4, 3)).dense(sg.ij, (4, 5)),
    "bitmasked elements": lambda root: root.dense(sg.ij, (4, 5)).bitmasked(sg.ij, (4, 3)),
    "bitmasked in pointer": lambda root: root.pointer(sg.ij, (2, 3)).bitmasked(sg.ij, (8, 5)),
    "pointer in bitmasked": lambda root: root.bitmasked(sg.ij, (2, 3)).pointer(sg.ij, (4, 5)).dense(sg.i, 2),
}
EXTENTS = (16, 15)


def sparse_node(node: Any) -> Any:
    """The innermost sparse node at or above ``node``."""
    while node.kind == "dense":
        node = node.parent()
    return node


def make(shape: str, t: Any = sg.f32, needs_grad: bool = False) -> Any:
    x = sg.field(t, needs_grad=needs_grad)
    builder = sg.FieldsBuilder()
    SHAPES[shape](builder).place(x)
    if needs_grad:
        builder.lazy_grad()
    assert x.shape == EXTENTS
    return x


def scatter(x: Any) -> Any:
    @sg.kernel
    def write(index: sg.types.NDArray[sg.i32, 2], values: sg.types.NDArray[x.dtype, 1]):
        for k in range(index.shape[0]):
            x[index[k, 0], index[k, 1]] = values[k]

    return write


def visits(x: Any) -> np.ndarray:
    """How often a loop over ``x`` comes to each index."""
    seen = sg.field(sg.i32, shape=EXTENTS)

    @sg.kernel
    def visit():
        for i, j in x:
            sg.atomic_add(seen[i, j], 1)

    visit()
    return seen.to_numpy()


def cells(node: Any) -> tuple[int, ...]:
    """The extents of a cell of ``node``, in elements."""
    return tuple(n // m for n, m in zip(EXTENTS, node.shape))


def spread(node: Any, indices: np.ndarray) -> np.ndarray:
    """Which elements are in the cells of ``node`` that these elements are in."""
    size = cells(node)
    active = np.zeros(node.shape, bool)
    active[indices[:, 0] // size[0], indices[:, 1] // size[1]] = True
    return np.kron(active, np.ones(size, bool))


@pytest.mark.parametrize("t", [sg.f32, sg.i32, sg.u8], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_writes_reads_and_loops(session: Any, shape: str, t: Any) -> None:
    x = make(shape, t)
    node = sparse_node(x.parent())
    assert not visits(x).any() and not x.to_numpy().any()
    rng = np.random.default_rng(1)
    dense, indices = np.zeros(EXTENTS, t.np), np.zeros((0, 2), np.int32)
    write = scatter(x)
    for count in (1, 7, 40):
        new = np.unique(rng.integers(0, EXTENTS, (count, 2)), axis=0).astype(np.int32)
        values = rng.integers(1, 100, len(new)).astype(t.np)
        write(new, values)
        dense[new[:, 0], new[:, 1]] = values
        indices = np.concatenate([indices, new])
        np.testing.assert_array_equal(x.to_numpy(), dense)
        np.testing.assert_array_equal(visits(x), spread(node, indices))
    assert x[tuple(indices[0])] == dense[tuple(indices[0])]


def test_one_cell_for_all_invocations(session: Any) -> None:
    x = sg.field(sg.i32)
    sg.root.pointer(sg.i, 3, cells=2).dense(sg.i, 4).place(x)

    @sg.kernel
    def count(n: sg.i32):
        for k in range(n):
            x[5] += 1

    n = 3000 if session.arch == "interpreter" else 1_000_000
    for repetition in (1, 2):
        count(n)
        assert x[5] == repetition * n and x.to_numpy().sum() == repetition * n
    assert x.parent(2).cells_in.used[None] == 1


def test_vectors_structs_and_offsets(session: Any) -> None:
    v = sg.Vector.field(2, sg.f32)
    p = sg.types.struct(mass=sg.f32, number=sg.i32).field()
    sg.root.pointer(sg.i, 4).dense(sg.i, 4).place(v, p, offset=-8)

    @sg.kernel
    def write():
        for k in range(-8, 8):
            if k % 5 == 0:
                v[k] = [k, 0.5]
                v[k].y += 1.0
                p[k].mass = 2.0 * k
                sg.atomic_max(p[k].number, k + 10)

    write()
    expected = np.array([[k, 1.5] if k % 5 == 0 else [0, 0] for k in range(-8, 8)])
    np.testing.assert_array_equal(v.to_numpy(), expected)
    np.testing.assert_array_equal(p.to_numpy()["number"], [k + 10 if k % 5 == 0 else 0 for k in range(-8, 8)])
    assert v[-5].x == -5 and p[5].mass == 10.0 and p[4].mass == 0.0
    v[-8] = [3.0, 4.0]
    assert list(v[-8]) == [3.0, 4.0] and v[7].x == 0.0


@pytest.mark.parametrize("shape", SHAPES)
def test_python_scope(session: Any, shape: str) -> None:
    x = make(shape)
    node = sparse_node(x.parent())
    x[3, 4] = 2.5
    assert x[3, 4] == 2.5 and x[15, 14] == 0.0
    np.testing.assert_array_equal(visits(x), spread(node, np.array([[3, 4]])))
    x.fill(7.0)
    np.testing.assert_array_equal(x.to_numpy(), np.where(spread(node, np.array([[3, 4]])), 7.0, 0.0))
    x.fill(0.0)
    assert not x.to_numpy().any()
    data = np.random.default_rng(2).random(EXTENTS).astype(np.float32)
    x.from_numpy(data)
    np.testing.assert_array_equal(x.to_numpy(), data)
    assert visits(x).all()
    for other in (sg.field(sg.f32, shape=EXTENTS), sg.ndarray(sg.f32, EXTENTS), make(shape)):
        other.copy_from(x)
        np.testing.assert_array_equal(other.to_numpy(), data)
        x.fill(0.0)
        x.copy_from(other)
        np.testing.assert_array_equal(np.from_dlpack(x), data)
    with pytest.raises(ValueError, match="sparse"):
        x.to_numpy(copy=False)


@pytest.mark.parametrize("shape", SHAPES)
def test_activity_of_cells(session: Any, shape: str) -> None:
    """Random activations, writes and deactivations, against arrays."""
    x = make(shape)
    node = sparse_node(x.parent())
    size = cells(node)
    found = sg.field(sg.i32, shape=node.shape)

    @sg.kernel
    def change(index: sg.types.NDArray[sg.i32, 2], on: sg.i32):
        for k in range(index.shape[0]):
            if on:
                sg.activate(node, [index[k, 0], index[k, 1]])
            else:
                sg.deactivate(node, [index[k, 0], index[k, 1]])

    @sg.kernel
    def find():
        for i, j in found:
            found[i, j] = sg.is_active(node, [i, j])

    write = scatter(x)
    chosen = random.Random(3)
    active, dense = np.zeros(node.shape, bool), np.zeros(EXTENTS, np.float32)
    for _ in range(12):
        count = chosen.choice((1, 3, 10))
        kind = chosen.choice(("write", "on", "off", "off"))
        if kind == "write":
            index = np.array([[chosen.randrange(n) for n in EXTENTS] for _ in range(count)], np.int32)
            index = np.unique(index, axis=0)
            values = np.arange(1, len(index) + 1, dtype=np.float32)
            write(index, values)
            dense[index[:, 0], index[:, 1]] = values
            active[index[:, 0] // size[0], index[:, 1] // size[1]] = True
        else:
            index = np.unique(np.array([[chosen.randrange(n) for n in node.shape] for _ in range(count)], np.int32), axis=0)
            change(index, kind == "on")
            active[index[:, 0], index[:, 1]] = kind == "on"
            if kind == "off":
                dense[~np.kron(active, np.ones(size, bool))] = 0
        find()
        np.testing.assert_array_equal(found.to_numpy() != 0, active)
        np.testing.assert_array_equal(x.to_numpy(), dense)
        np.testing.assert_array_equal(visits(x), np.kron(active, np.ones(size, int)))


def test_a_loop_that_deactivates_what_it_visits(session: Any) -> None:
    """What is written afterwards is in a new cell, and cells that are given again hold zeros."""
    x = make("pointer")
    node = sparse_node(x.parent())
    write = scatter(x)
    first = np.array([[0, 0], [5, 6], [12, 14]], np.int32)
    write(first, np.array([1.0, 2.0, 3.0], np.float32))

    @sg.kernel
    def move():
        for i, j in x:
            if x[i, j] > 0.0:
                value = x[i, j]
                sg.deactivate(node, [i // 4, j // 5])
                if value > 1.5:
                    x[i, j] = value * 10.0

    move()
    expected = np.zeros(EXTENTS, np.float32)
    expected[5, 6], expected[12, 14] = 20.0, 30.0
    np.testing.assert_array_equal(x.to_numpy(), expected)
    write(np.array([[0, 5], [8, 0], [8, 5]], np.int32), np.full(3, 7.0, np.float32))
    assert x.to_numpy().sum() == 71.0


@pytest.mark.parametrize("nested", [False, True], ids=["one level", "two levels"])
def test_cells_are_used_again(session: Any, nested: bool) -> None:
    """Many rounds with memory for few cells; what is activated again is 0."""
    x = sg.field(sg.i32)
    outer = sg.root.pointer(sg.i, 50, cells=4)
    (outer.pointer(sg.i, 2, cells=8) if nested else outer.dense(sg.i, 2)).place(x)
    total = sg.field(sg.i32, ())

    @sg.kernel
    def fill(first: sg.i32):
        for k in range(4):
            total[None] += x[2 * ((first + 7 * k) % 50)]
            x[2 * ((first + 7 * k) % 50)] += k + 1
            x[2 * ((first + 7 * k) % 50) + 1] = 5

    @sg.kernel
    def empty(first: sg.i32):
        for k in range(4):
            sg.deactivate(outer, [(first + 7 * k) % 50])

    for first in range(40 if session.arch == "interpreter" else 200):
        fill(first)
        if first % 20 == 0:
            assert x.to_numpy().sum() == 30
        empty(first)
    sg.sync()
    assert total[None] == 0 and not x.to_numpy().any()


@pytest.mark.parametrize("shape", SHAPES)
def test_deactivate_all_cells_of_a_node(session: Any, shape: str) -> None:
    x = make(shape)
    write = scatter(x)
    for node in [node for node in x.parent().path if node.kind != "root"]:
        for _ in range(2):
            write(np.array([[0, 0], [9, 9], [15, 14]], np.int32), np.ones(3, np.float32))
            assert x.to_numpy().sum() == 3
            inside = any(other.kind != "dense" for other in x.parent().path[x.parent().path.index(node) :])
            node.deactivate_all()
            assert x.to_numpy().sum() == (0 if inside else 3) and visits(x).any() == (not inside)


def test_deactivate_all(session: Any) -> None:
    x = make("pointer in pointer")
    write = scatter(x)
    for at_once in (False, True):
        write(np.array([[0, 0], [9, 9]], np.int32), np.ones(2, np.float32))
        assert x.to_numpy().sum() == 2
        if at_once:
            sg.deactivate_all_snodes()
        else:
            x.parent(4).deactivate_all()
        assert not x.to_numpy().any() and not visits(x).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(session: Any, shape: str) -> None:
    """Of a kernel that loops over active cells, reads active and inactive ones, and activates those of another field."""
    x, y = make(shape, needs_grad=True), make("pointer in pointer", needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)
    index = np.array([[0, 0], [3, 3], [9, 14]], np.int32)
    scatter(x)(index, np.array([2.0, 3.0, 4.0], np.float32))

    @sg.kernel
    def square():
        for i, j in x:
            y[i, j] = x[i, j] * x[i, j] + 3.0 * x[(i + 3) % 16, (j + 3) % 15]

    @sg.kernel
    def total():
        for i, j in y:
            loss[None] += y[i, j] * (i + 0.5 * j + 1.0)

    active = spread(sparse_node(x.parent()), index)
    values = x.to_numpy().astype(np.float64)
    i, j = np.indices(EXTENTS)
    weights = np.where(active, i + 0.5 * j + 1.0, 0.0)
    shifted = np.roll(values, (-3, -3), (0, 1))
    gradient = 2 * values * weights + np.where(active, 3.0 * np.roll(weights, (3, 3), (0, 1)), 0.0)
    for _ in range(2):
        with sg.ad.Tape(loss):
            square()
            total()
        assert loss[None] == pytest.approx((weights * (values**2 + 3 * shifted)).sum(), rel=1e-5)
        if shape.startswith("bitmasked"):  # inactive elements beside active ones have memory for gradients
            np.testing.assert_allclose(np.where(active, x.grad.to_numpy(), 0.0), gradient, rtol=1e-5)
        else:
            np.testing.assert_allclose(x.grad.to_numpy(), gradient, rtol=1e-5)
        np.testing.assert_array_equal(x.to_numpy(), values)


def test_gradients_that_are_refused(session: Any) -> None:
    """A gradient runs after its kernel: what is active then must be what the kernel found."""
    x, w, loss = make("pointer", needs_grad=True), sg.field(sg.f32, EXTENTS, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    node = sparse_node(x.parent())

    @sg.kernel
    def loops_and_activates():
        for i, j in x:
            loss[None] += w[i, j]
        for k in range(3):
            x[k, k] = 1.0

    @sg.kernel
    def asks_and_activates():
        for k in range(3):
            if not sg.is_active(node, [k, k]):
                loss[None] += w[k, k]
                sg.activate(node, [k, k])

    @sg.kernel
    def deactivates():
        for i, j in x:
            loss[None] += x[i, j] * w[i, j]
        for k in range(3):
            sg.deactivate(node, [k, k])

    for kernel, why in ((loops_and_activates, "depends here"), (asks_and_activates, "depends here"), (deactivates, "deactivates cells")):
        with pytest.raises(sg.SpirogradUnsupportedError, match=why), sg.ad.Tape(loss):
            kernel()


def test_gradients_that_need_saved_values_are_refused(session: Any) -> None:
    """The kernel that saves values would activate nothing."""
    x, count = sg.field(sg.f32, needs_grad=True), sg.field(sg.i32, ())
    w, loss = sg.field(sg.f32, 4, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    sg.root.pointer(sg.i, 4).dense(sg.i, 4).place(x, x.grad)

    @sg.kernel
    def in_any_order():
        for i in range(4):
            k = sg.atomic_add(count[None], 1)
            x[k] = w[i] * w[i]

    with pytest.raises(sg.SpirogradUnsupportedError, match="activates cells cannot save"), sg.ad.Tape(loss):
        in_any_order()
    assert not x.to_numpy().any()


@pytest.mark.parametrize("where", ["dense", "sparse"])
def test_gradients_at_other_nodes_are_refused(session: Any, where: str) -> None:
    x, loss = sg.field(sg.f32), sg.field(sg.f32, (), needs_grad=True)
    sg.root.pointer(sg.i, 4).dense(sg.i, 2).place(x)
    (sg.root.dense(sg.i, 8) if where == "dense" else sg.root.pointer(sg.i, 4).dense(sg.i, 2)).place(x.grad)

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    x[3] = 2.0
    with pytest.raises(sg.SpirogradRuntimeError, match="at different nodes"), sg.ad.Tape(loss):
        total()


def test_cells_activated_after_a_launch_under_a_tape(session: Any) -> None:
    """Its gradient visits the cells that it visited."""
    x, w, loss = make("pointer"), sg.field(sg.f32, EXTENTS, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    w.fill(2.0)
    write = scatter(x)
    first, second = np.array([[0, 0]], np.int32), np.array([[9, 9], [15, 14]], np.int32)

    @sg.kernel
    def total():
        for i, j in x:
            loss[None] += w[i, j]

    write(first, np.ones(1, np.float32))
    with sg.ad.Tape(loss):
        total()
        write(second, np.ones(2, np.float32))
    assert loss[None] == 40.0
    np.testing.assert_array_equal(w.grad.to_numpy(), spread(sparse_node(x.parent()), first))
    assert visits(x).sum() == 60


def test_dense_fields_of_the_same_tree(session: Any) -> None:
    """Deactivation leaves them alone."""
    x, y, z = sg.field(sg.f32), sg.field(sg.f32), sg.field(sg.i32)
    builder = sg.FieldsBuilder()
    builder.pointer(sg.i, 4).place(x)
    builder.dense(sg.i, 4).place(y)
    builder.bitmasked(sg.i, 40).place(z)
    tree = builder.finalize()
    x[2], z[33] = 1.0, 5
    y.fill(3.0)
    sg.deactivate_all_snodes()
    assert not x.to_numpy().any() and not z.to_numpy().any() and (y.to_numpy() == 3.0).all()
    x[3], z[1] = 2.0, 4
    assert x.to_numpy().sum() == 2.0 and z.to_numpy().sum() == 4
    tree.destroy()
    with pytest.raises(sg.SpirogradRuntimeError, match="destroyed"):
        x.to_numpy()


@pytest.mark.parametrize("debug", [False, True], ids=["release", "debug"])
def test_too_few_cells(arch: str, debug: bool) -> None:
    sg.init(arch=arch, debug=debug)
    x = sg.field(sg.i32)
    sg.root.pointer(sg.i, 100, cells=5).dense(sg.i, 2).place(x)

    @sg.kernel
    def write(n: sg.i32):
        for i in range(n):
            x[2 * i] = i + 1

    write(5)
    sg.sync()
    assert x.to_numpy().sum() == 15
    with pytest.raises(sg.OutOfDeviceMemory, match=r"needed memory for 7 cells and had it for 5; reserve more of them with .*cells=7"):
        write(7)
        sg.sync()
    with pytest.raises(sg.OutOfDeviceMemory, match="cells="):
        x.from_numpy(np.ones(200, np.int32))


def test_indices_out_of_range(arch: str) -> None:
    sg.init(arch=arch, debug=True)
    x = sg.field(sg.i32)
    sg.root.pointer(sg.ij, (4, 4)).dense(sg.ij, (2, 2)).place(x)

    @sg.kernel
    def write(i: sg.i32, j: sg.i32):
        for _ in range(1):
            x[i, j] = 1

    for i, j in ((8, 0), (0, 8), (-1, 0), (0, -1)):
        with pytest.raises(sg.SpirogradAssertionError, match="out of range of field"):
            write(i, j)
            sg.sync()
    assert not x.to_numpy().any()


def test_loops_in_order(session: Any) -> None:
    """A loop over active cells that is not parallel, with `continue` and `break`."""
    x = make("pointer")
    scatter(x)(np.array([[2, 2], [11, 7]], np.int32), np.array([1.0, 2.0], np.float32))

    @sg.kernel
    def count() -> sg.i32:
        n = 0
        for _ in range(1):
            for i, j in x:
                if x[i, j] == 0.0:
                    continue
                n += 10 * i + j
                if n == 0:
                    break
        return n

    assert count() == 22 + 117


def test_fields_of_one_region_with_other_index_spaces(session: Any) -> None:
    """The index of a loop over one field means another element of the other: offsets, and axes in another order."""
    x, y, a, b = (sg.field(sg.i32) for _ in range(4))
    cells = sg.root.pointer(sg.i, 4).dense(sg.i, 4)
    cells.place(x, offset=4)
    cells.place(y)
    columns = sg.root.pointer(sg.j, 4)
    columns.dense(sg.i, 4).place(a)
    columns.dense(sg.k, 4).place(b)

    @sg.kernel
    def number():
        for _ in range(1):
            for i in range(16):
                x[i + 4], y[i] = 1, 100 + i
            for i, j in sg.ndrange(4, 4):
                a[i, j], b[i, j] = 1, 10 * i + j

    @sg.kernel
    def of_fields():
        for i in x:
            if i < 16:
                x[i] = y[i]
        for i, j in a:
            a[i, j] = b[i, j]

    @sg.kernel
    def of_nodes():
        for i in cells:
            if i >= 4:
                x[i] += 1000

    number()
    of_fields()
    expected = np.concatenate([104 + np.arange(12), np.ones(4, int)])
    np.testing.assert_array_equal(x.to_numpy(), expected)
    np.testing.assert_array_equal(a.to_numpy(), 10 * np.arange(4)[:, None] + np.arange(4))
    of_nodes()
    np.testing.assert_array_equal(x.to_numpy(), expected + np.where(np.arange(16) < 12, 1000, 0))


def test_python_activates_cells_again(session: Any) -> None:
    x = sg.field(sg.i32)
    node = sg.root.pointer(sg.i, 100, cells=3)
    node.dense(sg.i, 2).place(x)

    @sg.kernel
    def empty():
        for i in node:
            sg.deactivate(node, [i])

    for first in range(0, 60, 3):
        for k in range(3):
            x[2 * (first + k)] = k + 1
        assert x.to_numpy().sum() == 6 and x[2 * first + 1] == 0
        empty()
    assert not x.to_numpy().any()


def test_one_extent_for_all_axes(session: Any) -> None:
    x = sg.field(sg.f32)
    sg.root.pointer(sg.ijk, [2]).dense(sg.ijk, (3,)).place(x)
    assert x.shape == (6, 6, 6)


def test_refusals(session: Any) -> None:
    x, dense = make("pointer"), sg.field(sg.f32, shape=4)
    node = x.parent()

    @sg.kernel
    def of_dense():
        sg.activate(dense.parent(), [0])

    @sg.kernel
    def no_cells():
        sg.deactivate(node, [0, 0])

    with pytest.raises(sg.SpirogradTypeError, match="takes a sparse node"):
        of_dense()
    with pytest.raises(sg.SpirogradTypeError, match="no cells that can be deactivated"):
        no_cells()
    with pytest.raises(sg.SpirogradTypeError, match="cells"):
        sg.root.pointer(sg.i, 10, cells=0)


def test_cells_of_one_index_are_looked_up_once(session: Any) -> None:
    """Where an enclosing block has activated the cell; of another block, or another index, they are looked up."""
    x, y = sg.field(sg.f32), sg.Vector.field(2, sg.f32)
    sg.root.pointer(sg.i, 8).dense(sg.i, 4).place(x, y)

    @sg.kernel
    def write(offset: sg.i32):
        for i in range(32):
            if i % 3 == 0:
                x[i + offset - offset] += 1.0
            base = i // 2
            for k in sg.static(range(2)):
                x[base + k] += 0.5
                y[base + k] += sg.Vector([1.0, 2.0])
                if base + k < 4:
                    y[base + k][0] += 4.0

    write(3)
    i = np.arange(32)
    once, below = np.where(i % 3 == 0, 1.0, 0.0), np.bincount(np.concatenate([i // 2, i // 2 + 1]), minlength=32)
    np.testing.assert_array_equal(x.to_numpy(), once + 0.5 * below)
    np.testing.assert_array_equal(y.to_numpy(), np.stack([below + np.where(i < 4, 4.0 * below, 0.0), 2.0 * below], 1))
    assert write.ir("kernel").count("call_memory[") == 3
