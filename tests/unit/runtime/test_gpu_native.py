"""Launches that compiled code does on CUDA and HIP, on stand-ins for their drivers: the driver gets what it gets from Python."""

import threading

import numpy as np
import pytest

import spirograd as sg
from spirograd.lang import context
from spirograd.lang.frontend import kernel as kernels
from spirograd.lang.frontend import native_calls

A1 = sg.types.ndarray(sg.f32, 1)
OTHER = 7  # the handle of a stream of another library


@pytest.fixture
def in_python(session, monkeypatch):
    """The names of the kernels that Python launched; the others were launched by compiled code, from the second call on."""
    monkeypatch.setattr(native_calls, "_PATIENCE", 1)
    monkeypatch.setattr(native_calls, "_MOST_PATIENCE", 1)
    calls = []
    call = kernels.Kernel._call
    monkeypatch.setattr(kernels.Kernel, "_call", lambda kernel, *args: calls.append(kernel.function.__name__) or call(kernel, *args))
    return calls


def told(session, run):
    """What ``run`` has the driver launch."""
    first = len(session.launches)
    run()
    return [(launch.name, launch.groups, launch.group_size, launch.block, launch.stream) for launch in session.launches[first:]]


def make():
    """A kernel of three tasks."""
    x = sg.field(sg.f32, 10_000)

    @sg.kernel
    def several(a: A1, b: A1, n: sg.i32, s: sg.f32, on: sg.u1):
        for i in x:
            x[i] += s
        for i in a:
            a[i] = b[i]
        for i in range(n):
            if on:
                b[i] += s

    return several


def test_the_driver_gets_the_same(session, in_python):
    several = make()
    a, b, c = (sg.ndarray(sg.f32, n) for n in (3000, 3000, 7))
    kinds = [(a, b, 5000, 1.5, True), (b, a, 5000, -2, False), (a, b, 0, 1.0, True), (c, b, 5000, 1.0, True), (c, c, 1, -0.0, False)]
    for args in kinds:
        several(*args)
    before = len(in_python)
    for args in (*kinds, *kinds):
        found = told(session, lambda args=args: several(*args))
        assert len(found) == (2 if args[2] == 0 else 3)
        assert found == told(session, lambda args=args: several._call(args, {}))
    assert len(in_python) == before + 2 * len(kinds), "only those that the test asked Python for"
    sg.sync()


def test_other_sizes_go_to_python(session, in_python):
    """The number of workgroups belongs to a record."""
    several = make()
    a, b = sg.ndarray(sg.f32, 3000), sg.ndarray(sg.f32, 3000)
    several(a, b, 5000, 1.0, True)
    assert [groups for _, groups, *_ in told(session, lambda: several(a, b, 5000, 2.0, True))][2] == 20
    assert [groups for _, groups, *_ in told(session, lambda: several(a, b, 513, 2.0, True))][2] == 3
    assert in_python == ["several"] * 2


def test_generations(session, in_python):
    several = make()
    a, b = sg.ndarray(sg.f32, 3000), sg.ndarray(sg.f32, 3000)
    counts = []
    for _ in range(4):
        several(a, b, 10, 1.0, True)
        counts.append([sum(v.generations.values()) for v in (a.allocation, b.allocation)])
    assert all(one < other for k in range(2) for one, other in zip([c[k] for c in counts], [c[k] for c in counts][1:]))
    assert in_python == ["several"]


def test_the_stream_is_the_present_one(session, in_python):
    several = make()
    args = (sg.ndarray(sg.f32, 30), sg.ndarray(sg.f32, 30), 10, 1.0, True)
    for _ in range(2):
        several(*args)
    own = context.session().device.stream
    with sg.Stream(OTHER):
        assert {stream for *_, stream in told(session, lambda: several(*args))} == {OTHER}
    assert {stream for *_, stream in told(session, lambda: several(*args))} == {own}
    assert in_python == ["several"]


def test_errors_of_the_driver(session, in_python):
    """They are raised by the call, and name the kernel; the next launch is not concerned."""
    several = make()
    args = (sg.ndarray(sg.f32, 30), sg.ndarray(sg.f32, 30), 10, 1.0, True)
    for _ in range(2):
        several(*args)
    for times in (1, 3):
        session.fail("launch", 1, times)
        for _ in range(times):
            with pytest.raises(sg.SpirogradRuntimeError, match=f"several.*{session.api.errors['INVALID_VALUE']}"):
                several(*args)
        assert len(told(session, lambda: several(*args))) == 3
    assert in_python == ["several"]


def test_a_lost_device(session, in_python):
    several = make()
    args = (sg.ndarray(sg.f32, 30), sg.ndarray(sg.f32, 30), 10, 1.0, True)
    for _ in range(2):
        several(*args)
    session.fail("launch", 700, 1)
    with pytest.raises(sg.SpirogradRuntimeError, match="lost"):
        several(*args)
    assert in_python == ["several"]
    with pytest.raises(sg.SpirogradRuntimeError, match="lost"):
        several(*args)
    assert in_python == ["several"] * 2, "Python says so from then on"


def test_what_is_left_to_python(session, in_python):
    """NumPy arrays, which are copied; kernels that report; what a graph records."""
    host, a = np.ones(30, np.float32), sg.ndarray(sg.f32, 30)

    @sg.kernel
    def scale(a: A1, s: sg.f32):
        for i in a:
            a[i] *= s

    @sg.kernel
    def tell(a: A1):
        for i in a:
            print(a[i])

    for _ in range(4):
        scale(host, 2.0)
        tell(a)
    assert in_python == ["scale", "tell"] * 4
    in_python.clear()
    for _ in range(3):
        scale(a, 2.0)
    with sg.Graph() as graph:
        scale(a, 3.0)
    assert in_python == ["scale"] * 2
    assert len(told(session, graph.launch)) == 1
    scale(a, 4.0)
    sg.sync()


def test_sessions_end(session, in_python):
    several = make()
    args = (sg.ndarray(sg.f32, 30), sg.ndarray(sg.f32, 30), 10, 1.0, True)
    for _ in range(2):
        several(*args)
    sg.init(arch=session.api.arch)
    with pytest.raises(sg.SpirogradRuntimeError):
        several(*args)
    sg.reset()
    with pytest.raises(sg.SpirogradRuntimeError):
        several(*args)
    sg.init(arch=session.api.arch)


def test_threads(session, in_python):
    """Threads that launch by turns, while another one allocates, copies and waits."""
    several = make()
    args = (sg.ndarray(sg.f32, 30), sg.ndarray(sg.f32, 30), 10, 1.0, True)
    for _ in range(2):
        several(*args)
    first, done = len(session.launches), threading.Event()

    def launch():
        for _ in range(200):
            several(*args)

    def disturb():
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
    names = [launch.name for launch in session.launches[first:]]
    assert names == names[:3] * 400, "the tasks of a launch follow each other"
