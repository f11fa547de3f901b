"""Lists of `dynamic` nodes, against Python's lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

ROOM = 22


def make(chunk: int | None = 4, needs_grad: bool = False) -> tuple[Any, Any]:
    """A field of lists along j, one for each of 3 i."""
    x = sg.field(sg.f32, needs_grad=needs_grad)
    builder = sg.FieldsBuilder()
    node = builder.dense(sg.i, 3).dynamic(sg.j, ROOM, chunk)
    node.place(x, *([x.grad] if needs_grad else []))
    return x, node


def lengths(x: Any) -> list[int]:
    found = sg.ndarray(sg.i32, x.shape[0])

    @sg.kernel
    def find(out: sg.types.NDArray[sg.i32, 1]):
        for i in out:
            out[i] = x[i].length()

    find(found)
    return found.to_numpy().tolist()


def visits(x: Any) -> list[list[int]]:
    """The entries that a loop comes to, of each list."""
    seen = np.zeros(x.shape, np.int32)

    @sg.kernel
    def visit(out: sg.types.NDArray[sg.i32, 2]):
        for i, j in x:
            out[i, j] += 1

    visit(seen)
    assert seen.max() <= 1
    return [np.flatnonzero(row).tolist() for row in seen]


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("chunk", [4, None])
def test_append_length_and_loops(session: Any, chunk: int | None) -> None:
    x, node = make(chunk)
    taken = np.full((3, ROOM), -1, np.int32)

    @sg.kernel
    def fill(numbers: sg.types.NDArray[sg.i32, 2]):
        for i in range(3):
            for k in range(2 * i):
                numbers[i, k] = x[i].append(10.0 * i + k)

    @sg.kernel
    def empty(i: sg.i32):
        x[i].deactivate()

    @sg.kernel
    def beyond():
        x[1, 17] = 5.0

    fill(taken)
    assert taken[1, :2].tolist() == [0, 1] and taken[2, :4].tolist() == [0, 1, 2, 3] and lengths(x) == [0, 2, 4]
    expected = np.zeros((3, ROOM), np.float32)
    expected[1, :2], expected[2, :4] = [10, 11], [20, 21, 22, 23]
    np.testing.assert_array_equal(x.to_numpy(), expected)
    assert visits(x) == [[], [0, 1], [0, 1, 2, 3]]
    beyond()  # makes the list longer
    expected[1, 17] = 5
    np.testing.assert_array_equal(x.to_numpy(), expected)
    assert lengths(x) == [0, 18, 4] and visits(x)[1] == list(range(18))
    empty(1)
    expected[1] = 0
    np.testing.assert_array_equal(x.to_numpy(), expected)
    assert lengths(x) == [0, 0, 4]
    x[0, 9] = 3.0
    assert lengths(x) == [10, 0, 4] and visits(x)[0] == list(range(10))
    x.fill(1.0)
    assert x.to_numpy().sum() == 14
    node.deactivate_all()
    assert lengths(x) == [0, 0, 0] and not x.to_numpy().any()


def test_appends_of_all_invocations(session: Any) -> None:
    n = 1500 if session.arch == "interpreter" else 100_000
    x, p = sg.field(sg.i32), sg.field(sg.i32, n)
    node = sg.root.pointer(sg.i, 4).dynamic(sg.j, n, 64)
    node.place(x)

    @sg.kernel
    def fill():
        for k in range(n):
            p[k] = sg.append(node, [k % 3], k)

    @sg.kernel
    def length(i: sg.i32) -> sg.i32:
        return sg.length(node, i)

    for _ in range(2):
        fill()
        found, at = x.to_numpy(), p.to_numpy()
        for i in range(3):
            assert length(i) == len(range(i, n, 3)) and sorted(found[i, : length(i)]) == list(range(i, n, 3))
        assert (found[np.arange(n) % 3, at] == np.arange(n)).all() and length(3) == 0
        node.parent().deactivate_all()
        assert length(0) == 0


@pytest.mark.vulkan_or_wgpu
def test_structs_vectors_and_several_fields(session: Any) -> None:
    element = sg.types.struct(a=sg.i32, v=sg.types.vector(2, sg.f32))
    s, a, b = element.field(), sg.field(sg.i32), sg.field(sg.i32)
    node, pair = sg.root.dynamic(sg.i, 10, 4), sg.root.dynamic(sg.i, 10, 4)
    node.place(s)
    pair.place(a, b)

    @sg.kernel
    def fill():
        for _ in range(1):
            for k in range(3):
                s.append(element(k, [k, 0.5]))
                b[a.append(k)] = 10 * k
            sg.append(node, None, element(7, [8.0, 9.0]))

    @sg.kernel
    def one_value():
        sg.append(pair, [], 1)

    fill()
    assert s.a.to_numpy().tolist() == [0, 1, 2, 7] + [0] * 6 and s.v.to_numpy()[3].tolist() == [8, 9]
    assert b.to_numpy().tolist() == (10 * a.to_numpy()).tolist() == [0, 10, 20] + [0] * 7
    with pytest.raises(sg.SpirogradTypeError, match="2 fields"):
        one_value()


@pytest.mark.vulkan_or_wgpu
def test_lists_in_lists_and_cells_below(session: Any) -> None:
    x, y = sg.field(sg.i32), sg.field(sg.i32)
    sg.root.dynamic(sg.i, 16, 4).dynamic(sg.j, 3, 2).place(x, offset=(2, 0))
    cells = sg.root.dynamic(sg.i, 16, 4)
    cells.dense(sg.j, 2).place(y)

    @sg.kernel
    def fill():
        for _ in range(1):
            x[5].append(5)
            x[5].append(6)
            y[3, 1] = 4

    @sg.kernel
    def count() -> sg.math.ivec2:
        n, m = 0, 0
        for i, j in x:
            n += 10 * i + j
        for i, j in y:
            m += 1
        return sg.math.ivec2(n, m)

    fill()
    assert x.to_numpy()[3].tolist() == [5, 6, 0] and list(count()) == [101, 8] and y.to_numpy().sum() == 4
    x.parent(2).deactivate_all()
    cells.deactivate_all()
    assert list(count()) == [0, 0] and not x.to_numpy().any() and not y.to_numpy().any()


def test_a_full_list(arch: str) -> None:
    sg.init(arch=arch)
    x = sg.field(sg.i32)
    sg.root.dynamic(sg.i, 8, 4).place(x)

    @sg.kernel
    def fill(n: sg.i32):
        for k in range(n):
            x.append(k)

    fill(8)
    sg.sync()
    with pytest.raises(sg.OutOfDeviceMemory, match="room for 8 entries"):
        fill(4)
        sg.sync()
    assert sorted(x.to_numpy()) == list(range(8))


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("chunk", [4, 1 << 15])
def test_a_loop_over_one_list_runs_over_its_entries(session: Any, chunk: int) -> None:
    """It takes no time for the rest of its chunks, of which one may have room for very many entries."""
    x, y, n = sg.field(sg.i32), sg.field(sg.f32, needs_grad=True), sg.field(sg.i32, ())
    total = sg.field(sg.f32, (), needs_grad=True)
    node = sg.root.dynamic(sg.i, 1 << 22, chunk, cells=3)
    node.place(x, y, y.grad, offset=-5)

    @sg.kernel
    def fill(count: sg.i32):
        for k in range(count):
            x.append(100 + k)

    @sg.kernel
    def visit():
        for i in x:
            n[None] += 1
            y[i] += x[i] + 1000 * (i + 5)

    @sg.kernel
    def add():
        for i in y:
            total[None] += 2.0 * y[i]

    def check(entries: int) -> None:
        n[None] = 0
        y.fill(0)
        visit()
        numbers, found = x.to_numpy()[:entries], y.to_numpy()
        np.testing.assert_array_equal(found[:entries], numbers + 1000.0 * np.arange(entries))
        assert n[None] == entries and sorted(numbers) == list(range(100, 100 + entries)) and not found[entries:].any()

    check(0)
    fill(7)
    check(7)
    assert "used" not in visit.ir("device")
    total.grad[None] = 3
    add.grad()
    gradient = y.grad.to_numpy()
    assert (gradient[:7] == 6).all() and not gradient[7:].any()
    node.deactivate_all()
    check(0)
    fill(2)
    check(2)


def test_a_loop_over_one_list_leaves_out_lost_entries(arch: str) -> None:
    sg.init(arch=arch)
    x, n = sg.field(sg.i32), sg.field(sg.i32, ())
    sg.root.dynamic(sg.i, 100, 4, cells=2).place(x)

    @sg.kernel
    def fill():
        for k in range(20):
            x.append(1)

    @sg.kernel
    def visit():
        for i in x:
            n[None] += x[i]
            x[i] = 5

    with pytest.raises(sg.OutOfDeviceMemory, match="memory for fewer active cells"):
        fill()
        sg.sync()
    visit()
    assert n[None] == 8 and x.to_numpy().sum() == 40


@pytest.mark.vulkan_or_wgpu
def test_gradients(session: Any) -> None:
    """Of loops over lists and of writes to entries; a kernel cannot both append and keep the numbers for its gradient."""
    x, node = make(needs_grad=True)
    w, loss = sg.field(sg.f32, 12, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def square():
        for k in range(12):
            x[k % 3, k // 3] = w[k] * w[k]

    @sg.kernel
    def total():
        for i, j in x:
            loss[None] += x[i, j] * (i + 1)

    @sg.kernel
    def total_by_length():
        for i in range(3):
            for j in range(x[i].length()):
                loss[None] += x[i, j] * (i + 1)

    @sg.kernel
    def append():
        for k in range(12):
            x[k % 3].append(w[k])

    data = np.arange(1, 13, dtype=np.float32)
    w.from_numpy(data)
    for kernel in (total, total_by_length):
        with sg.ad.Tape(loss):
            square()
            kernel()
        np.testing.assert_allclose(w.grad.to_numpy(), 2 * data * (np.arange(12) % 3 + 1))
        node.deactivate_all()
    with pytest.raises(sg.SpirogradUnsupportedError, match="activates cells cannot save"), sg.ad.Tape(loss):
        append()


def test_refusals(session: Any) -> None:
    x, node = make()

    @sg.kernel
    def assigned():
        x[1] = 3.0

    @sg.kernel
    def used() -> sg.f32:
        return x[1] + 1.0

    @sg.kernel
    def no_node():
        sg.append(node.parent(), [1], 3.0)

    for kernel, why in ((assigned, "is not a value"), (used, "is not a value"), (no_node, "sparse node")):
        with pytest.raises(sg.SpirogradTypeError, match=why):
            kernel()
    for build, why in (
        (lambda: sg.root.dynamic(sg.ij, 16), "one axis"),
        (lambda: sg.root.dense(sg.i, 4).dynamic(sg.i, 16), "one axis"),
        (lambda: sg.root.dynamic(sg.i, 4).dense(sg.i, 3), "axis 0 counts"),
        (lambda: sg.root.dynamic(sg.i, 0), "positive integer"),
    ):
        with pytest.raises(sg.SpirogradTypeError, match=why):
            build()
