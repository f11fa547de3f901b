"""Launches that compiled code records in command buffers of Vulkan, against those by Python and NumPy: order, batches, reports, streams."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.lang import context
from spirograd.lang.frontend import native_calls
from spirograd.runtime.devices.vulkan import call, call_words

# Other devices call a function of the driver for each launch.
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("vulkan")]
A1 = sg.types.ndarray(sg.f32, 1)
I1 = sg.types.ndarray(sg.i32, 1)


@sg.kernel
def affine(a: A1, s: sg.f32, t: sg.f32):
    for i in a:
        a[i] = a[i] * s + t


@sg.kernel
def shift(a: A1, b: A1):
    for i in a:
        b[i] = a[(i + 1) % a.shape[0]]


@sg.kernel
def several(a: A1, b: A1, n: sg.i32):
    for i in a:
        a[i] += 1.0
    for i in range(n):
        b[i] = a[i] * 0.5
    for i in a:
        a[i] += b[i]


def prepared(launch: Any) -> None:
    for _ in range(2):
        launch()


@pytest.mark.parametrize("wait_at", [1, 3, 70, 5000])
def test_order(way, in_python, wait_at):
    """Kernels in turn, each of which reads what the one before wrote; many more than fit into all command buffers."""
    a, b = sg.ndarray(sg.f32, 300), sg.ndarray(sg.f32, 300)
    rng = np.random.default_rng(5)
    x, y = np.zeros(300, np.float32), np.zeros(300, np.float32)
    for turn in range(1500 if wait_at > 10 else 300):
        s, t = np.float32(rng.integers(-2, 3) / 2), np.float32(rng.integers(-8, 9))
        affine(a, float(s), float(t))
        x = x * s + t
        shift(a, b)
        y = np.roll(x, -1)
        if turn % 7 == 0:
            several(b, a, 300)
            x = (y + 1) / 2
            y = y + 1 + x
        if turn % wait_at == 0:
            sg.sync()
    np.testing.assert_array_equal(a.to_numpy(), x)
    np.testing.assert_array_equal(b.to_numpy(), y)
    if way == "native":
        assert len(in_python) == 3


def test_counts(way, in_python):
    """Each number of iterations has a record; tasks without iterations are left out."""
    a, b = sg.ndarray(sg.f32, 1000), sg.ndarray(sg.f32, 1000)
    x, y = np.zeros(1000, np.float32), np.zeros(1000, np.float32)
    for n in [0, 5, 1000, -3] * 3:
        several(a, b, n)
        x += 1
        y[: max(n, 0)] = x[: max(n, 0)] / 2
        x += y
    np.testing.assert_array_equal(a.to_numpy(), x)
    np.testing.assert_array_equal(b.to_numpy(), y)
    assert way == "python" or len(in_python) == 4


def test_mixed_with_other_work(way):
    """Copies, fills, readbacks and series of launches keep their place between launches."""
    a, b = sg.ndarray(sg.f32, 64), sg.ndarray(sg.f32, 64)
    prepared(lambda: affine(a, 1.0, 0.0))
    with sg.Graph() as graph:
        affine(a, 2.0, 1.0)
        shift(a, b)
    x = np.zeros(64, np.float32)
    for turn in range(40):
        affine(a, 1.0, 3.0)
        x += 3
        if turn % 5 == 0:
            a.fill(turn)
            x[:] = turn
        affine(a, 0.5, 1.0)
        x = x * 0.5 + 1
        if turn % 3 == 0:
            graph.launch()
            x = x * 2 + 1
        if turn % 4 == 0:
            assert a[turn] == x[turn]
        if turn % 9 == 0:
            a.from_numpy(x + 1)
            x = x + 1
        affine(a, 0.5, 0.0)
        x = x * np.float32(0.5)
    np.testing.assert_array_equal(a.to_numpy(), x)


def test_reports(way, capsys):
    sg.init(arch=sg.cfg.arch, debug=True)

    @sg.kernel
    def tell(a: I1, n: sg.i32):
        for i in a:
            if a[i] == n:
                print("found", n)
            assert a[i] < 5

    a = sg.ndarray(sg.i32, 4)
    a.from_numpy(np.array([1, 2, 3, 4], np.int32))
    for n in (1, 9, 3, 3, 4):
        tell(a, n)
    sg.sync()
    assert capsys.readouterr().out == "found 1\nfound 3\nfound 3\nfound 4\n"
    a[2] = 7
    tell(a, 0)
    with pytest.raises(sg.SpirogradAssertionError, match=r"a\[i\] < 5"):
        sg.sync()
    a[2] = 0
    tell(a, 2)
    sg.sync()
    assert capsys.readouterr().out == "found 2\n"


def test_streams(way):
    a, b = sg.ndarray(sg.f32, 64), sg.ndarray(sg.f32, 64)
    prepared(lambda: affine(a, 1.0, 1.0))
    prepared(lambda: shift(a, b))
    x, stream = np.full(64, 2, np.float32), sg.create_stream()
    for _ in range(5):
        affine(a, 2.0, 1.0)
        with stream:
            affine(a, 3.0, 0.0)
        shift(a, b)
        x = (x * 2 + 1) * 3
    np.testing.assert_array_equal(b.to_numpy(), x)


def test_lent_memory(way):
    """While the host uses memory, each launch is complete when it returns."""
    a = sg.ndarray(sg.f32, 64)
    prepared(lambda: affine(a, 1.0, 1.0))
    try:
        view = a.to_numpy(copy=False)
    except ValueError:
        pytest.skip("the host cannot address this memory")
    for k in range(20):
        affine(a, 1.0, 1.0)
        assert (view == k + 3).all()
        view[:] = k + 3
    del view
    gc.collect()
    for _ in range(20):
        affine(a, 1.0, 1.0)
    np.testing.assert_array_equal(a.to_numpy(), np.full(64, 42))


def test_gradients(way):
    x, y = (sg.field(sg.f32, 100, needs_grad=True) for _ in range(2))

    @sg.kernel
    def square():
        for i in x:
            y[i] += x[i] * x[i]

    x.from_numpy(np.arange(100, dtype=np.float32))
    for k in range(1, 6):
        y.grad.fill(1.0)
        x.grad.fill(0.0)
        square()
        square.grad()
        np.testing.assert_array_equal(x.grad.to_numpy(), 2 * np.arange(100))
        np.testing.assert_array_equal(y.to_numpy(), k * np.arange(100, dtype=np.float32) ** 2)


def test_memory_is_kept(way):
    """Arrays and kernels that are dropped before their launches were submitted stay until these are complete."""
    total = sg.ndarray(sg.f32, 1)

    def some(n: int) -> None:
        @sg.kernel
        def add(a: A1, out: A1):
            for i in a:
                out[0] += a[i]

        a = sg.ndarray(sg.f32, n)
        a.fill(1.0)
        for _ in range(3):
            add(a, total)

    for n in range(1, 30):
        some(n)
        gc.collect()
    assert total[0] == 3 * sum(range(1, 30))


def test_threads(way):
    a, b = sg.ndarray(sg.f32, 64), sg.ndarray(sg.f32, 64)
    prepared(lambda: several(a, b, 64))
    start = a.to_numpy()
    done = threading.Event()
    failures: list[BaseException] = []

    def launch() -> None:
        try:
            for _ in range(200):
                affine(a, 1.0, 1.0)
        except BaseException as error:
            failures.append(error)

    def disturb() -> None:
        while not done.is_set():
            sg.ndarray(sg.f32, 100).to_numpy()
            sg.sync()

    threads, other = [threading.Thread(target=launch) for _ in range(2)], threading.Thread(target=disturb)
    for thread in (*threads, other):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    other.join()
    assert not failures
    np.testing.assert_array_equal(a.to_numpy(), start + 400)


# What the driver answers: VK_ERROR_DEVICE_LOST, VK_ERROR_OUT_OF_HOST_MEMORY.
@pytest.mark.parametrize("code", [-4, -1])
@pytest.mark.parametrize("function", ["END", "SUBMIT", "READ_COUNTER"])
def test_errors_of_the_driver(function, code):
    """An error that compiled code gets is raised by the wait, in the words of an error that Python gets."""
    a = sg.ndarray(sg.f32, 64)
    for _ in range(native_calls._PATIENCE + 1):
        affine(a, 1.0, 1.0)
        sg.sync()
    stream = context.session().device._own
    assert stream.advance is not None
    at = getattr(call_words, function) // 8
    good, failing = stream.words[at], _failing(code)
    stream.words[at] = ctypes.cast(failing, ctypes.c_void_p).value or 0
    affine(a, 1.0, 2.0)  # Other arguments than before, so that it is recorded.
    expected = "DEVICE_LOST" if code == -4 else "OUT_OF_HOST_MEMORY"
    with pytest.raises(sg.SpirogradRuntimeError, match=expected):
        sg.sync()
    stream.words[at] = good
    if code == -4 or function != "READ_COUNTER":  # Work is lost.
        with pytest.raises(sg.SpirogradRuntimeError, match=expected):
            affine(a, 1.0, 1.0)
    else:
        affine(a, 1.0, 1.0)
        np.testing.assert_array_equal(a.to_numpy(), np.full(64, native_calls._PATIENCE + 4))
    sg.init(arch=sg.cfg.arch)


def test_a_command_buffer_that_is_not_begun_ahead():
    """Python begins it, and raises the error if that fails again."""
    a = sg.ndarray(sg.f32, 64)
    for _ in range(native_calls._PATIENCE + 1):
        affine(a, 1.0, 1.0)
        sg.sync()
    stream = context.session().device._own
    failing = _failing(-1)
    good, stream.words[call_words.BEGIN // 8] = stream.words[call_words.BEGIN // 8], ctypes.cast(failing, ctypes.c_void_p).value or 0
    for k in range(3):
        affine(a, 1.0, float(k))
        sg.sync()
    assert not stream.words[call_words.READY // 8]
    stream.words[call_words.BEGIN // 8] = good
    for k in range(3):
        affine(a, 1.0, float(k))
        sg.sync()
    assert stream.words[call_words.READY // 8]
    np.testing.assert_array_equal(a.to_numpy(), np.full(64, native_calls._PATIENCE + 7))


def test_equal_launches_are_submitted_again():
    """Random series of a few launches repeat often. Python records fills, so a fill ends a log."""
    a, b = sg.ndarray(sg.f32, 64), sg.ndarray(sg.f32, 64)
    for _ in range(native_calls._PATIENCE + 1):
        affine(a, 1.0, 0.0)
        shift(a, b)
        several(b, a, 8)
    a.fill(0.0)
    b.fill(0.0)
    sg.sync()
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    rng, stream, again = np.random.default_rng(3), context.session().device._own, 0
    for _ in range(400):
        for way in rng.choice(4, rng.integers(1, 4), p=[0.5, 0.3, 0.18, 0.02]):
            if way == 0:
                affine(a, 0.5, 1.0)
                x = x * np.float32(0.5) + 1
            elif way == 1:
                shift(a, b)
                y = np.roll(x, -1)
            elif way == 2:
                several(b, a, 8)
                y = y + 1
                x = np.concatenate([y[:8] * np.float32(0.5), x[8:]])
                y = y + x
            else:
                b.fill(0.0)
                y = np.zeros(64, np.float32)
        before = stream._current
        sg.sync()
        again += stream._current == before
    np.testing.assert_array_equal(a.to_numpy(), x)
    np.testing.assert_array_equal(b.to_numpy(), y)
    assert 100 < again < 400


def test_command_buffers_of_deleted_kernels_are_forgotten():
    """The driver may give a new pipeline the handle of one that a command buffer refers to, and Python the words of a launch."""
    stream = context.session().device._own
    logs = [slot.at + call_words.SLOT_LOGGED // 8 for slot in stream.slots]

    def some(factor: int) -> None:
        @sg.kernel
        def add(a: A1, s: sg.f32):
            for i in a:
                a[i] += s * factor

        a = sg.ndarray(sg.f32, 64)
        for _ in range(native_calls._PATIENCE + 3):
            add(a, 1.0)
            sg.sync()
        np.testing.assert_array_equal(a.to_numpy(), np.full(64, (native_calls._PATIENCE + 3) * factor))

    for factor in range(1, 4):
        some(factor)
        assert any(stream.words[log] for log in logs)
        gc.collect()
        sg.sync()
        assert not any(stream.words[log] for log in logs)


def _failing(code: int) -> Callable[[int], int]:
    """A function of C that returns ``code``. Those of the driver have other parameters, which it does not look at."""
    return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(lambda _: code)


@pytest.fixture
def without_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A system that cannot link the functions."""
    monkeypatch.setattr(call, "_code", [None])
    yield


@pytest.mark.usefixtures("without_code")
def test_systems_without_compiled_code(way):
    a = sg.ndarray(sg.f32, 64)
    for _ in range(5):
        affine(a, 1.0, 1.0)
        sg.sync()
    np.testing.assert_array_equal(a.to_numpy(), np.full(64, 5))
