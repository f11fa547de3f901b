"""Launches that compiled code repeats by graphs of CUDA and HIP, on stand-ins for their drivers."""

import ctypes
import gc

import pytest

import spirograd as sg
from spirograd.lang import context
from spirograd.lang.frontend import native_calls
from spirograd.runtime.devices.gpu.repeated_launch import _PATIENCE
from spirograd.runtime.devices.gpu.stream import RELAXED

OTHER = 7  # a stream of another library
A1 = sg.types.ndarray(sg.f32, 1)


@pytest.fixture
def told(session, monkeypatch):
    """A function that calls another one, and returns how many tasks and graphs it launched. All but a kernel's first launch are by compiled
    code."""
    monkeypatch.setattr(native_calls, "_PATIENCE", 1)
    monkeypatch.setattr(native_calls, "_MOST_PATIENCE", 1)

    def run(work, times=1):
        before = [session.calls(name) for name in ("launch", "graph_launch")]
        for _ in range(times):
            work()
        return tuple(session.calls(name) - n for name, n in zip(("launch", "graph_launch"), before))

    return run


def make(tasks=3):
    """A kernel of some tasks."""

    @sg.kernel
    def several(a: A1, b: A1, s: sg.f32):
        for i in a:
            a[i] += s
        if sg.static(tasks > 1):
            for i in range(b.shape[0] // 2):
                b[i] = a[b.shape[0] // 2 - i]
        if sg.static(tasks > 2):
            for i in range(a.shape[0] // 3):
                a[i] = b[a.shape[0] // 3 - i]

    return several


def test_equal_launches_become_a_graph(session, told):
    several, a, b = make(), sg.ndarray(sg.f32, 3000), sg.ndarray(sg.f32, 3000)
    assert told(lambda: several(a, b, 1.0), 1) == (3, 0)
    assert told(lambda: several(a, b, 1.0), _PATIENCE + 1) == (3 * (_PATIENCE + 1) + 3, 0), "the last one records the tasks once more"
    assert told(lambda: several(a, b, 1.0), 5 * _PATIENCE) == (0, 5 * _PATIENCE)
    assert session.calls("graph_make") == 1
    sg.sync()


def test_other_blocks(session, told):
    """Launches with other blocks are launched one by one, and need twice as many equal ones before the next graph."""
    several, a, b = make(), sg.ndarray(sg.f32, 3000), sg.ndarray(sg.f32, 3000)
    told(lambda: several(a, b, 1.0), _PATIENCE + 2)
    assert told(lambda: several(a, b, 1.0)) == (0, 1)
    assert told(lambda: several(a, b, 2.0)) == (3, 0)
    assert told(lambda: several(a, b, 1.0)) == (3, 0), "the graph was dropped"
    assert told(lambda: several(b, a, 1.0)) == (3, 0)
    assert told(lambda: several(b, a, 1.0), 2 * _PATIENCE) == (3 * (2 * _PATIENCE + 1), 0)
    assert told(lambda: several(b, a, 1.0)) == (0, 1)
    assert session.calls("graph_make") == 2
    values = iter(range(10_000))
    assert told(lambda: several(a, b, float(next(values))), 3 * _PATIENCE) == (9 * _PATIENCE, 0)
    assert session.calls("graph_make") == 2


@pytest.mark.parametrize("tasks", [1, 2])
def test_few_tasks(told, tasks):
    few, a, b = make(tasks), sg.ndarray(sg.f32, 3000), sg.ndarray(sg.f32, 3000)
    told(lambda: few(a, b, 1.0), _PATIENCE + 2)
    assert told(lambda: few(a, b, 1.0), 3) == (0, 3)


def test_a_stream_that_another_library_records(session, told):
    """A graph cannot be recorded in a graph: the tasks are."""
    several, a, b = make(), sg.ndarray(sg.f32, 3000), sg.ndarray(sg.f32, 3000)
    told(lambda: several(a, b, 1.0), _PATIENCE + 2)
    device = context.session().device
    with sg.Stream(OTHER):
        assert told(lambda: several(a, b, 1.0)) == (0, 1)
        with device._turn:
            device._driver.capture_begin(device.stream, RELAXED)
        assert told(lambda: several(a, b, 1.0)) == (3, 0)
        recorded = ctypes.c_void_p()
        with device._turn:
            device._driver.capture_end(device.stream, ctypes.byref(recorded))
            device._driver.graph_destroy(recorded)
        assert told(lambda: several(a, b, 1.0)) == (0, 1)


def test_errors(session, told, caplog):
    """A failed launch of a graph is raised by the call, and the next one is not concerned. Without a graph, the tasks are launched."""
    several, a, b = make(), sg.ndarray(sg.f32, 3000), sg.ndarray(sg.f32, 3000)
    told(lambda: several(a, b, 1.0), _PATIENCE + 3)
    session.fail("graph_launch", 1, 1)
    with pytest.raises(sg.SpirogradRuntimeError, match=f"launch kernel .*several.*{session.api.errors['INVALID_VALUE']}"):
        several(a, b, 1.0)
    assert told(lambda: several(a, b, 1.0)) == (0, 1)
    session.fail("graph_make", 1, 1)
    assert told(lambda: several(b, a, 1.0), 4 * _PATIENCE) == (3 * (4 * _PATIENCE + 1), 0)
    assert session.calls("graph_make") == 2, "it is tried once"
    assert [record.message for record in caplog.records] == [
        f"kernel several is launched task by task, which takes longer than a graph: {session.api.name}: cannot make a graph: "
        f"{session.api.errors['INVALID_VALUE']}"
    ]


def test_the_end_of_graphs(session, told):
    """They are released with the records of launches, before the modules of their kernels."""
    several, a, b = make(), sg.ndarray(sg.f32, 3000), sg.ndarray(sg.f32, 3000)
    told(lambda: several(a, b, 1.0), _PATIENCE + 3)
    assert session.calls("graph_make") == 1 and session.calls("graph_unload") == 0
    several._native.forget()
    gc.collect()
    sg.sync()
    assert session.calls("graph_unload") == 1
    told(lambda: several(a, b, 1.0), _PATIENCE + 3)
    context.session().close()
    assert session.calls("graph_make") == session.calls("graph_unload") == 2
