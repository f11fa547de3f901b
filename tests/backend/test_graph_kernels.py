"""Kernels with the structure of a graph: loops whose condition lies on the device, sections, checkpoints. Against Python."""

from ctypes import c_int32
from enum import IntEnum

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.device import Loop, Sections
from spirograd.lang import context
from spirograd.runtime.device_loops import DeviceLoops

FLAG = sg.types.ndarray(sg.i32, ndim=0)
LINE = sg.types.ndarray(sg.i32, ndim=1)


@pytest.fixture(params=["as the back end does it", "by a device"])
def decided(request, session, monkeypatch):
    """Who reads the conditions of loops: once as it is, and on the CPU, whose memory a test can read, once by a stand-in for a device that
    is given whole loops. How many it was given."""
    running = context.session()
    if request.param == "as the back end does it":
        return None
    if running.arch != "cpu":
        pytest.skip("for the CPU")
    device = running.device

    def do(node):
        if isinstance(node, Loop):
            goes_on = True
            while goes_on:
                for inner in node.body:
                    do(inner)
                goes_on = c_int32.from_address(node.flag).value != 0
        elif isinstance(node, Sections):
            for step in [step for steps in node.sections for step in steps]:
                step.work(device)
        else:
            node.work(device)

    monkeypatch.setattr(device, "record_loop", lambda loop: loop, raising=False)
    monkeypatch.setattr(device, "repeat", do, raising=False)
    loops = DeviceLoops(running.launcher, device)
    monkeypatch.setattr(running, "device_loops", loops)
    return loops


def flag(value=0):
    made = sg.ndarray(sg.i32, ())
    made.fill(value)
    return made


@sg.kernel(graph=True)
def nested(a: LINE, outer: FLAG, inner: FLAG, by: sg.i32):
    n = a.shape[0]
    step = n * 0 + by
    a[0] += 100
    while sg.graph.do_while(outer):
        inner[None] = 2
        while sg.graph_do_while(inner):
            for i in range(n):
                a[i] += step + i
            inner[None] -= 1
        outer[None] -= 1
    for i in a:
        a[i] *= 2


@pytest.mark.parametrize("trips", [1, 4])
def test_nested_loops(decided, trips):
    """The body runs at least once; arguments and contents differ from call to call."""
    for n, by in ((1, 3), (70, -5), (70, 7)):
        a, outer, inner = sg.ndarray(sg.i32, n), flag(trips), flag(9)
        nested(a, outer, inner, by=by)
        expected = trips * 2 * (by + np.arange(n))
        expected[0] += 100
        assert (a.to_numpy() == 2 * expected).all() and (outer[None], inner[None]) == (0, 0)
    assert decided is None or decided.launches == 3


def test_sections_in_loops(decided):
    left = sg.field(sg.i32, ())
    x, y, z = (sg.field(sg.i32, 9) for _ in range(3))

    @sg.kernel(graph=True)
    def work(by: sg.i32):
        while sg.graph.do_while(left):
            with sg.graph.parallel_context():
                with sg.graph.parallel():
                    for i in x:
                        x[i] += by
                    for i in x:
                        x[i] *= 2
                with sg.graph.parallel():
                    for i in y:
                        y[i] += 1
                with sg.graph.parallel():
                    for i in z:
                        z[i] += x[i]  # after the first one
            left[None] -= 1

    a, b, c = (np.zeros(9, np.int32) for _ in range(3))
    for trips, by in ((2, 1), (3, 1), (1, 5)):
        left[None] = trips
        work(by)
        for _ in range(trips):
            a, b = 2 * (a + by), b + 1
            c = c + a
        assert (x.to_numpy() == a).all() and (y.to_numpy() == b).all() and (z.to_numpy() == c).all()
    assert decided is None or decided.launches == 3


def test_the_condition_is_read_after_the_body(decided):
    a, c = sg.ndarray(sg.i32, 3), sg.field(sg.i32, ())

    @sg.kernel(graph=True)
    def once(a: LINE):
        while sg.graph.do_while(c):
            for i in a:
                a[i] += 1

    once(a)
    assert a.to_numpy().tolist() == [1, 1, 1]


def test_members_and_convergence(decided):
    @sg.data_oriented
    class Solver:
        def __init__(self):
            self.x = sg.field(sg.f32, 5)
            self.go = sg.field(sg.i32, ())
            self.error = sg.field(sg.f32, ())

        @sg.kernel(graph=True)
        def solve(self, target: sg.f32):
            while sg.graph.do_while(self.go):
                self.error[None] = 0.0
                for i in self.x:
                    change = 0.5 * (target - self.x[i])
                    self.x[i] += change
                    sg.atomic_max(self.error[None], abs(change))
                self.go[None] = self.error[None] > 0.01

    solver = Solver()
    solver.solve(8.0)
    x, trips = 0.0, 0
    while True:
        x, trips = x + 0.5 * (8.0 - x), trips + 1
        if not 0.5 * (8.0 - x) > 0.005:
            break
    assert solver.x.to_numpy().tolist() == [x] * 5 and solver.go[None] == 0 and trips == 10


def test_sections(session):
    @sg.kernel(graph=True)
    def both(a: LINE, b: LINE):
        with sg.graph.parallel_context():
            with sg.graph.parallel():
                for i in a:
                    a[i] += 1
                for i in a:
                    a[i] *= 2
            with sg.graph_parallel():
                for i in b:
                    b[i] += 3
        for i in a:
            a[i] += b[i]

    @sg.kernel
    def streams(a: LINE, b: LINE):
        with sg.stream_parallel():
            for i in a:
                a[i] += 1
        with sg.stream_parallel():
            for i in b:
                b[i] += a[i]  # changes nothing of the order: it comes after what it reads
        b[0] = -b[0]

    a, b = sg.ndarray(sg.i32, 100), sg.ndarray(sg.i32, 100)
    for k in range(1, 4):
        before = a.to_numpy(), b.to_numpy()
        both(a, b)
        assert (b.to_numpy() == before[1] + 3).all() and (a.to_numpy() == 2 * (before[0] + 1) + b.to_numpy()).all()
        expected = b.to_numpy() + a.to_numpy() + 1
        expected[0] *= -1
        streams(a, b)
        assert (b.to_numpy() == expected).all(), k
    start = a.to_numpy(), b.to_numpy()
    with sg.Graph() as graph:
        both(a, b)
        streams(a, b)
    for k in range(3):
        if k:
            a.from_numpy(start[0])
            b.from_numpy(start[1])
            graph.launch()
        once = 2 * (start[0] + 1) + start[1] + 3
        expected = start[1] + 3 + once + 1
        expected[0] *= -1
        assert (a.to_numpy() == once + 1).all() and (b.to_numpy() == expected).all(), k


def test_sections_that_print_in_a_graph(session, capfd):
    """Launches that differ each time stay as they are."""
    a, b = sg.ndarray(sg.i32, 3), sg.ndarray(sg.i32, 3)

    @sg.kernel
    def streams():
        with sg.stream_parallel():
            for i in a:
                a[i] += 1
        with sg.stream_parallel():
            b[0] += 2
            print("b", b[0])

    with sg.Graph() as graph:
        streams()
    graph.launch()
    sg.sync()
    assert (a.to_numpy() == 2).all() and b[0] == 4
    assert capfd.readouterr().out == "b 2\nb 4\n"


class Stage(IntEnum):
    GROW, SUM = 3, 7


@sg.kernel(graph=True, checkpoints=True)
def staged(a: LINE, go: FLAG, full: FLAG):
    a[0] += 1
    while sg.graph.do_while(go):
        a[1] += 1
        with sg.checkpoint(Stage.GROW, yield_on=full):
            for _ in range(1):
                a[2] += 1
                if a[2] == a[5]:
                    full[None] = 1
        a[3] += 1
        go[None] -= 1
    with sg.checkpoint(Stage.SUM, full):
        a[4] += 1


def test_checkpoints(session):
    a, go, full = sg.ndarray(sg.i32, 6), flag(4), flag()
    assert staged(a, go, full) == sg.GraphStatus(False) and a.to_numpy().tolist() == [1, 4, 4, 4, 1, 0]
    a.fill(0)
    a[5] = 2
    go.fill(4)
    status = staged(a, go, full)
    assert status.yielded and status.checkpoint is Stage.GROW and a.to_numpy().tolist() == [1, 2, 2, 1, 0, 2] and go[None] == 3
    status = staged.resume(a, go, full, from_checkpoint=status.checkpoint)  # the flag is as it was: the same again
    assert status.yielded and a.to_numpy().tolist() == [1, 2, 3, 1, 0, 2]
    full.fill(0)
    assert not staged.resume(a, go, full, from_checkpoint=3).yielded
    assert a.to_numpy().tolist() == [1, 4, 6, 4, 1, 2]
    assert not staged.resume(a, go, full, from_checkpoint=Stage.SUM).yielded and a.to_numpy().tolist() == [1, 4, 6, 4, 2, 2]
    with pytest.raises(sg.SpirogradRuntimeError, match=r"has no checkpoint 9; its checkpoints are <Stage\.GROW: 3>, <Stage\.SUM: 7>"):
        staged.resume(a, go, full, from_checkpoint=9)


def test_gradients_by_a_tape(decided):
    """A tape records each launch: as often as the loop ran."""
    x, loss = sg.field(sg.f32, 4, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    go = sg.field(sg.i32, ())

    @sg.kernel(graph=True)
    def grow():
        while sg.graph.do_while(go):
            for i in x:
                x[i] = x[i] * x[i]
            go[None] -= 1
        for i in x:
            loss[None] += x[i]

    start = np.array([0.5, 0.9, 1.0, 1.1], np.float32)
    for trips in (1, 3):
        x.from_numpy(start)
        go[None], loss[None] = trips, 0.0
        with sg.ad.Tape(loss):
            grow()
        power = 2**trips
        np.testing.assert_allclose(x.grad.to_numpy(), power * start ** (power - 1), rtol=1e-5)
    with pytest.raises(sg.SpirogradUnsupportedError, match="`grow` is a graph of several launches"):
        grow.grad()


@pytest.mark.archs("cpu")  # the front end decides
def test_what_is_refused(session):
    a, c = sg.ndarray(sg.i32, 3), flag(1)
    f = sg.ndarray(sg.f32, ())

    @sg.kernel(graph=True)
    def carried(a: LINE, c: FLAG):
        s = 0
        while sg.graph.do_while(c):
            s += 1
            c[None] -= 1
        a[0] = s

    @sg.kernel(graph=True)
    def from_memory(a: LINE, c: FLAG):
        n = a[0]
        while sg.graph.do_while(c):
            a[1] += n
            c[None] -= 1

    @sg.kernel
    def no_graph(c: FLAG):
        while sg.graph.do_while(c):
            c[None] -= 1

    @sg.kernel(graph=True)
    def returns(a: LINE, c: FLAG) -> sg.i32:
        while sg.graph.do_while(c):
            c[None] -= 1
        return a[0]

    @sg.kernel(graph=True)
    def leaves(a: LINE, c: FLAG):
        while sg.graph.do_while(c):
            c[None] -= 1
            if a[0] > 0:
                break

    @sg.kernel(graph=True)
    def inside(a: LINE, c: FLAG):
        for i in range(3):
            while sg.graph.do_while(c):
                c[None] -= 1

    @sg.kernel(graph=True)
    def expression(a: LINE, c: FLAG):
        while sg.graph.do_while(c[None]):
            c[None] -= 1

    @sg.kernel(graph=True)
    def floats(c: sg.types.ndarray(sg.f32, 0)):
        while sg.graph.do_while(c):
            c[None] -= 1

    @sg.kernel(graph=True)
    def not_a_section(a: LINE):
        with sg.graph.parallel_context():
            a[0] = 1

    @sg.kernel(graph=True)
    def not_declared(a: LINE, c: FLAG):
        with sg.checkpoint(1, yield_on=c):
            a[0] = 1

    @sg.kernel(graph=True, checkpoints=True)
    def twice(a: LINE, c: FLAG):
        with sg.checkpoint(1, yield_on=c):
            a[0] = 1
        with sg.checkpoint(1, yield_on=c):
            a[0] = 1

    cases = [
        (lambda: carried(a, c), "`s` is assigned in several parts of the graph"),
        (lambda: from_memory(a, c), "`n` is computed in another part of the graph, and not from constants and arguments alone"),
        (lambda: no_graph(c), r"`graph.do_while` cannot stand here[\s\S]*decorate the kernel with `@sg.kernel\(graph=True\)`"),
        (lambda: returns(a, c), "a kernel that is a graph of several launches cannot return a value"),
        (lambda: leaves(a, c), "`break` cannot leave a loop of `graph.do_while`"),
        (lambda: inside(a, c), "`graph.do_while` cannot stand here"),
        (lambda: expression(a, c), "the flag of `graph.do_while` is a field or ndarray, not an expression"),
        (lambda: floats(f), "`c` decides how the graph goes on: it must be a field or ndarray of i32 with no axes, got"),
        (lambda: not_a_section(a), "`graph.parallel_context` contains `graph.parallel` blocks only"),
        (lambda: not_declared(a, c), r"`checkpoint` needs `@sg.kernel\(graph=True, checkpoints=True\)`"),
        (lambda: twice(a, c), "two checkpoints have the number 1"),
        (lambda: sg.kernel(checkpoints=True), "the option `checkpoints` of `kernel` is for kernels that are graphs"),
    ]
    for call, match in cases:
        with pytest.raises(sg.SpirogradError, match=match):
            call()
