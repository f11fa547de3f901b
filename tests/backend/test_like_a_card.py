"""The ways that Vulkan takes on graphics cards, on lavapipe (see `card`), against NumPy."""

from __future__ import annotations

from typing import Any

import busy_queue
import numpy as np
import pytest
from card import like_a_card

import spirograd as sg
from spirograd import algorithms

pytestmark = pytest.mark.archs("vulkan")


@pytest.fixture(autouse=True)
def device(arch: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    like_a_card(monkeypatch.setattr)
    sg.init(arch=arch)
    device = sg.lang.context.session().device
    assert device.caps.subgroup_reductions and device.caps.subgroup_scans
    assert not device.caps.cpu_driver and not device.caps.loop_limit and ("kind", "cpu") not in device.info.detail
    return device


def test_memory_is_staged(device: Any) -> None:
    """Up to and beyond what a command buffer carries itself, and what one staging block holds; reads between launches."""
    for n in (3, 16_385, 2_100_000):
        values = np.random.default_rng(n).integers(-1000, 1000, n).astype(np.int32)
        x, y = sg.ndarray(sg.i32, n), sg.field(sg.i32, n)
        assert device.host_view(x.tree.allocation.buffer) is None
        x.from_numpy(values)

        @sg.kernel
        def double(x: sg.types.ndarray(), y: sg.template()):
            for i in x:
                y[i] = 2 * x[i]

        double(x, y)
        x[n - 1] = 7
        assert x[n - 1] == 7 and y[n - 1] == 2 * values[-1]
        y[0] = -5
        expected = 2 * values
        expected[0] = -5
        np.testing.assert_array_equal(y.to_numpy(), expected)
        with pytest.raises(ValueError, match="copy=False"):
            x.to_numpy(copy=False)


def test_arguments_larger_than_push_constants() -> None:
    @sg.kernel
    def add(a: sg.types.ndarray(), b: sg.types.ndarray(), c: sg.types.ndarray(), d: sg.types.ndarray(), e: sg.types.ndarray(),
            f: sg.types.ndarray(), g: sg.types.ndarray(), h: sg.types.ndarray(), k: sg.f32):  # fmt: skip
        for i in a:
            a[i] += b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i] + k

    arrays = [sg.ndarray(sg.f32, 100) for _ in range(8)]
    for number, array in enumerate(arrays):
        array.fill(number)
    for launch in range(300):
        add(*arrays, float(launch))
    assert (arrays[0].to_numpy() == 300 * sum(range(8)) + sum(range(300))).all()


def test_sums_histograms_and_extrema() -> None:
    n = 150_007
    rng = np.random.default_rng(1)
    where, what = rng.integers(0, 50, n).astype(np.int32), rng.integers(-1000, 1000, n).astype(np.float32)
    bins, least, most = sg.field(sg.f32, 50), sg.field(sg.f32, ()), sg.field(sg.f32, ())
    index, values = sg.field(sg.i32, n), sg.field(sg.f32, n)
    index.from_numpy(where)
    values.from_numpy(what)

    @sg.kernel
    def collect() -> sg.f32:
        total = 0.0
        for i in index:
            bins[index[i]] += values[i]
            sg.atomic_min(least[None], values[i])
            sg.atomic_max(most[None], values[i])
            total += values[i]
        return total

    assert collect() == what.sum(dtype=np.float64)  # of integers below 2^24: exact
    np.testing.assert_array_equal(bins.to_numpy(), np.bincount(where, what, 50))
    assert (least[None], most[None]) == (what.min(), what.max())
    assert "copy_" in collect.ir("device")


@pytest.mark.parametrize("sizes", ["host", "device"])
def test_gradients_with_tapes(sizes: str) -> None:
    """More iterations than thread slots, and sizes that the device computes."""
    n = 300_000
    trips = np.random.default_rng(2).integers(0, 5, n).astype(np.int32)
    count, x = sg.field(sg.i32, n), sg.field(sg.f64, n, needs_grad=True)
    loss = sg.field(sg.f64, (), needs_grad=True)
    count.from_numpy(trips)
    x.fill(1.25)

    @sg.kernel
    def run(most: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(count[i] if sg.static(sizes == "device") else sg.min(most, i % 5)):
                v = 0.5 * v * v + 0.25
            loss[None] += v

    steps = trips if sizes == "device" else np.minimum(4, np.arange(n) % 5)
    value, slope = np.full(n, 1.25), np.ones(n)
    for step in range(5):
        active = step < steps
        slope, value = np.where(active, slope * value, slope), np.where(active, 0.5 * value * value + 0.25, value)
    for _ in range(2):
        x.grad.fill(0)
        loss.grad[None] = 1
        run(4)
        run.grad(4)
        np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-13)


def test_faults_and_prints(capfd: pytest.CaptureFixture[str]) -> None:
    sg.init(arch=sg.vulkan, check_out_of_bound=True)
    x = sg.field(sg.i32, 10)

    @sg.kernel
    def write(n: sg.i32):
        for i in range(n):
            x[i] = i

    @sg.kernel
    def tell(n: sg.i32):
        print("n is", n)

    tell(3)
    write(11)
    with pytest.raises(sg.SpirogradAssertionError, match=r"out of range|out of bounds"):
        sg.sync()
    assert "n is 3" in capfd.readouterr().out
    write(10)
    np.testing.assert_array_equal(x.to_numpy(), np.arange(10))


def test_sorts_scans_and_sparse_fields() -> None:
    n = 5000
    keys = np.random.default_rng(3).integers(-100, 100, n).astype(np.int32)
    x, places, out = sg.ndarray(sg.i32, n), sg.ndarray(sg.i32, n), sg.ndarray(sg.i32, n)
    x.from_numpy(keys)
    algorithms.argsort(x, places)
    np.testing.assert_array_equal(places.to_numpy(), np.argsort(keys, kind="stable"))
    algorithms.inclusive_scan(x, out)
    np.testing.assert_array_equal(out.to_numpy(), np.cumsum(keys))
    cells = sg.field(sg.i32)
    sg.root.pointer(sg.i, 100).dense(sg.i, 50).place(cells)

    @sg.kernel
    def activate():
        for i in range(n):
            if x[i] > 90:
                cells[i] = x[i]

    @sg.kernel
    def total() -> sg.i32:
        s = 0
        for i in cells:
            s += cells[i]
        return s

    activate()
    assert total() == keys[keys > 90].sum()


def test_graphs_and_streams() -> None:
    x, y = sg.field(sg.f32, 1000), sg.field(sg.f32, 1000)

    @sg.kernel
    def step():
        for i in x:
            x[i] += y[i]

    step()
    y.fill(1)
    with sg.Graph() as graph:
        step()
        step()
    graph.launch()
    stream = sg.create_stream()
    step(stream=stream)
    y.fill(10)
    step()
    assert (x.to_numpy() == 15).all()


def test_a_busy_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads, writes and freed memory while work is late, after any number of commands."""
    busy_queue.delay(monkeypatch.setattr)
    sg.init(arch=sg.vulkan)
    x, y = sg.ndarray(sg.i32, 20_000), sg.ndarray(sg.i32, 20_000)
    expected = np.arange(20_000, dtype=np.int32)

    @sg.kernel
    def add(x: sg.types.ndarray(), k: sg.i32):
        for i in x:
            x[i] += k

    for before in (1, 62, 63, 64, 65, 127, 128, 129):
        x.from_numpy(expected)
        for k in range(before):
            add(x, k)
        expected = expected + before * (before - 1) // 2
        np.testing.assert_array_equal(x.to_numpy(), expected)
        x[7] = -before
        expected[7] = -before
        for k in range(before):
            sg.ndarray(sg.i32, 100 + k).fill(k)
        y.copy_from(x)
        assert y[7] == -before
        np.testing.assert_array_equal(y.to_numpy(), expected)
