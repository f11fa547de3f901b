"""What launches by compiled code leave behind, against those by Python: results, reports, gradients, counts, references, locks."""

import gc
import sys
import threading

import numpy as np
import pytest

import spirograd as sg
from spirograd.base import validity
from spirograd.derivatives.plan import DerivativePlan
from spirograd.lang import context
from spirograd.lang.frontend import native_calls
from spirograd.runtime.native import launch_function

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("cpu")]
A1 = sg.types.ndarray(sg.f32, 1)


def test_results(way, in_python):
    f = sg.field(sg.f32, 5)

    @sg.kernel
    def one(k: sg.i32) -> sg.f32:
        return f[k]

    @sg.kernel
    def some(k: sg.i32) -> sg.types.vector(3, sg.i32):
        return sg.Vector([k, k + 1, sg.i32(f[k])])

    @sg.kernel
    def large(k: sg.i64) -> sg.u64:
        return sg.u64(k)

    @sg.kernel
    def positive(k: sg.i32) -> sg.u1:
        return f[k] > 2.0

    @sg.kernel
    def total() -> sg.f64:
        s = sg.f64(0.0)
        for i in f:
            s += f[i]
        return s

    f.from_numpy(np.arange(5, dtype=np.float32))
    for k in range(5):
        assert one(k) == k and type(one(k)) is type(one._call((k,), {}))
        assert list(some(k)) == [k, k + 1, k] and type(some(k)) is type(some._call((k,), {}))
        assert large(-k) == (2**64 - k) % 2**64
        assert positive(k) is (k > 2)
        assert total() == 10.0
    others = 2 * 5  # asked for above
    assert len(in_python) == others + (5 if way == "native" else 5 * 7)


def test_reports(way, capfd):
    @sg.kernel
    def check(a: A1, n: sg.i32):
        for i in a:
            assert i < n, "{} is too much for {}"
            a[i] += 1

    @sg.kernel
    def most(a: A1, n: sg.i32) -> sg.f32:
        assert n < 3
        return a[n]

    @sg.kernel
    def tell(n: sg.i32):
        print("n is", n)

    sg.init(arch=sg.cfg.arch, debug=True)
    a = sg.ndarray(sg.f32, shape=4)
    for _ in range(4):
        check(a, 4)
        tell(7)
        assert most(a, 2) == a[2]
    assert capfd.readouterr().out == "n is 7\n" * 4
    for _ in range(3):
        with pytest.raises(sg.SpirogradAssertionError, match="assert i < n"):
            check(a, 2)
        with pytest.raises(sg.SpirogradAssertionError, match="assert n < 3"):
            most(a, 3)
        tell(8)
        check(a, 4)
        assert most(a, 1) > 4
    assert capfd.readouterr().out == "n is 8\n" * 3
    with pytest.raises(sg.SpirogradRuntimeError, match=r"a\[n\]|outside|out of"):
        most(a, -5)


def test_faults_in_threads(way):
    """A fault is raised where its kernel was launched, and locks are open afterwards."""
    sg.init(arch=sg.cfg.arch, debug=True)

    @sg.kernel
    def check(n: sg.i32):
        assert n < 3

    for _ in range(3):
        check(1)
    failed = []

    def work():
        for _ in range(50):
            with pytest.raises(sg.SpirogradAssertionError):
                check(5)
            failed.append(1)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    check(1)
    assert len(failed) == 100


def test_index_spaces(way):
    """Sizes whose product is limited: the same are known to fit, others are looked at."""
    out = sg.field(sg.i32, ())

    @sg.kernel
    def count(n: sg.i32, m: sg.i32):
        for i, j in sg.ndrange(n, m):
            out[None] += 1

    @sg.kernel
    def cells(a: sg.types.ndarray(sg.f32, 2)):
        for i, j in sg.ndrange(a.shape[0], a.shape[1]):
            out[None] += 1

    expected = 0
    for n, m in ((2, 3), (2, 3), (3, 2), (0, 5), (2, 3), (-1, 4), (3, 2)):
        count(n, m)
        expected += max(n, 0) * max(m, 0)
    with pytest.raises(sg.SpirogradRuntimeError, match="index space"):
        count(2**20, 2**20)
    for shape in ((2, 2), (2, 2), (3, 1), (0, 4), (2, 2)):
        cells(sg.ndarray(sg.f32, shape))
        expected += shape[0] * shape[1]
    assert out[None] == expected


def test_gradients(way, monkeypatch):
    """Gradients that need tapes: their sizes are used again as long as nothing that they depend on has changed."""
    in_python = []
    launch = DerivativePlan.launch
    monkeypatch.setattr(DerivativePlan, "launch", lambda *args: in_python.append(1) or launch(*args))
    x, y = sg.field(sg.f32, 4, needs_grad=True), sg.field(sg.f32, 4, needs_grad=True)
    trips = sg.field(sg.i32, ())

    @sg.kernel
    def chain(k: sg.i32, s: sg.f32):
        for i in x:
            v = x[i]
            for _ in range(trips[None] + k):
                v = v * v * s
            y[i] = v

    x.fill(1.1)
    counts = sg.ad.sizings(reset=True)
    for n, k, s in ((1, 0, 1.0), (1, 0, 1.0), (1, 0, 0.5), (2, 0, 1.0), (2, 0, 1.0), (2, 1, 1.0), (2, 1, 1.0), (3, 0, 1.0), (3, 0, 1.0)):
        if trips[None] != n:
            trips[None] = n
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        chain(k, s)
        chain.grad(k, s)
        value, slope = 1.1, 1.0
        for _ in range(n + k):
            value, slope = value * value * s, slope * 2 * value * s
        assert x.grad.to_numpy() == pytest.approx([slope] * 4, rel=1e-5)
        assert chain.grad.adstack_bytes > 0
    counts = sg.ad.sizings()
    assert counts.known + counts.counted == 4 and counts.reused == 5
    assert len(in_python) < 9 if way == "native" else len(in_python) == 9


def test_gradients_of_arrays(way):
    @sg.kernel
    def chain(a: A1, out: A1, n: sg.i32):
        for i in a:
            v = a[i]
            for _ in range(n):
                v = sg.sin(v)
            out[i] = v

    arrays = [sg.ndarray(sg.f32, size, needs_grad=True) for size in (3, 3, 5, 5)]
    for n in (2, 2, 2, 3, 3):
        for a, out in (arrays[:2], arrays[:2], arrays[2:]):
            a.fill(0.5)
            a.grad.fill(0.0)
            out.grad.fill(1.0)
            chain(a, out, n)
            chain.grad(a, out, n)
            v, slope = 0.5, 1.0
            for _ in range(n):
                v, slope = np.sin(v), slope * np.cos(v)
            assert a.grad.to_numpy() == pytest.approx([slope] * a.shape[0], rel=1e-5)
        with pytest.raises(sg.SpirogradRuntimeError, match="share memory"):
            chain.grad(arrays[0], arrays[0], n)


def test_gradients_of_views(way):
    """The same views again and again, with numbers after them: a view passes numbers of its own."""

    @sg.kernel
    def scale(a: A1, out: A1, n: sg.i32, s: sg.f32):
        for i in range(n):
            out[i] = a[i] * s

    a, out = (sg.ndarray(sg.f32, 8, needs_grad=True) for _ in range(2))
    part, result = a[2:6], out[1:5]
    for n, s in ((4, 3.0), (4, 3.0), (4, 3.0), (4, 5.0), (2, 5.0), (4, 3.0)):
        a.grad.fill(0.0)
        out.grad.fill(1.0)
        scale.grad(part, result, n, s)
        assert a.grad.to_numpy().tolist() == [0.0, 0.0, *([s] * n), *([0.0] * (6 - n))]


def test_bounds_that_numpy_writes(way):
    """Memory that was handed out may change unseen: sizes are found anew."""
    x, y = sg.field(sg.f32, 2, needs_grad=True), sg.field(sg.f32, 2, needs_grad=True)
    trips = sg.ndarray(sg.i32, 1)

    @sg.kernel
    def chain(n: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            v = x[i]
            for _ in range(n[0]):
                v = v * v
            y[i] = v

    x.fill(1.1)
    trips[0] = 1
    view = None
    for n in (1, 1, 1, 1, 2, 40, 3, 3):
        if n == 2:
            view = trips.to_numpy(copy=False)
        if view is not None:
            view[0] = n
        x.fill(1.1 if n < 40 else 1.0)
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        chain.grad(trips)
        assert x.grad.to_numpy() == pytest.approx([2**n * (1.1 if n < 40 else 1.0) ** (2**n - 1)] * 2, rel=1e-4)


def test_tapes_and_generations(way):
    """Tapes see all launches, and what depends on memory hears of those that no tape sees."""
    x, y = sg.field(sg.f32, 3, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    n = sg.field(sg.i32, ())

    @sg.kernel
    def more(k: sg.i32):
        n[None] += k

    @sg.kernel
    def chain():
        for i in x:
            v = x[i]
            for _ in range(n[None]):
                v = v * v
            y[None] += v

    x.fill(1.5)
    for count in (1, 2, 3, 4):
        more(1)
        y[None] = 0.0
        for _ in range(3):
            with sg.ad.Tape(y):
                chain()
            assert x.grad.to_numpy() == pytest.approx([2**count * 1.5 ** (2**count - 1)] * 3)
            y[None] = 0.0
        for _ in range(3):
            chain()
        x.grad.fill(0.0)
        y.grad[None] = 1.0
        chain.grad()
        assert x.grad.to_numpy() == pytest.approx([2**count * 1.5 ** (2**count - 1)] * 3)


def test_references_and_memory():
    """100,000 launches leave no references, neither those that compiled code does nor those that it refuses."""
    f = sg.field(sg.f32, 4)

    @sg.kernel
    def step(a: A1, g: sg.template(), n: sg.i32, s: sg.f32):
        for i in g:
            g[i] += a[i] * n + s

    arrays = [sg.ndarray(sg.f32, 4) for _ in range(2)]
    number, factor = 12345, 1.25
    host = [np.zeros(4, np.float32) for _ in range(2)]
    watched = (*arrays, *host, f, number, factor, arrays[0]._sg_packed, arrays[0].allocation.generations, None, True, NotImplemented)

    def run(count):
        for k in range(count):
            step(arrays[k & 1], f, number, factor)
            step(host[k & 1], f, number, factor)

    def refused(count):
        for _ in range(count):
            assert step._native.launch((arrays[0], f, 2**40, factor)) is NotImplemented
            assert step._native.launch((arrays[0], f, "x", factor)) is NotImplemented
            assert step._native.launch((None, f, number, factor)) is NotImplemented
            assert step._native.launch((arrays[0], arrays[1], number, factor)) is NotImplemented
            assert step._native.launch((arrays[0],)) is NotImplemented

    run(50)
    refused(50)
    assert step._native.launch is not None
    gc.collect()
    before, blocks = [sys.getrefcount(value) for value in watched], sys.getallocatedblocks()
    run(50_000)
    refused(2_000)
    after = [sys.getrefcount(value) for value in watched]
    assert all(abs(a - b) < 20 for a, b in zip(after, before)), (before, after)
    assert sys.getallocatedblocks() - blocks < 500


def test_threads(way):
    """Launches of several threads at once, of one kernel with temporaries and one without, while others forget what is prepared."""
    n = 2000
    x, y, total = sg.field(sg.i32, 64), sg.field(sg.i32, 4), sg.field(sg.i32, 4)

    @sg.kernel
    def one(k: sg.i32):
        sg.atomic_add(y[k], 1)

    @sg.kernel
    def summed(k: sg.i32):
        s = 0
        for i in x:
            s += x[i]
        total[k] += s

    x.fill(1)
    for k in range(4):
        one(k)
        summed(k)

    def work(k):
        for _ in range(n):
            one(k)
            summed(k)

    def disturb():
        for _ in range(200):
            one._native.forget()
            sg.ndarray(sg.f32, 1, needs_grad=True).grad = None

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)] + [threading.Thread(target=disturb)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert y.to_numpy().tolist() == [n + 1] * 4
    assert total.to_numpy().tolist() == [64 * (n + 1)] * 4


def test_launch_numbers(way):
    """Launches count, whoever does them: so the random numbers of later ones are the same."""
    launcher = context.session().launcher

    @sg.kernel
    def add(a: A1, k: sg.i32):
        for i in a:
            a[i] += k

    a = sg.ndarray(sg.f32, shape=3)
    before = launcher.next_number()
    for _ in range(5):
        add(a, 1)
    assert launcher.next_number() == before + 6


class Contended:
    """A lock during whose taking something happens: as if another thread had held it."""

    def __init__(self):
        self.lock, self.happens = threading.RLock(), []

    def acquire(self):
        while self.happens:
            self.happens.pop()()
        return self.lock.acquire()

    def release(self):
        self.lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


def test_what_happens_while_a_launch_waits(in_python, monkeypatch):
    """Another thread that has the lock of tapes may move their memory, or begin a tape."""
    monkeypatch.setattr(native_calls, "_PATIENCE", 1)
    monkeypatch.setattr(native_calls, "_MOST_PATIENCE", 1)
    launcher = context.session().launcher
    launcher.lock = lock = Contended()
    f = sg.field(sg.i32, 2)

    @sg.kernel
    def check(n: sg.i32) -> sg.i32:
        f[0] += n
        return f[0]

    for k in range(3):
        assert check(1) == k + 1
    launched = len(in_python)
    for happens in (validity.renew, validity.suspend):
        lock.happens.append(happens)
        check(1)
        launched += 1
        assert len(in_python) == launched
        assert not lock.happens
    validity.resume()
    assert check(1) == 6
    assert len(in_python) == launched
    assert lock.lock.acquire(blocking=False)


@pytest.mark.parametrize("possible", [True, False])
def test_where_the_code_cannot_be_used(possible, monkeypatch, caplog, in_python):
    """Where it cannot be linked, or Python runs threads at once, launches go through Python, as before."""

    def refuse(*_):
        raise sg.SpirogradRuntimeError("no such symbol")

    monkeypatch.setattr(launch_function, "_code", [])
    monkeypatch.setattr(launch_function, "link", refuse)
    monkeypatch.setattr(launch_function, "_is_possible", lambda: possible)
    f = sg.field(sg.i32, 2)

    @sg.kernel
    def add(n: sg.i32):
        for i in f:
            f[i] += n

    with caplog.at_level("WARNING", "spirograd"):
        for _ in range(40):
            add(1)
    assert f[1] == len(in_python) == 40
    assert [record.message.count("no such symbol") for record in caplog.records] == [1] * possible
