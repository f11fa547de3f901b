"""`no_activate`: writes of a kernel to inactive cells of the nodes that it names, against NumPy arrays and sets of active cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

N, CELL = 24, 4
ACTIVE = (1, 3)  # cells, of which each test activates these
PLACES = {
    "pointer": lambda: sg.root.pointer(sg.i, N // CELL),
    "hash": lambda: sg.root.hash(sg.i, N // CELL),
    "bitmasked": lambda: sg.root.bitmasked(sg.i, N // CELL),
    "pointer in pointer": lambda: sg.root.pointer(sg.i, 2).pointer(sg.i, N // CELL // 2),
    "bitmasked in pointer": lambda: sg.root.pointer(sg.i, 2).bitmasked(sg.i, N // CELL // 2),
}
places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


def make(place: Any, t: Any = sg.f32, **kwargs: Any) -> tuple[Any, Any]:
    """A field with some active cells, that hold 1; and its sparse node."""
    x = sg.field(t, **kwargs)
    node = place()
    node.dense(sg.i, CELL).place(x)
    if kwargs:
        sg.root.lazy_grad()

    @sg.kernel
    def fill():
        for i in range(N):
            if i // CELL == ACTIVE[0] or i // CELL == ACTIVE[1]:
                x[i] = 1

    fill()
    return x, node


def active_cells(node: Any) -> list[int]:
    found = sg.field(sg.i32, N // CELL)

    @sg.kernel
    def look():
        for k in range(N // CELL):
            found[k] = sg.is_active(node, [k])

    look()
    return np.flatnonzero(found.to_numpy()).tolist()


IN_ACTIVE = np.isin(np.arange(N) // CELL, ACTIVE)


@places
def test_stores(session: Any, place: Any) -> None:
    x, node = make(place)

    @sg.kernel
    def write(seen: sg.types.NDArray[sg.f32, 1]):
        for i in range(N):
            x[i] = i + 0.5
        for i in range(N):
            seen[i] = x[i]
        sg.no_activate(node)  # holds for what stands before, too

    seen = np.full(N, -1.0, np.float32)
    write(seen)
    expected = np.where(IN_ACTIVE, np.arange(N) + 0.5, 0.0)
    np.testing.assert_array_equal(x.to_numpy(), expected)
    np.testing.assert_array_equal(seen, expected)
    assert active_cells(node) == list(ACTIVE)


@places
def test_atomics_and_what_they_give(session: Any, place: Any) -> None:
    x, node = make(place, sg.i32)
    old, swapped = sg.field(sg.i32, N), sg.field(sg.i32, N)

    @sg.kernel
    def add():
        sg.no_activate(node)
        for i in range(N):
            old[i] = sg.atomic_add(x[i], i)
        for i in range(N):
            swapped[i] = sg.atomic_cas(x[i], i + 1, 100)
        for i in range(N):
            x[i] += 1000

    add()
    numbers = np.arange(N)
    np.testing.assert_array_equal(old.to_numpy(), np.where(IN_ACTIVE, 1, 0))
    np.testing.assert_array_equal(swapped.to_numpy(), np.where(IN_ACTIVE, numbers + 1, 0))
    np.testing.assert_array_equal(x.to_numpy(), np.where(IN_ACTIVE, 1100, 0))
    assert active_cells(node) == list(ACTIVE)


@places
def test_loops_write_to_neighbours(session: Any, place: Any) -> None:
    x, node = make(place)

    @sg.kernel
    def spread():
        sg.no_activate(node)
        for i in x:
            if i + 2 < N:
                x[i + 2] += 1.0
            x[i] += 0.5

    spread()
    numbers = np.arange(N)
    expected = np.where(IN_ACTIVE, 1.5, 0.0)
    np.add.at(expected, numbers[IN_ACTIVE & (numbers + 2 < N)] + 2, 1.0)
    np.testing.assert_array_equal(x.to_numpy(), np.where(IN_ACTIVE, expected, 0.0))
    assert active_cells(node) == list(ACTIVE)


def test_vectors_and_structs(session: Any) -> None:
    v, s = sg.Vector.field(2, sg.f32), sg.Struct.field({"a": sg.i32, "b": sg.f32})
    node = sg.root.pointer(sg.i, N // CELL)
    node.dense(sg.i, CELL).place(v, s)

    @sg.kernel
    def write(low: sg.i32, high: sg.i32):
        sg.no_activate(node)
        for i in range(low, high):
            v[i] = [i, 2.0 * i]
            old = sg.atomic_add(v[i], sg.Vector([1.0, 1.0]))
            s[i].a = i
            s[i].b = old[1]

    @sg.kernel
    def begin():
        sg.activate(node, 2)

    write(0, N)
    assert active_cells(node) == [] and not v.to_numpy().any()
    begin()
    write(0, N)
    inside = np.arange(N) // CELL == 2
    numbers = np.where(inside, np.arange(N), 0)
    np.testing.assert_array_equal(v.to_numpy(), np.stack([numbers + inside, 2.0 * numbers + inside], 1))
    np.testing.assert_array_equal(s.a.to_numpy(), numbers)
    np.testing.assert_array_equal(s.b.to_numpy(), 2.0 * numbers)
    assert active_cells(node) == [2]


def test_only_the_nodes_that_are_named(session: Any) -> None:
    """Cells of other nodes, and below active ones, are activated; `activate` activates all the same."""
    x, y = sg.field(sg.i32), sg.field(sg.i32)
    outer = sg.root.pointer(sg.i, 3)
    inner = outer.pointer(sg.i, 4)
    inner.dense(sg.i, 2).place(x)
    other = sg.root.pointer(sg.i, N // CELL)
    other.dense(sg.i, CELL).place(y)

    @sg.kernel
    def begin():
        sg.no_activate(outer)
        sg.activate(outer, 1)

    @sg.kernel
    def write():
        sg.no_activate(outer)
        for i in range(5, 19):
            x[i] = i
            y[i] = -i

    begin()
    write()
    numbers = np.arange(N)
    np.testing.assert_array_equal(x.to_numpy(), np.where((numbers >= 8) & (numbers < 16), numbers, 0))
    np.testing.assert_array_equal(y.to_numpy(), np.where((numbers >= 5) & (numbers < 19), -numbers, 0))
    found = sg.field(sg.i32, N // 2)

    @sg.kernel
    def look():
        for k in range(N // 2):
            found[k] = sg.is_active(inner, [k])

    look()
    np.testing.assert_array_equal(np.flatnonzero(found.to_numpy()), [4, 5, 6, 7])
    assert active_cells(other) == [1, 2, 3, 4]


def test_lists(session: Any) -> None:
    """A write beyond the end of a list makes it no longer; `append` does."""
    x = sg.field(sg.i32)
    node = sg.root.dense(sg.i, 2).dynamic(sg.j, 9, chunk_size=2)
    node.place(x)

    @sg.kernel
    def write(count: sg.i32):
        sg.no_activate(node)
        for i, j in sg.ndrange(2, 9):
            x[i, j] = 10 * i + j + 1
        for _ in range(count):
            x[1].append(7)

    @sg.kernel
    def lengths() -> sg.types.vector(2, sg.i32):
        return sg.Vector([x[0].length(), x[1].length()])

    write(3)
    assert lengths().to_numpy().tolist() == [0, 3]
    np.testing.assert_array_equal(x.to_numpy(), [[0] * 9, [7] * 3 + [0] * 6])
    write(0)
    np.testing.assert_array_equal(x.to_numpy(), [[0] * 9, [11, 12, 13] + [0] * 6])


@places
def test_gradients(session: Any, place: Any) -> None:
    """Of values that are not written there is none."""
    x, node = make(place, needs_grad=True)
    w, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def write():
        sg.no_activate(node)
        for i in range(N):
            x[i] = w[i] * w[i]
        for i in range(N):
            x[i] += 3.0 * w[N - 1 - i]

    @sg.kernel
    def total():
        for i in x:
            loss[None] += (i + 1.0) * x[i]

    values = np.linspace(0.5, 2.0, N).astype(np.float32)
    w.from_numpy(values)
    for _ in range(2):
        with sg.ad.Tape(loss):
            write()
            total()
        weights = np.where(IN_ACTIVE, np.arange(N) + 1.0, 0.0)
        assert loss[None] == pytest.approx((weights * (values.astype(np.float64) ** 2 + 3.0 * values[::-1])).sum(), rel=1e-5)
        np.testing.assert_allclose(w.grad.to_numpy(), 2.0 * weights * values + 3.0 * weights[::-1], rtol=1e-5)
        assert active_cells(node) == list(ACTIVE)


def test_mistakes(session: Any) -> None:
    x = sg.field(sg.i32, 4)

    @sg.kernel
    def number():
        sg.no_activate(3)

    @sg.kernel
    def nothing():
        sg.no_activate()

    with pytest.raises(sg.SpirogradTypeError, match="`no_activate` takes nodes of field trees, not the number 3"):
        number()
    with pytest.raises(sg.SpirogradTypeError, match="`no_activate` takes nodes of field trees"):
        nothing()
    with pytest.raises(sg.SpirogradRuntimeError, match="`no_activate` has a meaning only inside kernels"):
        sg.no_activate(x.parent())


@pytest.mark.parametrize("vector", [False, True])
def test_fields_have_no_cells_of_their_own(session: Any, vector: bool, caplog: pytest.LogCaptureFixture) -> None:
    x = sg.Vector.field(2, sg.f32) if vector else sg.field(sg.f32)
    node = sg.root.bitmasked(sg.i, 8)
    node.place(x)

    @sg.kernel
    def write():
        sg.no_activate(x)
        for i in range(3, 5):
            x[i] += 1.0

    write()
    assert active_cells(node) == [3, 4]
    assert "`no_activate` of the field `x` changes nothing" in caplog.text and "`x.parent()`" in caplog.text
