"""Loops whose condition CUDA reads itself: what they become in its graphs. On the stand-in for its driver."""

import ctypes
import gc
import weakref

import numpy as np
import pytest
from unit.runtime import gpu_modules
from unit.runtime.standin_gpu import CUDA

import spirograd as sg
from spirograd.base.device import LaunchWork, Loop, Sections, Step
from spirograd.lang import context
from spirograd.lang.frontend import native_calls
from spirograd.runtime.devices.gpu.stream import RELAXED
from spirograd.runtime.launcher import Launcher

LINE, FLAG = sg.types.ndarray(sg.i32, ndim=1), sg.types.ndarray(sg.i32, ndim=0)
DOWN = 0xFFFFFFFF


@pytest.fixture
def cuda(session):
    if session.api is not CUDA:
        pytest.skip("HIP's graphs have no loops")
    return session


@pytest.fixture
def step(cuda):
    """A function (array, k): a step that adds k to the first word of an array, by a kernel that the stand-in runs."""
    device = context.session().device
    compiled = gpu_modules.compiled(device, "count")
    executable = device.load(compiled)

    def made(array, k):
        block = array.allocation.address.to_bytes(8, "little") + (1).to_bytes(4, "little") + (k % 2**32).to_bytes(4, "little")
        return Step(LaunchWork(executable, block, (1,)), [(array.allocation, "")], [(array.allocation, "")])

    return made


def word(value=0):
    made = sg.ndarray(sg.i32, 1)
    made.fill(value)
    return made


def run(loop):
    device = context.session().device
    recorded = device.record_loop(loop)
    device.repeat(recorded)
    return recorded


def test_the_body_runs_as_long_as_the_flag_says(cuda, step):
    x, left = word(), word(5)
    loop = Loop(left.allocation.address, [step(x, 3), step(left, DOWN)])
    recorded = run(loop)
    assert (x[0], left[0]) == (15, 0)
    left.fill(2)
    context.session().device.repeat(recorded)
    assert (x[0], left[0]) == (21, 0)
    zero = word()
    run(Loop(zero.allocation.address, [step(x, 100)]))  # once at least
    assert x[0] == 121
    assert cuda.calls("graph_make") == cuda.calls("graph_destroy") == 2 and cuda.calls("graph_launch") == 3


def test_nested_loops_begin_anew(cuda, step):
    x, outer, inner, first = word(), word(3), word(), word()
    body = [step(first, 1), step(inner, 4), Loop(inner.allocation.address, [step(x, 1), step(inner, DOWN)]), step(outer, DOWN)]
    run(Loop(outer.allocation.address, [*body, Loop(first.allocation.address, [step(x, 1000), step(first, DOWN)])]))
    assert (x[0], outer[0], inner[0], first[0]) == (3 * 4 + 3 * 1000, 0, 0, 0)


def test_sections_are_branches(cuda, step):
    x, y, left = word(), word(), word(2)
    run(Loop(left.allocation.address, [step(x, 1), Sections([[step(x, 10), step(x, 10)], [step(y, 5)], [step(x, 7)]]), step(left, DOWN)]))
    assert (x[0], y[0], left[0]) == (2 * 28, 10, 0)
    assert cuda.branches == 3


def test_what_the_driver_refuses(cuda, step):
    x, left = word(), word(1)
    loop = Loop(left.allocation.address, [Sections([[step(x, 1)]]), step(left, DOWN)])
    for call in ("graph_create", "condition_create", "graph_add", "capture_to", "capture_info", "capture_end", "graph_make"):
        cuda.fail(call, 2, 1)
        with pytest.raises(sg.OutOfDeviceMemory, match=r"a graph|a loop"):
            context.session().device.record_loop(loop)
    run(loop)
    assert x[0] == 1 and cuda.calls("graph_launch") == 1


def test_large_argument_blocks_are_left_to_the_host(cuda, step):
    x = word()
    device = context.session().device
    plan = Launcher(device, context.session().memory).prepare(gpu_modules.compiled(device, "count", by_address=True))
    large = Step(LaunchWork(plan.executable, bytes(16 + 4096), (1,)), (), ())
    assert device.record_loop(Loop(x.allocation.address, [large])) is None
    assert cuda.live("graphs") == 0


def test_graphs_of_loops_go_with_the_last_reference(cuda, step):
    left = word(1)
    recorded = run(Loop(left.allocation.address, [step(left, DOWN)]))
    assert cuda.live("graphs") == 1
    del recorded
    gc.collect()
    sg.sync()
    assert cuda.live("graphs") == 0


@sg.kernel(graph=True)
def count_down(x: LINE, left: FLAG, by: sg.i32):
    while sg.graph.do_while(left):
        for i in x:
            x[i] += by
        left[None] -= 1


def test_a_kernel_gives_its_loop_to_the_driver(cuda):
    """The stand-in does not run the kernels: the flag stays 0, so that bodies run once."""
    x, left = sg.ndarray(sg.i32, 100), sg.ndarray(sg.i32, ())
    loops = context.session().device_loops
    waits = context.session().device.waits
    generation = x.allocation.generation
    for _ in range(3):
        count_down(x, left, 4)
    assert x.allocation.generation > generation
    assert loops.launches == cuda.calls("graph_launch") == 3 and cuda.calls("graph_make") == 1
    count_down(x, left, 5)  # other arguments
    count_down(sg.ndarray(sg.i32, 100), left, 4)
    count_down(x, left, 4)
    assert cuda.calls("graph_make") == 3 and loops.launches == 6
    assert context.session().device.waits == waits
    with sg.create_stream():
        count_down(x, left, 4)
    assert loops.launches == 7
    for by in range(40):
        count_down(x, left, by)
    gc.collect()
    sg.sync()
    assert cuda.live("graphs") == 33, "32 that Python launches, and one that compiled code launches"


def test_loops_that_the_host_repeats(cuda, monkeypatch):
    x, left = sg.ndarray(sg.i32, 100), sg.ndarray(sg.i32, ())

    @sg.kernel(graph=True)
    def tells(x: LINE, left: FLAG):
        while sg.graph.do_while(left):
            print(x[0])

    loops = context.session().device_loops
    tells(x, left)
    count_down(np.zeros(3, np.int32), left, 1)
    with sg.profiler.trace("/dev/null"):
        count_down(x, left, 1)
    assert loops.launches == 0 and cuda.calls("graph_make") == 0
    with pytest.raises(sg.SpirogradRuntimeError, match="a graph is being recorded, and the host reads memory"), sg.Graph():
        count_down(x, left, 1)


def test_older_drivers(standin, monkeypatch):
    if standin.api is CUDA:
        monkeypatch.setattr("spirograd.runtime.devices.gpu.cuda._LOOPS_SINCE", 13010)
    sg.init(arch=standin.api.arch)
    assert context.session().device_loops is None
    x, left = sg.ndarray(sg.i32, 100), sg.ndarray(sg.i32, ())
    count_down(x, left, 4)
    assert standin.calls("graph_make") == 0
    sg.reset()


def countdown():
    @sg.kernel(graph=True)
    def run(x: LINE, left: FLAG, by: sg.i32):
        while sg.graph.do_while(left):
            for i in x:
                x[i] += by
            for _ in range(1):
                left[None] -= 1

    return run


def test_equal_calls_run_the_loop_without_python(cuda, monkeypatch):
    """Other arguments go through Python; each call ticks the generations of what the loop writes."""
    monkeypatch.setattr(native_calls, "_PATIENCE", 1)
    monkeypatch.setattr(native_calls, "_MOST_PATIENCE", 1)
    run, loops = countdown(), context.session().device_loops
    x, y, left = word(), word(), sg.ndarray(sg.i32, ())
    run(x, left, 1)
    assert (loops.launches, cuda.calls("graph_launch")) == (1, 1)
    before = [sum(v.allocation.generations.values()) for v in (x, left)]
    run(x, left, 1)
    run(left=left, x=x, by=1)
    assert (loops.launches, cuda.calls("graph_launch")) == (1, 3)
    after = [sum(v.allocation.generations.values()) for v in (x, left)]
    assert all(now > then for now, then in zip(after, before))
    for other in ((y, left, 1), (x, left, 2), (x, sg.ndarray(sg.i32, ()), 1)):
        launches = loops.launches
        run(*other)
        assert loops.launches == launches + 1
    launches = loops.launches
    run(x, left, 1)
    run(y, left, 1)
    assert loops.launches == launches, "records of earlier calls are kept"
    with pytest.raises(sg.SpirogradRuntimeTypeError):
        run(x, sg.ndarray(sg.f32, ()), 1)
    cuda.fail("graph_launch", 1, 1)
    with pytest.raises(sg.SpirogradRuntimeError, match="INVALID_VALUE"):
        run(x, left, 1)


def test_a_stream_that_another_library_records(cuda, monkeypatch):
    """The driver's error is raised: the loop is not left out."""
    monkeypatch.setattr(native_calls, "_PATIENCE", 1)
    run, x, left = countdown(), word(), sg.ndarray(sg.i32, ())
    device, recorded = context.session().device, ctypes.c_void_p()
    with sg.Stream(7):
        for _ in range(3):
            run(x, left, 1)
        assert context.session().device_loops.launches == 1
        with device._turn:
            device._driver.capture_begin(device.stream, RELAXED)
        with pytest.raises(sg.SpirogradRuntimeError, match="of a graph"):
            run(x, left, 1)
        with device._turn:
            device._driver.capture_end(device.stream, ctypes.byref(recorded))
            device._driver.graph_destroy(recorded)
        run(x, left, 1)


def test_memory_of_a_loop_is_not_kept(cuda, monkeypatch):
    monkeypatch.setattr(native_calls, "_PATIENCE", 1)
    run, x, left = countdown(), word(), sg.ndarray(sg.i32, ())
    for _ in range(3):
        run(x, left, 1)
    kept = weakref.ref(x)
    del x
    gc.collect()
    assert kept() is None and run._native.launch is None


def test_a_flag_of_an_object(cuda, monkeypatch):
    """Another array in its place goes through Python."""
    monkeypatch.setattr(native_calls, "_PATIENCE", 1)
    monkeypatch.setattr(native_calls, "_MOST_PATIENCE", 1)

    @sg.data_oriented
    class Counter:
        def __init__(self):
            self.x, self.left = word(), sg.ndarray(sg.i32, ())

        @sg.kernel(graph=True)
        def run(self):
            while sg.graph.do_while(self.left):
                for i in self.x:
                    self.x[i] += 1
                for _ in range(1):
                    self.left[None] -= 1

    counter, loops = Counter(), context.session().device_loops
    counter.run()
    counter.run()
    assert loops.launches == 1
    counter.left = sg.ndarray(sg.i32, ())
    counter.run()
    assert loops.launches == 2
