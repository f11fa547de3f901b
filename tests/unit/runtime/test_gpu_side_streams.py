"""Streams of the session on CUDA and HIP: order by memory, whichever stream is kept back. On stand-ins for the drivers."""

import random

import numpy as np
import pytest
from unit.runtime import gpu_modules

import spirograd as sg
from spirograd.base.arguments import Arguments
from spirograd.base.artifact import Effects
from spirograd.base.records import replace
from spirograd.lang import context
from spirograd.runtime import stream_order
from spirograd.runtime.launcher import Launcher

CHANGES = Effects(reads=frozenset({("tree", 0)}), writes=frozenset({("tree", 0)}))


def kernel(body, by_address=False):
    """A hand-written kernel that changes an array."""
    session = context.session()
    compiled = replace(gpu_modules.compiled(session.device, body, by_address=by_address), effects=CHANGES)
    plan = Launcher(session.device, session.memory).prepare(compiled)
    return lambda array, by, n=1: plan.launch(Arguments.of([None, n, by], [None] * 3, {0: array.allocation}))


@pytest.mark.parametrize("seed", range(6))
def test_stress(session, seed):
    """Any work on any stream, while streams are kept back and let go at any time, gives what one stream would."""
    rng = random.Random(seed)
    count, scale, large = kernel("count"), kernel("scale"), kernel("scale", by_address=True)
    arrays = [sg.ndarray(sg.i32, shape=4) for _ in range(3)]
    model = [np.zeros(4, np.int32) for _ in arrays]
    made = [sg.create_stream() for _ in range(3)]
    handles = [context.session().device.stream, *(stream.handle for stream in made)]
    held = None
    for _ in range(120):
        if held is not None:
            session.hold(False, stream=held)
        held = rng.choice([None, *handles])
        if held is not None:
            session.hold(stream=held)
        k, j, by, action = rng.randrange(3), rng.randrange(3), rng.randrange(50), rng.randrange(8)
        with rng.choice([*made, streams_off()]):
            if action == 0:
                count(arrays[k], by)
                model[k][0] += by
            elif action in (1, 2):
                (scale if action == 1 else large)(arrays[k], by, 4)
                model[k] = model[k] * 2 + by + np.arange(4, dtype=np.int32)
            elif action == 3 and k != j:
                arrays[k].copy_from(arrays[j])
                model[k] = model[j].copy()
            elif action == 4:
                arrays[k].fill(by)
                model[k][:] = by
            elif action == 5:
                arrays[k] = sg.ndarray(sg.i32, shape=4)  # the memory of the one before may come again
                model[k] = np.zeros(4, np.int32)
            elif action == 6:
                arrays[k][2] = by
                model[k][2] = by
            elif action == 7 and held is None:
                assert (arrays[k].to_numpy() == model[k]).all()
    if held is not None:
        session.hold(False, stream=held)
    for array, expected in zip(arrays, model):
        assert (array.to_numpy() == expected).all()
    sg.sync()
    assert stream_order.active is None


class streams_off:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_work_on_other_memory_does_not_wait(session):
    count = kernel("count")
    a, b = sg.ndarray(sg.i32, shape=1), sg.ndarray(sg.i32, shape=1)
    sg.sync()
    one, two = sg.create_stream(), sg.create_stream()
    session.hold(stream=one.handle)
    event = sg.create_event()
    with one:
        count(a, 1)
        event.record(one)
    with two:
        count(b, 2)
    count(b, 3)
    two.synchronize()
    assert b.to_numpy().tolist() == [5]
    with two:
        count(a, 4)
    session.hold(False, stream=one.handle)
    event.synchronize()
    assert a.to_numpy().tolist() == [5]
    assert {launch.stream for launch in session.launches} == {one.handle, two.handle, context.session().device.stream}


def test_a_manual_stream_waits_for_events_only(session):
    count = kernel("count")
    a, b = sg.ndarray(sg.i32, shape=1), sg.ndarray(sg.i32, shape=1)
    sg.sync()
    one, free, event = sg.create_stream(), sg.create_stream(manual=True), sg.create_event()
    before = session.calls("stream_wait")
    event.wait(free)
    with one:
        count(a, 1)
    with free:
        count(a, 2)
    waits = session.calls("stream_wait") - before
    with free:
        count(b, 2)
    assert waits == 1 and session.calls("stream_wait") - before == 1  # of `one`, for the memory that the own stream made
    event.record(one)
    event.wait(free)
    assert session.calls("stream_wait") - before == 2
    assert a.to_numpy().tolist() == [3] and b.to_numpy().tolist() == [2]  # reads come after all streams


def test_compiled_launches_come_back(session):
    """Once the own stream is the only one at work, launches need no order, and compiled code does them again."""
    count = kernel("count")
    a, one = sg.ndarray(sg.i32, shape=1), sg.create_stream()
    with one:
        count(a, 1)
    assert stream_order.active is not None
    one.synchronize()
    for _ in range(100):
        count(a, 1)
    assert stream_order.active is None and a.to_numpy().tolist() == [101]
    one.destroy()
    again = sg.create_stream()
    assert again.handle == one.handle
