"""The memory of sparse fields grows and is given back, against dense NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.lang.data import regions

CELLS, SIDE = 400, 4


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few cells at first, where the device does not have memory for all of them at once."""
    monkeypatch.setattr(regions, "_DEFAULT_BYTES", 1)
    monkeypatch.setattr(regions, "_LEAST_CELLS", 8)


def make(cells: int | None = None, nested: bool = False) -> tuple[Any, Any]:
    x = sg.field(sg.i32)
    builder = sg.FieldsBuilder()
    node = builder.pointer(sg.i, CELLS, cells)
    (node.pointer(sg.i, SIDE) if nested else node.dense(sg.i, SIDE)).place(x)
    return x, node


def writer(x: Any) -> Any:
    @sg.kernel
    def write(first: sg.i32, count: sg.i32):
        for k in range(count):
            x[SIDE * ((7 * (first + k)) % CELLS) + 1] += first + k + 1

    return write


def expected(count: int) -> np.ndarray:
    out = np.zeros(CELLS * SIDE, np.int32)
    np.add.at(out, SIDE * ((7 * np.arange(count)) % CELLS) + 1, np.arange(count) + 1)
    return out


def visited(x: Any) -> int:
    @sg.kernel
    def visit() -> sg.i32:
        n = 0
        for i in x:
            n += 1
        return n

    return visit()


@pytest.mark.parametrize("nested", [False, True], ids=["dense cells", "pointer cells"])
def test_growth_between_launches(session: Any, small: None, nested: bool) -> None:
    """Nothing is lost, and no launch waits."""
    x, node = make(nested=nested)
    write, done = writer(x), 0
    while done < CELLS:
        waits = session.device.waits
        write(done, 4)
        assert session.device.waits - waits <= (session.arch in ("cpu", "interpreter"))
        sg.sync()
        done += 4
    np.testing.assert_array_equal(x.to_numpy(), expected(CELLS))
    assert visited(x) == CELLS * (1 if nested else SIDE) and node.cells_in.used[None] == CELLS
    assert CELLS <= node.cells_in.capacity[None] - regions.FIRST <= CELLS


def test_one_launch_that_needs_more(session: Any, small: None) -> None:
    """Where the host cannot know in time, it says how many were needed, and has them from then on."""
    x, node = make()
    write = writer(x)
    if session.arch == "cpu":  # memory for all from the beginning
        write(0, 100)
    else:
        with pytest.raises(sg.OutOfDeviceMemory, match=r"needed memory for 100 cells and had it for 8; it has it for 125 now: run again"):
            write(0, 100)
            sg.sync()
        node.deactivate_all()
        write(0, 100)
    sg.sync()
    np.testing.assert_array_equal(x.to_numpy(), expected(100))
    assert node.cells_in.used[None] == 100


def test_what_has_its_cells_grows_on(session: Any, small: None) -> None:
    """After an error the cells that were active are as they were."""
    x, _ = make()
    write = writer(x)
    write(0, 6)
    sg.sync()
    if session.arch != "cpu":
        with pytest.raises(sg.OutOfDeviceMemory):
            write(6, 200)
            sg.sync()
    found = x.to_numpy()
    np.testing.assert_array_equal(found[expected(6) > 0], expected(6)[expected(6) > 0])
    assert set(found) <= set(expected(206))


def test_python_has_more_cells(session: Any, small: None) -> None:
    x, _ = make()
    for k in range(30):
        x[SIDE * k] = k + 1
    assert [x[SIDE * k] for k in range(31)] == [*range(1, 31), 0]
    x.from_numpy(np.arange(CELLS * SIDE, dtype=np.int32))
    np.testing.assert_array_equal(x.to_numpy(), np.arange(CELLS * SIDE))


def test_all_free_cells_are_given_anew(session: Any) -> None:
    """A loop has as many iterations as cells were given since none was active."""
    x, node = make()
    write = writer(x)
    for _ in range(3):
        write(0, 50)
        assert node.cells_in.used[None] == 50 and x.to_numpy().sum() == 50 * 51 // 2
        node.deactivate_all()
        assert node.cells_in.used[None] == 0 and node.cells_in.free_count[None] == 0 and visited(x) == 0


def test_a_graph_of_what_has_grown(session: Any, small: None) -> None:
    """Launches that were recorded with an address of earlier memory are refused."""
    x, node = make()
    write = writer(x)

    @sg.kernel
    def triple():
        for i in x:
            x[i] *= 3

    write(0, 2)
    with sg.Graph() as graph:
        triple()
    before = x.to_numpy().sum()
    graph.launch()
    assert x.to_numpy().sum() == 3 * before > 0
    pool = node.cells_in.pool
    if pool.grows:
        pool.grow(100)
        with pytest.raises(sg.SpirogradRuntimeError, match="memory for more cells since it was recorded"):
            graph.launch()
    triple()
    assert x.to_numpy().sum() == 9 * before


def test_gradients_of_what_has_grown(session: Any, small: None) -> None:
    x = sg.field(sg.f32, needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)
    builder = sg.FieldsBuilder()
    builder.pointer(sg.i, CELLS).dense(sg.i, SIDE).place(x, x.grad)

    @sg.kernel
    def activate(first: sg.i32, count: sg.i32):
        for k in range(count):
            x[SIDE * (first + k)] = first + k + 1.0

    @sg.kernel
    def square():
        for i in x:
            loss[None] += x[i] ** 2

    for first in range(0, 64, 4):
        activate(first, 4)
        sg.sync()
        loss[None] = 0.0
        with sg.ad.Tape(loss):
            square()
        count = first + 4
        np.testing.assert_allclose(x.grad.to_numpy()[: SIDE * count : SIDE], 2.0 * np.arange(1, count + 1))
        assert loss[None] == pytest.approx((np.arange(1, count + 1) ** 2).sum())


@pytest.mark.archs("cpu")
def test_memory_beyond_that_of_the_machine(session: Any) -> None:
    """A grid of which all cells would take more than the machine has; clearing and copying touch what is in use only."""
    x = sg.field(sg.f32, needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)
    builder = sg.FieldsBuilder()
    builder.pointer(sg.ijk, 512).dense(sg.ijk, 16).place(x, x.grad)

    @sg.kernel
    def write():
        for k in range(100):
            x[80 * k, 70 * k, 8191 - k] = k

    @sg.kernel
    def total():
        for i, j, k in x:
            loss[None] += x[i, j, k] ** 2

    write()
    with sg.ad.Tape(loss):
        total()
        x.fill(1.0)
    assert loss[None] == sum(k * k for k in range(100))
    assert x.grad[80, 70, 8190] == 2.0 and x[80, 70, 8190] == 1.0
    x.fill(0.0)
    assert x[80, 70, 8190] == 0.0
    x.parent(2).deactivate_all()
    assert x.parent(2).cells_in.used[None] == 0
