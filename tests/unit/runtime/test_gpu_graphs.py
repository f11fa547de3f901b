"""Graphs of the driver: what a recording becomes on CUDA and HIP. On stand-ins for their drivers."""

import gc

import numpy as np
import pytest
from unit.runtime import gpu_modules

import spirograd as sg
from spirograd.base.arguments import Arguments
from spirograd.lang import context
from spirograd.runtime.launcher import Launcher

OTHER = 7  # a stream of another library


def counting(by_address: bool = False):
    """A function (array, n, k) that adds k to the first word of an array n times, by a hand-written kernel that the stand-in runs."""
    device = context.session().device
    plan = Launcher(device, context.session().memory).prepare(gpu_modules.compiled(device, "count", by_address=by_address))
    return lambda array, n, k: plan.launch(Arguments.of([None, n, k], [None] * 3, {0: array.allocation}))


def test_a_series_is_one_call_of_the_driver(session):
    a, b = sg.ndarray(sg.i32, shape=4), sg.ndarray(sg.i32, shape=4)
    count = counting()
    before = session.calls("launch")
    with sg.Graph() as graph:
        a.fill(0)
        for k in range(5):
            count(a, 3, k)
        b.copy_from(a)
    assert session.calls("graph_make") == session.calls("graph_destroy") == 1
    assert session.calls("launch") - before == 10  # done, and recorded
    for _ in range(3):
        a.fill(9)
        graph.launch()
        assert b.to_numpy().tolist() == [30, 0, 0, 0]
    assert session.calls("graph_launch") == 3 and session.calls("launch") - before == 10
    with sg.Stream(OTHER):
        graph.launch()
        assert session.calls("graph_launch") == 4
    np.testing.assert_array_equal(b.to_numpy(), [30, 0, 0, 0])


@pytest.mark.parametrize("apart", [True, False])
def test_sections_are_branches(session, apart):
    """One that uses memory of another comes after it."""
    a, b = sg.ndarray(sg.i32, shape=1), sg.ndarray(sg.i32, shape=1)
    second = b if apart else a
    count = counting()
    recording = context.session().new_recording()
    with recording.open():
        a.fill(1)
        waits = session.calls("stream_wait")
        recording.sections([lambda: count(a, 1, 2), lambda: second.fill(50)])
        count(second, 1, 3)
    assert session.branches == 2 and session.calls("graph_make") == 1
    assert session.calls("stream_wait") - waits == (4 if apart else 5)  # to each branch, from each, and between them
    a.fill(9)
    b.fill(9)
    recording.repeat()
    assert (a[0], b[0]) == ((3, 53) if apart else (53, 9))


def test_what_the_host_writes_lies_between_graphs(session):
    a = sg.ndarray(sg.i32, shape=1)
    count = counting()
    with sg.Graph() as graph:
        a.fill(1)
        count(a, 1, 1)
        a.from_numpy(np.array([100], np.int32))
        count(a, 1, 5)
        count(a, 1, 6)
    assert session.calls("graph_make") == 2
    a.fill(0)
    graph.launch()
    assert a.to_numpy().tolist() == [111]


def test_graphs_go_with_the_last_reference(session):
    a = sg.ndarray(sg.i32, shape=1)
    count = counting()
    for _ in range(3):
        with sg.Graph() as graph:
            count(a, 1, 1)
            count(a, 1, 1)
        graph.launch()
        del graph
        gc.collect()
    sg.sync()
    assert session.live("graphs") == 0
    kept = sg.Graph()
    with kept:
        count(a, 1, 1)
        count(a, 1, 1)
    modules = session.live("modules")
    assert session.live("graphs") == 1 and modules
    sg.reset()
    assert session.live("graphs") == session.live("modules") == 0


def test_a_driver_that_fails_to_record(session):
    a = sg.ndarray(sg.i32, shape=1)
    count = counting()
    for call in ("capture_begin", "capture_end", "graph_make"):
        session.fail(call, 2, 1)
        with pytest.raises(sg.OutOfDeviceMemory, match="a graph"), sg.Graph():
            count(a, 1, 1)
            count(a, 1, 1)
    with sg.Graph() as graph:
        a.fill(0)
        count(a, 1, 1)
        count(a, 1, 1)
    graph.launch()
    assert a.to_numpy().tolist() == [2]


def test_argument_blocks_that_are_uploaded_are_not_recorded(session):
    a = sg.ndarray(sg.i32, shape=1)
    count = counting(by_address=True)
    with sg.Graph() as graph:
        count(a, 1, 1)
        count(a, 2, 1)
    assert session.calls("graph_make") == 0
    graph.launch()
    assert a.to_numpy().tolist() == [6]
