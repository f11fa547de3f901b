"""Launches that compiled code does on CUDA and HIP, on stand-ins for their drivers: the driver gets what it gets from Python."""

import itertools
import linecache
import threading

import numpy as np
import pytest

import spirograd as sg
from spirograd.base import validity
from spirograd.base.artifact import PRINT_CURSOR, PRINT_DATA
from spirograd.derivatives.plan import DerivativePlan
from spirograd.lang import context
from spirograd.lang.frontend import kernel as kernels
from spirograd.lang.frontend import native_calls
from spirograd.runtime import faults_and_prints

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
    """NumPy arrays, which are copied; kernels that return values; what a graph records."""
    host, a = np.ones(30, np.float32), sg.ndarray(sg.f32, 30)

    @sg.kernel
    def scale(a: A1, s: sg.f32):
        for i in a:
            a[i] *= s

    @sg.kernel
    def first(a: A1) -> sg.f32:
        return a[0]

    for _ in range(4):
        scale(host, 2.0)
        first(a)
    assert in_python == ["scale", "first"] * 4
    in_python.clear()
    for _ in range(3):
        scale(a, 2.0)
    with sg.Graph() as graph:
        scale(a, 3.0)
    assert in_python == ["scale"] * 2
    assert len(told(session, graph.launch)) == 1
    scale(a, 4.0)
    sg.sync()


def make_reporting():
    """Two kernels that print."""

    @sg.kernel
    def tell(a: A1):
        for i in a:
            print("told", a[i])

    @sg.kernel
    def other(a: A1):
        for i in a:
            print("other", i)

    return tell, other


def write_record(ring, at, number, value):
    """What a kernel with one print leaves in the ring, as its record ``at``."""
    words = np.array([0, number, value, 0], np.uint32)
    ring.write(4 * (PRINT_DATA + 4 * at), memoryview(words.view(np.uint8)))
    ring.write(4 * PRINT_CURSOR, memoryview(np.array([4 * (at + 1)], np.uint32).view(np.uint8)))


def test_prints(session, in_python, capsys):
    """The launch that printed something is known by its number, as of launches by Python."""
    tell, other = make_reporting()
    a = sg.ndarray(sg.f32, 30)
    for kernel in (tell, other) * 2:
        kernel(a)
    assert in_python == ["tell", "other"]
    sg.sync()
    launcher = context.session().launcher
    number = launcher.next_number()
    for kernel in (tell, tell, other, tell):
        kernel(a)
    ring = launcher.diagnostics.buffers[-1]
    bits = int(np.float32(0.5).view(np.uint32))
    for at, (after, value) in enumerate([(4, bits), (3, 17), (1, bits)]):
        write_record(ring, at, number + after, value)
    sg.sync()
    assert capsys.readouterr().out == "told 0.5\nother 17\ntold 0.5\n"
    assert in_python == ["tell", "other"]
    alike = [told(session, lambda: tell(a)), told(session, lambda: tell._call((a,), {}))]
    assert [launch[:3] for launch in alike[0]] == [launch[:3] for launch in alike[1]] and len(alike[0]) == 1
    sg.sync()


def test_prints_of_too_many_kernels(session, in_python, monkeypatch):
    """When no more runs of launches can be remembered, Python waits and reads what there is."""
    monkeypatch.setattr(faults_and_prints, "_MAX_RUNS", 4)
    tell, other = make_reporting()
    a = sg.ndarray(sg.f32, 30)
    for kernel in (tell, other) * 2:
        kernel(a)
    sg.sync()
    in_python.clear()
    for kernel in (tell, other) * 4:
        kernel(a)
    assert in_python == ["tell"] and len(context.session().launcher.diagnostics._numbers) == 4


@pytest.mark.parametrize("bound", [0, 5, 200])
def test_gradients_with_tapes(session, monkeypatch, bound):
    """Where the host knows the sizes of tapes, from arguments; other sizes go to Python."""
    monkeypatch.setattr(native_calls, "_PATIENCE", 1)
    monkeypatch.setattr(native_calls, "_MOST_PATIENCE", 1)
    x, y = (sg.field(sg.f32, 300, needs_grad=True) for _ in range(2))

    @sg.kernel
    def chain(n: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = sg.sin(v) * v
            y[i] = v

    by_python = []
    launch = DerivativePlan.launch
    monkeypatch.setattr(DerivativePlan, "launch", lambda plan, *args, **named: by_python.append(1) or launch(plan, *args, **named))
    chain.grad(bound)
    expected = told(session, lambda: chain.grad(bound))
    launches = len(by_python)
    assert context.session().launcher.adstacks.nbytes
    for _ in range(3):
        assert told(session, lambda: chain.grad(bound)) == expected
    assert len(by_python) == launches
    assert told(session, lambda: chain.grad(bound + 1)) != expected and len(by_python) == launches + 1
    sg.sync()


def _by_python(launch):
    """Launch with all records suspended."""
    validity.suspend()
    try:
        launch()
    finally:
        validity.resume()


def test_gradients_whose_tapes_the_device_places(session, monkeypatch):
    """Bounds lie in a field. Compiled code launches while nothing that they depend on was written, and tapes lie where they did."""
    monkeypatch.setattr(native_calls, "_PATIENCE", 1)
    monkeypatch.setattr(native_calls, "_MOST_PATIENCE", 1)
    x, y = (sg.field(sg.f32, 300, needs_grad=True) for _ in range(2))
    bound = sg.field(sg.i32, ())

    @sg.kernel
    def chain(limit: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(bound[None] + limit):
                v = sg.sin(v) * v
            y[i] = v

    by_python = []
    launch = DerivativePlan.launch
    monkeypatch.setattr(DerivativePlan, "launch", lambda plan, *args, **named: by_python.append(1) or launch(plan, *args, **named))

    def settled(limit):
        """What launches with this argument are, once what the device counted has arrived."""
        for _ in range(4):
            chain.grad(limit)
            sg.sync()
        before = len(by_python)
        found = told(session, lambda: chain.grad(limit))
        assert len(by_python) == before, "compiled code launches"
        expected = told(session, lambda: _by_python(lambda: chain.grad(limit)))
        assert [launch[:3] for launch in expected] == [launch[:3] for launch in found] and len(found) == 1
        return found[0][:3]

    five = settled(5)
    bound[None] = 2
    counting = told(session, lambda: chain.grad(5))
    assert len(counting) > 1, "the device counts, and places the tapes"
    assert settled(5) == five
    before = len(by_python)
    told(session, lambda: chain.grad(7))
    again = told(session, lambda: chain.grad(5))
    assert len(by_python) == before + 2 and len(again) > 1, "the sizes on the device are those of 7"
    settled(5)
    with sg.Graph() as graph:
        chain.grad(7)
    before = len(by_python)
    graph.launch()
    assert len(told(session, lambda: chain.grad(5))) > 1 and len(by_python) == before + 1
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
        for k in range(200):
            several(*args[:3], float(k), True)  # Equal launches would become a graph.

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


@pytest.mark.parametrize("count", [6, 34])
def test_arrays_of_a_task_that_reads_after_it_has_written(session, in_python, count):
    """Compiled code compares few arrays in each launch. A record of more is for these arrays, whose launch was compared."""
    names = [f"a{k}" for k in range(count)]
    lines = [f"            {name}[i] += {other}[j]" for name, other in itertools.pairwise(names)]
    source = f"def chain({', '.join(f'{name}: A1' for name in names)}):\n    for i in a0:\n        for j in range(2):\n" + "\n".join(lines)
    scope = {"A1": A1}
    linecache.cache["chain.py"] = (len(source), None, source.splitlines(True), "chain.py")
    exec(compile(source, "chain.py", "exec"), scope)
    chain = sg.kernel(scope["chain"])
    arrays = [sg.ndarray(sg.f32, 4) for _ in names]
    others = [sg.ndarray(sg.f32, 4) for _ in names]
    for _ in range(2):
        chain(*arrays)
    expected = told(session, lambda: chain._call((*arrays,), {}))
    calls = len(in_python)
    assert told(session, lambda: chain(*arrays)) == expected and len(in_python) == calls
    blocks = {block for _, _, _, block, _ in told(session, lambda: chain(*others))}
    assert blocks.isdisjoint(block for _, _, _, block, _ in expected)
    twice, compiled = (arrays[1], *arrays[1:]), context.session().compiled
    for _ in range(3):
        assert told(session, lambda: chain(*twice)) == told(session, lambda: chain._call(twice, {}))
    assert context.session().compiled == compiled + 1, "once, for arrays that overlap"
    assert told(session, lambda: chain(*arrays)) == expected
