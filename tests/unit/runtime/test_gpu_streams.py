"""`sg.Stream`: work of a session on a stream of another library. On stand-ins for the drivers of CUDA and HIP."""

import contextlib
import importlib
import struct

import numpy as np
import pytest
from unit.runtime import gpu_modules

import spirograd as sg
from spirograd.base.arguments import Arguments
from spirograd.base.errors import SpirogradError, SpirogradRuntimeError
from spirograd.lang import context
from spirograd.runtime.launcher import Launcher

ONE, TWO = 7, 9  # streams of other libraries
DEFAULT = 0  # that of the driver


@pytest.fixture
def count(session):
    """Adds a number to the first word of an array, by a hand-written kernel that the stand-in runs."""
    device = context.session().device
    plan = Launcher(device, context.session().memory).prepare(gpu_modules.compiled(device, "count"))
    return lambda array, by: plan.launch(Arguments.of([None, 1, by], [None] * 3, {0: array.allocation}))


def poke():
    """Let the device work on: each query of it does a piece."""
    device = context.session().device
    for _ in range(50):
        device._stream.done(device._between)


def test_launches_go_to_the_stream(session, count):
    a = sg.ndarray(sg.i32, shape=1)
    own = context.session().device.stream
    with sg.Stream(ONE) as stream:
        count(a, 1)
        with sg.Stream(TWO):
            count(a, 10)
        count(a, 100)
        assert context.session().device.stream == ONE and repr(stream) == "Stream(0x7)"
    count(a, 1000)
    assert [launch.stream for launch in session.launches] == [ONE, TWO, ONE, own]
    assert a.to_numpy().tolist() == [1111]


@pytest.mark.parametrize("held", ["own", ONE, TWO])
def test_the_order_of_streams(session, count, held):
    """Whichever stream is kept back, all that comes later waits for it."""
    a = sg.ndarray(sg.i32, shape=1)
    own = context.session().device.stream
    order = [own, ONE, TWO, ONE, own]
    sg.sync()
    session.hold(stream=own if held == "own" else held)
    a.fill(5)
    with sg.Stream(ONE):
        count(a, 1)
        with sg.Stream(TWO):
            a.fill(10)
        count(a, 100)
    count(a, 1000)
    readback = a.allocation.read_async(0, 4)
    first = order.index(own if held == "own" else held)
    poke()
    word = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int32 * 1).from_address(a.allocation.address - (1 << 62)))
    assert int(word[0]) == [0, 5, 6][first] and readback.take() is None
    session.hold(False, stream=own if held == "own" else held)
    assert struct.unpack("<i", readback.wait())[0] == 1110
    assert a.to_numpy().tolist() == [1110]


def test_memory_comes_and_goes_in_order(session, count):
    """Allocated on one stream, freed on another, while one is kept back."""
    total = sg.ndarray(sg.i32, shape=1)
    sg.sync()
    session.hold(stream=ONE)
    for by in range(20):
        with sg.Stream(ONE):
            scratch = sg.ndarray(sg.i32, shape=1)
            scratch.from_numpy(np.array([by], np.int32))
        count(scratch, 100)
        with sg.Stream(TWO):
            total.copy_from(scratch)
            del scratch
    session.hold(False, stream=ONE)
    assert total.to_numpy().tolist() == [119]
    live = session.live("memory")
    sg.sync()
    assert session.live("memory") <= live


def test_waits_inside(session, count):
    a = sg.ndarray(sg.i32, shape=1)
    with sg.Stream(ONE):
        count(a, 3)
        assert a.to_numpy().tolist() == [3]
        count(a, 3)
        sg.sync()
        assert session.pending == 0
    with pytest.raises(ZeroDivisionError), sg.Stream(ONE):
        count(a, 1)
        raise ZeroDivisionError
    count(a, 1)
    assert a.to_numpy().tolist() == [8]


def test_no_events_between_work_on_one_stream(session, count):
    """Arrays of a library whose current stream the session is on need no order."""
    a = sg.ndarray(sg.i32, shape=1)
    device = context.session().device
    with sg.Stream(ONE):
        before = session.calls("stream_wait")
        device.follow(ONE)
        count(a, 1)
        device.precede(ONE)
        with sg.Stream(ONE):
            count(a, 1)
        assert session.calls("stream_wait") == before


def test_what_is_a_stream(session):
    class OfTorch:
        cuda_stream, device_index = ONE, 0

    class OfCuPy:
        ptr = ONE

    class Protocol:
        def __cuda_stream__(self):
            return (0, ONE)

    for stream in (OfTorch(), OfCuPy(), Protocol(), ONE):
        assert sg.Stream(stream).handle == ONE
    for wrong in (True, -1, "7", 1.0, None, object()):
        with pytest.raises(SpirogradError, match="takes a stream of another library"):
            sg.Stream(wrong)
    stream = OfTorch()
    stream.device_index = 1
    with pytest.raises(SpirogradRuntimeError, match="one of GPU 1, and the session runs on GPU 0"), sg.Stream(stream):
        pass


def test_a_session_that_ends_inside(session):
    with sg.Stream(ONE):
        sg.ndarray(sg.i32, shape=1).fill(3)
        sg.init(arch=session.api.arch)
        assert context.session().device.stream != ONE
    sg.ndarray(sg.i32, shape=1).fill(3)
    sg.sync()


@pytest.mark.parametrize("family", ["taichi", "quadrants"])
def test_work_of_the_family_goes_to_the_default_stream(standin, family):
    """As torch's does, with which its programs share memory: it is in turn without events, from the first launch on."""
    ti = importlib.import_module(f"spirograd.compat.{family}")
    ti.init(arch=getattr(ti, standin.api.arch))
    try:
        device = context.session().device
        launch = Launcher(device, context.session().memory).prepare(gpu_modules.compiled(device, "count")).launch
        shared, lent = ti.ndarray(ti.i32, shape=4), ti.ndarray(ti.i32, shape=4)
        shared.to_dlpack()
        events = [standin.calls(name) for name in ("event_record", "stream_wait")]
        for _ in range(30):
            launch(Arguments.of([None, 1, 1], [None] * 3, {0: shared.allocation}))
        device.follow(DEFAULT)
        device.precede(DEFAULT)
        assert {launch.stream for launch in standin.launches} == {DEFAULT}
        assert [standin.calls(name) for name in ("event_record", "stream_wait")] == events
        with sg.Stream(ONE):
            lent.fill(3)
        shared.copy_from(lent)
        assert shared.to_numpy().tolist() == [3] * 4 and device.stream == DEFAULT
        del shared, lent
    finally:
        ti.reset()
    sg.init(arch=standin.api.arch)
    assert context.session().device.stream != DEFAULT
    sg.reset()


@pytest.mark.parametrize("arch", ["cpu", "interpreter"])
def test_other_back_ends(arch):
    sg.init(arch=arch)
    with pytest.raises(SpirogradRuntimeError, match=f"`sg.amdgpu`; this session runs on `{arch}`"), sg.Stream(ONE):
        pass
    sg.reset()


@pytest.mark.parametrize("seed", [*range(4), *[pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 60)]])
def test_random_work_on_random_streams(session, count, seed):
    """Launches whose bounds change, copies, uploads, readbacks, memory that comes and goes, on three streams that are kept back and let go
    at random: the results are those of the same work done at once."""
    rng = np.random.default_rng(seed)
    own = context.session().device.stream
    arrays = [sg.ndarray(sg.i32, shape=4) for _ in range(4)]
    model = [np.zeros(4, np.int32) for _ in arrays]
    awaited = []

    def work():
        what, k, j, number = rng.integers(7), rng.integers(4), rng.integers(4), int(rng.integers(1, 1000))
        if what == 0:
            arrays[k].fill(number)
            model[k][:] = number
        elif what == 1 and k != j:
            arrays[k].copy_from(arrays[j])
            model[k][:] = model[j]
        elif what == 2:
            data = rng.integers(0, 1000, 4, dtype=np.int32)
            arrays[k].from_numpy(data)
            model[k][:] = data
        elif what == 3:
            awaited.append((arrays[k].allocation.read_async(0, 16), model[k].tobytes()))
        elif what == 4:
            arrays[k] = sg.ndarray(sg.i32, shape=4)
            model[k] = np.zeros(4, np.int32)
        else:
            count(arrays[k], number)
            model[k][0] += number

    for _ in range(60):
        session.hold(bool(rng.integers(2)), stream=int(rng.choice([own, ONE, TWO])))
        with contextlib.ExitStack() as streams:
            for stream in rng.choice([ONE, TWO], rng.integers(3)):
                streams.enter_context(sg.Stream(int(stream)))
            for _ in range(rng.integers(6)):
                work()
    for stream in (own, ONE, TWO):
        session.hold(False, stream=stream)
    assert all(readback.wait() == expected for readback, expected in awaited)
    for array, expected in zip(arrays, model):
        np.testing.assert_array_equal(array.to_numpy(), expected)
