"""Graphs: what a block of launches did is done again, on what memory holds then."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import spirograd as sg

N = 37


def filled(values: Any, needs_grad: bool = False) -> Any:
    values = np.asarray(values, np.float32)
    x = sg.field(sg.f32, shape=values.shape, needs_grad=needs_grad)
    x.from_numpy(values)
    return x


def doubling(x: Any, y: Any) -> Any:
    @sg.kernel
    def double(k: sg.f32):
        for i in x:
            y[i] = x[i] * 2.0 + k

    return double


@pytest.mark.parametrize("n", [1, N, 1000])
def test_launches_on_what_memory_holds(session, n: int) -> None:
    start = np.arange(n, dtype=np.float32)
    x, y, z = filled(start), filled(np.zeros(n)), sg.ndarray(sg.f32, n)

    @sg.kernel
    def add(a: sg.types.NDArray[sg.f32, 1], k: sg.i32):
        for i in range(n):
            a[i] += y[i] + k
            x[i] += 1.0

    double = doubling(x, y)
    with sg.Graph() as graph:
        for k in range(3):
            double(float(k))
            add(z, k)
    expected, now = np.zeros(n), start.astype(np.float64)

    def once() -> None:
        nonlocal now
        for k in range(3):
            expected[:] += now * 2 + k + k
            now = now + 1

    once()
    np.testing.assert_array_equal(z.to_numpy(), expected)
    for _ in range(4):
        graph.launch()
        once()
    np.testing.assert_array_equal(z.to_numpy(), expected)
    x.fill(5.0)
    now = np.full(n, 5.0)
    graph.launch()
    once()
    np.testing.assert_array_equal(z.to_numpy(), expected)
    np.testing.assert_array_equal(x.to_numpy(), now)
    assert graph.launch_count == 6 and repr(graph) == "Graph(6 launches)"


def test_fills_copies_and_numbers_from_python(session) -> None:
    x, y, z = (filled(np.arange(N)) for _ in range(3))
    count = sg.field(sg.i32, shape=())
    wide = sg.field(sg.i32, shape=3)
    double = doubling(x, y)

    with sg.Graph() as graph:
        x.fill(3.0)
        double(0.5)
        z.copy_from(y)
        count[None] = 7
        x[2] = -1.0
        wide.fill(4)
    for f in (x, y, z, wide):
        f.fill(0)
    count[None] = 0
    graph.launch()
    np.testing.assert_array_equal(x.to_numpy(), np.where(np.arange(N) == 2, -1, 3))
    np.testing.assert_array_equal(y.to_numpy(), 6.5)
    np.testing.assert_array_equal(z.to_numpy(), 6.5)
    np.testing.assert_array_equal(wide.to_numpy(), 4)
    assert count[None] == 7


def test_kernels_without_iterations_and_empty_graphs(session) -> None:
    total = sg.field(sg.i32, shape=())

    @sg.kernel
    def add(n: sg.i32):
        for _ in range(n):
            total[None] += 1

    with sg.Graph() as graph:
        add(0)
    with sg.Graph() as empty:
        pass
    for _ in range(3):
        graph.launch()
        empty.launch()
    assert total[None] == 0 and empty.launch_count == 0
    with sg.Graph() as graph:
        add(0)
        add(5)
        add(-1)
    graph.launch()
    assert total[None] == 10


def wave(steps: int) -> tuple[Any, Any, Any]:
    """A field, its loss, and a program that overwrites what the gradient needs; their values come from `wave_reference`."""
    x, loss = filled(np.linspace(0.1, 1.0, N), True), sg.field(sg.f32, shape=(), needs_grad=True)
    state = sg.field(sg.f32, shape=N, needs_grad=True)

    @sg.kernel
    def start():
        for i in x:
            state[i] = x[i]

    @sg.kernel
    def step():
        for i in state:
            state[i] = sg.sin(state[i]) * 1.5

    @sg.kernel
    def measure():
        for i in state:
            loss[None] += state[i] * state[i]

    def run() -> None:
        with sg.ad.Tape(loss):
            start()
            for _ in range(steps):
                step()
            measure()

    return x, loss, run


def wave_reference(x: Any, steps: int) -> tuple[float, Any]:
    state, slope = x.astype(np.float64), np.ones(len(x))
    for _ in range(steps):
        state, slope = np.sin(state) * 1.5, slope * np.cos(state) * 1.5
    return float((state * state).sum()), 2 * state * slope


def test_gradients_of_a_tape(session) -> None:
    x, loss, run = wave(4)
    run()
    with sg.Graph() as graph:
        run()
    gc.collect()
    rng = np.random.default_rng(0)
    for _ in range(3):
        values = rng.random(N).astype(np.float32)
        x.from_numpy(values)
        graph.launch()
        value, slope = wave_reference(values, 4)
        np.testing.assert_allclose(loss[None], value, rtol=1e-5)
        np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=2e-4, atol=1e-5)
    again = x.grad.to_numpy()
    run()
    np.testing.assert_array_equal(x.grad.to_numpy(), again)


@pytest.mark.parametrize("place", ["field", "argument"])
def test_gradients_of_loops_whose_ends_change(session, place: str) -> None:
    """On the CPU the host finds the sizes of tapes: a graph with others is refused. Devices count anew, the interpreter's tapes grow."""
    x, y = filled(np.linspace(0.2, 0.9, N), True), sg.field(sg.f32, shape=N, needs_grad=True)
    trips = sg.field(sg.i32, shape=N)

    @sg.kernel
    def by_field():
        for i in x:
            v = x[i]
            for _ in range(trips[i]):
                v = sg.sin(v) + 0.1
            y[i] = v

    @sg.kernel
    def by_argument(n: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = sg.sin(v) + 0.1
            y[i] = v

    kernel, args = (by_field, ()) if place == "field" else (by_argument, (5,))

    def expected(counts: Any) -> Any:
        v, slope = x.to_numpy().astype(np.float64), np.ones(N)
        for k in range(int(counts.max(initial=0))):
            on = k < counts
            v, slope = np.where(on, np.sin(v) + 0.1, v), np.where(on, slope * np.cos(v), slope)
        return slope

    counts = np.full(N, 5, np.int32)
    trips.from_numpy(counts)
    with sg.Graph() as graph:
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        kernel(*args)
        kernel.grad(*args)
    for _ in range(2):
        graph.launch()
        np.testing.assert_allclose(x.grad.to_numpy(), expected(counts), rtol=1e-5)
    x.from_numpy(np.linspace(0.3, 0.7, N).astype(np.float32))
    graph.launch()
    np.testing.assert_allclose(x.grad.to_numpy(), expected(counts), rtol=1e-5)
    if place == "argument":
        return
    for counts in (np.arange(N, dtype=np.int32) % 4, np.full(N, 11, np.int32), np.zeros(N, np.int32)):
        trips.from_numpy(counts)
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        kernel.grad()  # its sizes lie where those of the graph do
        np.testing.assert_allclose(x.grad.to_numpy(), expected(counts), rtol=1e-5)
        if session.arch == "cpu":
            with pytest.raises(sg.SpirogradRuntimeError, match="may have changed since it was recorded"):
                graph.launch()
            continue
        graph.launch()
        np.testing.assert_allclose(x.grad.to_numpy(), expected(counts), rtol=1e-5)
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        kernel.grad()
        np.testing.assert_allclose(x.grad.to_numpy(), expected(counts), rtol=1e-5)


def test_random_numbers_are_new_ones(session) -> None:
    x, y = sg.field(sg.f32, shape=200, needs_grad=True), sg.field(sg.f32, shape=200, needs_grad=True)

    @sg.kernel
    def draw():
        for i in x:
            y[i] = x[i] * sg.random(sg.f32)

    x.fill(1.0)
    with sg.Graph() as graph:
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        draw()
        draw.grad()
    seen = [y.to_numpy()]
    for _ in range(3):
        graph.launch()
        seen.append(y.to_numpy())
        np.testing.assert_array_equal(x.grad.to_numpy(), seen[-1])  # the gradient draws what the kernel drew
    assert len({values.tobytes() for values in seen}) == 4
    assert all(((values >= 0) & (values < 1)).all() for values in seen)


def test_gradients_of_loops_whose_ends_are_drawn(session) -> None:
    """Each time other numbers of iterations: the CPU, where the host finds the sizes of tapes, refuses the graph."""
    x, y = filled(np.linspace(0.5, 1.5, N), True), sg.field(sg.f32, shape=N, needs_grad=True)
    trips = sg.field(sg.i32, shape=N)

    @sg.kernel
    def power():
        for i in x:
            v, k = 1.0, 0
            while sg.random(sg.f32) < 0.8:
                v *= x[i]
                k += 1
            y[i] = v
            trips[i] = k

    with sg.Graph() as graph:
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        power()
        power.grad()
    for _ in range(3):
        if session.arch == "cpu":
            with pytest.raises(sg.SpirogradRuntimeError, match="nor draw them"):
                graph.launch()
            continue
        graph.launch()
        count, values = trips.to_numpy(), x.to_numpy().astype(np.float64)
        np.testing.assert_allclose(y.to_numpy(), values**count, rtol=1e-5)
        np.testing.assert_allclose(x.grad.to_numpy(), count * values ** (count - 1.0), rtol=1e-5)


def test_prints_and_failed_asserts(arch, capfd) -> None:
    sg.init(arch=arch, debug=True)
    x = sg.field(sg.i32, shape=())

    @sg.kernel
    def check():
        for _ in range(1):
            print("x is", x[None])
            assert x[None] < 3, "too large"
            x[None] += 1

    with sg.Graph() as graph:
        check()
    sg.sync()
    graph.launch()
    graph.launch()
    sg.sync()
    assert capfd.readouterr().out == "x is 0\nx is 1\nx is 2\n"
    with pytest.raises(sg.SpirogradAssertionError, match="too large") as caught:
        graph.launch()
        sg.sync()
    assert "assert x[None] < 3" in str(caught.value)


def test_what_is_known_of_memory_is_known_no_longer(session) -> None:
    """Results that are kept by the generation of memory."""
    n, x = sg.field(sg.i32, shape=()), filled(np.ones(N), True)

    @sg.kernel
    def grow():
        n[None] += 1

    @sg.kernel
    def power():
        for i in x:
            v = x[i]
            for _ in range(n[None]):
                v = v * 2.0
            x[i] = v

    with sg.Graph() as graph:
        grow()
    assert n[None] == 1
    graph.launch()
    assert n[None] == 2
    before = n.to_numpy()
    graph.launch()
    assert before == 2 and n.to_numpy() == 3


def test_what_python_reads_is_refused(session) -> None:
    x, y = filled(np.arange(N)), filled(np.arange(N))
    double = doubling(x, y)

    @sg.kernel
    def first() -> sg.f32:
        return x[0]

    @sg.kernel
    def external(a: sg.types.NDArray[sg.f32, 1]):
        for i in range(N):
            a[i] = x[i]

    for read in (lambda: x[3], x.to_numpy, first):
        with pytest.raises(sg.SpirogradRuntimeError, match="the host reads memory"), sg.Graph():
            double(1.0)
            read()
    with pytest.raises(sg.SpirogradRuntimeError, match="is an array of another library"), sg.Graph():
        external(np.zeros(N, np.float32))
    assert x[3] == 3.0 and first() == 0.0


def test_what_has_no_place_in_a_graph(session) -> None:
    x, y = filled(np.arange(N), True), filled(np.arange(N), True)
    loss = sg.field(sg.f32, shape=(), needs_grad=True)
    double = doubling(x, y)
    with sg.Graph() as graph:
        double(1.0)
    with pytest.raises(sg.SpirogradRuntimeError, match="inside of another one"), sg.Graph(), sg.Graph():
        pass
    with pytest.raises(sg.SpirogradRuntimeError, match="while another one is recorded"), sg.Graph():
        graph.launch()
    with pytest.raises(sg.SpirogradRuntimeError, match="recorded while a tape is open"), sg.ad.Tape(loss), sg.Graph():
        pass
    with pytest.raises(sg.SpirogradRuntimeError, match="launched while a tape is open"), sg.ad.Tape(loss):
        graph.launch()
    with pytest.raises(sg.SpirogradRuntimeError, match="records once"), graph:
        pass
    with pytest.raises(sg.SpirogradRuntimeError, match="recorded nothing yet"):
        sg.Graph().launch()
    failed = sg.Graph()
    with pytest.raises(KeyError), failed:
        double(1.0)
        raise KeyError
    with pytest.raises(sg.SpirogradRuntimeError, match="recorded nothing yet"):
        failed.launch()
    graph.launch()


def test_destroyed_trees_and_ended_sessions(session) -> None:
    builder = sg.FieldsBuilder()
    x = sg.field(sg.f32)
    builder.dense(sg.i, N).place(x)
    tree = builder.finalize()

    @sg.kernel
    def add():
        for i in x:
            x[i] += 1.0

    with sg.Graph() as graph:
        add()
    graph.launch()
    assert x[5] == 2.0
    tree.destroy()
    with pytest.raises(sg.SpirogradRuntimeError, match="tree was destroyed"):
        graph.launch()
    sg.init(arch=session.arch)
    with pytest.raises(sg.SpirogradRuntimeError, match="earlier `init`"):
        graph.launch()


def test_other_threads_are_not_recorded(session) -> None:
    x, y, z = (filled(np.zeros(N)) for _ in range(3))
    mine, theirs = doubling(x, y), doubling(x, z)
    with sg.Graph() as graph:
        mine(1.0)
        other = threading.Thread(target=lambda: (theirs(2.0), z.to_numpy()))
        other.start()
        other.join()
    assert graph.launch_count == 1
    y.fill(0.0)
    z.fill(0.0)
    graph.launch()
    assert y[3] == 1.0 and z[3] == 0.0


def test_memory_lives_as_long_as_the_graph(session) -> None:
    a, b = sg.ndarray(sg.f32, N), sg.ndarray(sg.f32, N)

    @sg.kernel
    def copy(a: sg.types.NDArray[sg.f32, 1], b: sg.types.NDArray[sg.f32, 1]):
        for i in range(N):
            b[i] = a[i] + 1.0

    with sg.Graph() as graph:
        copy(a, b)
    a.fill(2.0)
    del a
    gc.collect()
    others = [sg.ndarray(sg.f32, N) for _ in range(20)]
    for other in others:
        other.fill(9.0)
    graph.launch()
    np.testing.assert_array_equal(b.to_numpy(), 3.0)
