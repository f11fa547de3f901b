"""What several threads may do at once: the list in docs/runtime.md, with threads that Python switches as often as it can."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

import spirograd as sg
from spirograd.base import once
from spirograd.lang import context
from spirograd.runtime.devices import cpu_pool

pytestmark = pytest.mark.usefixtures("session")
THREADS = 6
N = 40


@pytest.fixture(autouse=True)
def _switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run(work: Callable[[int, threading.Barrier], None], count: int = THREADS) -> None:
    """Run ``work(number, barrier)`` in several threads; raise what the first of them raises."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def target(number: int) -> None:
        try:
            work(number, barrier)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=target, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error


@sg.kernel
def _add(x: sg.template(), amount: sg.i32):
    for i in x:
        x[i] += amount


@pytest.mark.parametrize("place", ["shape", "root", "builder", "dense", "pointer", "vector", "struct"])
def test_fields_of_each_thread(place):
    def work(number, barrier):
        if place == "vector":
            x = sg.Vector.field(2, sg.f32, N)
        elif place == "struct":
            x = sg.Struct.field({"a": sg.f32, "b": sg.i32}, shape=N).a
        else:
            x = sg.field(sg.f32, shape=N) if place == "shape" else sg.field(sg.f32)
            if place == "root":
                sg.root.dense(sg.i, N).place(x)
            elif place == "dense":
                sg.root.dense(sg.i, 4).dense(sg.i, N // 4).place(x)
            elif place == "pointer":
                sg.root.pointer(sg.i, 4).dense(sg.i, N // 4).place(x)
            elif place == "builder":
                builder = sg.FieldsBuilder()
                builder.dense(sg.i, N).place(x)
                builder.finalize()

        @sg.kernel
        def step():
            for i in range(N):
                x[i] += 1.0

        barrier.wait()
        step()
        step()
        assert (x.to_numpy() == 2).all()

    run(work)


def test_a_field_of_all_threads_is_used_for_the_first_time():
    x = sg.field(sg.i32, shape=N)

    def work(number, barrier):
        barrier.wait()
        for _ in range(5):
            _add(x, 1)

    run(work)
    assert (x.to_numpy() == 5 * THREADS).all()


def test_fields_are_declared_while_others_are_used():
    """The tree that one thread builds is closed by another one."""
    fields = [sg.field(sg.i32, shape=N) for _ in range(8)]

    def work(number, barrier):
        barrier.wait()
        for k in range(8):
            if number == 0:
                node = sg.root.dense(sg.i, 4)
                y = sg.field(sg.i32)
                node.dense(sg.i, 3).place(y)
                y[11] = k
                assert y[11] == k
            else:
                _add(fields[k], 1)
                z = sg.field(sg.i32, shape=3)
                z[2] = k
                assert z[2] == k

    run(work)
    assert all((x.to_numpy() == THREADS - 1).all() for x in fields)


def test_nodes_of_one_thread_while_another_uses_the_tree():
    x, y = sg.field(sg.i32, shape=N), sg.field(sg.i32)
    node = sg.root.dense(sg.i, 5)
    run(lambda number, barrier: x.fill(3), 1)
    node.place(y)
    y.fill(4)
    assert (x.to_numpy() == 3).all() and (y.to_numpy() == 4).all()


def test_first_calls_of_one_kernel():
    """With one signature and with several."""

    @sg.kernel
    def double(a: sg.types.ndarray()):
        for i in a:
            a[i] += a[i]

    @sg.kernel
    def total(x: sg.template()) -> sg.i32:
        s = 0
        for i in x:
            s += x[i]
        return s

    x = sg.field(sg.i32, shape=N)
    x.fill(2)
    types = [sg.f32, sg.i32, sg.f32]

    def work(number, barrier):
        a = sg.ndarray(types[number % 3], N)
        a.fill(1)
        barrier.wait()
        for _ in range(12):  # also by compiled code
            double(a)
        assert (a.to_numpy() == 2**12).all()
        assert total(x) == 2 * N

    run(work)


def test_elements_copies_and_arrays():
    x = sg.field(sg.f32, shape=(THREADS, N))
    matrix = sg.Matrix.field(2, 2, sg.f32, shape=THREADS)

    def work(number, barrier):
        barrier.wait()
        for k in range(5):
            x[number, k] = k + 0.5
            assert x[number, k] == k + 0.5
            matrix[number][1, 0] = k
            assert matrix[number][1, 0] == k
            a, b = sg.ndarray(sg.i32, N), sg.ndarray(sg.i32, N)
            a.from_numpy(np.arange(N, dtype=np.int32) * number)
            b.copy_from(a)
            assert (b.to_numpy() == np.arange(N) * number).all()
            host = np.zeros(N, np.float32)

            @sg.kernel
            def fill(h: sg.types.ndarray()):
                for i in range(N):
                    h[i] = number

            fill(host)
            assert (host == number).all()
            sg.sync()

    run(work)


def test_graphs():
    def work(number, barrier):
        x = sg.field(sg.i32, shape=N)
        barrier.wait()
        graph = sg.Graph()
        _add(x, 1)
        with graph:
            _add(x, 1)
            _add(x, 2)
        graph.launch()
        assert (x.to_numpy() == 7).all()

    run(work, 4)


def test_gradients_of_one_kernel():
    @sg.kernel
    def square(a: sg.types.ndarray(needs_grad=True), b: sg.types.ndarray(needs_grad=True)):
        for i in a:
            v = a[i]
            for _ in range(3):
                v = v * a[i]
            b[i] += v

    def work(number, barrier):
        a, b = (sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(2))
        a.fill(number + 1.0)
        b.grad.fill(1.0)
        barrier.wait()
        square(a, b)
        square.grad(a, b)
        np.testing.assert_allclose(a.grad.to_numpy(), 4.0 * (number + 1) ** 3, rtol=1e-5)

    run(work)


def test_random_numbers_are_drawn_again_for_the_own_gradient():
    """Another thread launches the kernel between the launch and its gradient."""

    @sg.kernel
    def scale(a: sg.types.ndarray(needs_grad=True), b: sg.types.ndarray(needs_grad=True)):
        for i in a:
            b[i] += a[i] * sg.random()

    def work(number, barrier):
        a, b = (sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(2))
        a.fill(1.0)
        b.grad.fill(1.0)
        for _ in range(3):
            b.fill(0.0)
            a.grad.fill(0.0)
            scale(a, b)
            barrier.wait()
            scale.grad(a, b)
            b.grad.fill(1.0)
            np.testing.assert_allclose(a.grad.to_numpy(), b.to_numpy(), rtol=1e-6)
            barrier.wait()

    run(work)


def _program(number):
    x, y, loss = (sg.field(sg.f32, shape, needs_grad=True) for shape in (N, N, ()))

    @sg.kernel
    def square():
        for i in x:
            y[i] = x[i] * x[i] * (number + 1)

    @sg.kernel
    def total():
        for i in y:
            loss[None] += y[i]

    return x, loss, square, total


@pytest.mark.parametrize("clear", [True, False])
def test_tapes_of_several_threads(clear):
    def work(number, barrier):
        x, loss, square, total = _program(number)
        barrier.wait()
        for k in range(4):
            x.fill(k + 1.0)
            if not clear:
                x.grad.fill(0.0)
            with sg.ad.Tape(loss, clear_gradients=clear):
                square()
                x.fill(7.0)  # the tape saves it
                total()
            np.testing.assert_allclose(x.grad.to_numpy(), 2 * (k + 1) * (number + 1))

    run(work)


def test_a_tape_records_its_own_thread():
    x, loss, square, total = _program(0)
    other, _, other_square, _ = _program(1)
    x.fill(3.0)
    other.grad.fill(5.0)
    with sg.ad.Tape(loss):
        square()
        run(lambda number, barrier: other_square(), 1)
        total()
    assert (x.grad.to_numpy() == 6).all()
    assert (other.grad.to_numpy() == 0).all()


def test_another_thread_writes_what_a_tape_uses():
    x, loss, square, total = _program(0)

    def program(disturb):
        x.fill(3.0)
        with sg.ad.Tape(loss):
            square()
            run(lambda number, barrier: disturb(), 1)
            total()

    message = "another thread wrote to `x`, which an open tape of thread `MainThread` uses"
    for disturb in (lambda: x.fill(4.0), lambda: x.from_numpy(np.ones(N, np.float32)), lambda: x.__setitem__(0, 1.0)):
        alive = threading.Event()
        other = threading.Thread(target=alive.wait, daemon=True)  # else the program has one thread when that is looked at
        other.start()
        with pytest.raises(RuntimeError, match=message):
            program(disturb)
        alive.set()
        other.join()


def test_clearing_what_a_tape_of_another_thread_needs_is_an_error():
    x, loss, square, total = _program(0)
    x.fill(2.0)
    with sg.ad.Tape(loss):
        square()
        with pytest.raises(RuntimeError, match=r"a tape of thread `MainThread` is open, and needs `x.grad`, which this would clear"):
            run(lambda number, barrier: sg.ad.clear_all_gradients(), 1)
        total()
    assert (x.grad.to_numpy() == 4).all()
    sg.ad.clear_all_gradients()
    assert (x.grad.to_numpy() == 0).all()


def test_two_tapes_use_one_gradient():
    x, loss, square, total = _program(0)
    loss2 = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def other():
        for i in x:
            loss2[None] += 3 * x[i]

    def tape(clear):
        with sg.ad.Tape(loss2, clear_gradients=clear):
            other()

    x.fill(2.0)
    with sg.ad.Tape(loss):
        square()
        with pytest.raises(RuntimeError, match="the gradient of `x` is used by open tapes of two threads"):
            run(lambda number, barrier: tape(True), 1)
        total()
    sg.ad.clear_all_gradients()
    with sg.ad.Tape(loss, clear_gradients=False):
        square()
        run(lambda number, barrier: tape(False), 1)
        with pytest.raises(
            RuntimeError, match="this tape would clear gradients that a tape of thread `MainThread`, which is open, adds to"
        ):
            run(lambda number, barrier: tape(True), 1)
        total()
    assert (x.grad.to_numpy() == 4 + 3).all()


def test_gradients_of_one_thread_stay_when_another_opens_a_tape():
    x, loss, square, total = _program(0)
    _, loss2, square2, total2 = _program(1)
    x.fill(2.0)
    with sg.ad.Tape(loss):
        square()
        total()

    def other(number, barrier):
        with sg.ad.Tape(loss2):
            square2()
            total2()

    run(other, 1)
    assert (x.grad.to_numpy() == 4).all()


def test_tangents_are_for_one_thread_at_a_time():
    x = sg.field(sg.f32, (), needs_dual=True)
    loss = sg.field(sg.f32, (), needs_dual=True)

    def forward():
        with sg.ad.FwdMode(loss=loss, param=x):
            pass

    with (
        sg.ad.FwdMode(loss=loss, param=x),
        pytest.raises(RuntimeError, match="`FwdMode` cannot run while thread `MainThread` uses tangents"),
    ):
        run(lambda number, barrier: forward(), 1)
    run(lambda number, barrier: forward(), 1)


def test_prints_of_several_threads(capfd):
    @sg.kernel
    def tell(n: sg.i32):
        print("from", n)

    def work(number, barrier):
        barrier.wait()
        for _ in range(3):
            tell(number)

    run(work)
    sg.sync()
    lines = capfd.readouterr().out.split("\n")
    assert sorted(line for line in lines if line) == sorted(f"from {n}" for n in range(THREADS) for _ in range(3))


@pytest.mark.parametrize("seed", range(2))
def test_everything_at_once(seed):
    """Threads do all of the above in random order, on memory of their own and with kernels of all."""

    @sg.kernel
    def step(a: sg.types.ndarray(), amount: sg.i32):
        for i in a:
            a[i] += amount

    @sg.kernel
    def count(x: sg.template()) -> sg.i32:
        s = 0
        for i in x:
            s += x[i]
        return s

    def work(number, barrier):
        rng = np.random.default_rng(100 * seed + number)
        x, a = sg.field(sg.i32, shape=N), sg.ndarray(sg.i32, N)
        want_x, want_a = 0, 0
        p, loss, square, total = _program(number)
        barrier.wait()
        for _ in range(15):
            choice = rng.integers(8)
            if choice == 0:
                _add(x, 3)
                want_x += 3
            elif choice == 1:
                step(a, 2)
                want_a += 2
            elif choice == 2:
                assert count(x) == want_x * N
            elif choice == 3:
                p.fill(2.0)
                with sg.ad.Tape(loss):
                    square()
                    total()
                assert (p.grad.to_numpy() == 4 * (number + 1)).all()
            elif choice == 4:
                x.fill(want_x := int(rng.integers(9)))
            elif choice == 5:
                assert a[int(rng.integers(N))] == want_a
            elif choice == 6:
                x = sg.field(sg.i32, shape=N)
                want_x = 0
            else:
                sg.sync()
        assert (x.to_numpy() == want_x).all() and (a.to_numpy() == want_a).all()

    run(work)


_FRESH = """
import os, sys, threading
import spirograd as sg
sys.setswitchinterval(1e-6)
sg.init(arch=sys.argv[1])
wrong = []

def work(number):
    x = sg.field(sg.i32, shape=9)

    @sg.kernel
    def step():
        for i in x:
            x[i] += number

    step()
    step()
    if x[3] != 2 * number:
        wrong.append(x[3])

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
work(7)
for thread in threads:
    thread.join()
if sys.argv[1] == "cpu" and hasattr(os, "fork"):
    child = os.fork()
    if child == 0:
        work(5)
        os._exit(len(wrong))
    assert os.waitpid(child, 0)[1] == 0
assert not wrong, wrong
"""


@pytest.mark.parametrize("cold", [True, False])
def test_a_process_begins_with_several_threads(arch, cold, tmp_path):
    """Nothing is made yet: neither code of the runtime nor the offline cache. Another thread prepares the code from `init` on."""
    program = tmp_path / "program.py"
    program.write_text(_FRESH)
    environment = dict(os.environ, SG_OFFLINE_CACHE_FILE_PATH=str(tmp_path)) if cold else dict(os.environ)
    done = subprocess.run([sys.executable, program, arch], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


class _Ordered:
    """The lock of first uses; taking it with a lock held that comes after it is an error."""

    def __init__(self, inner, later):
        self.inner, self.later = inner, later

    def __enter__(self):
        held = [name for name, lock in self.later.items() if lock._is_owned()]
        if not self.inner._is_owned():
            assert not held, f"the lock of first uses is taken after that of {held}"
        self.inner.acquire()

    def __exit__(self, *error):
        self.inner.release()


def test_locks_are_taken_in_one_order(session, monkeypatch):
    running = context.session()
    later = {"the launcher": running.launcher.lock}
    turn = getattr(running.device, "_turn", None)
    if turn is not None:
        later["the device"] = turn.lock
    monkeypatch.setattr(once, "lock", _Ordered(once.lock, later))

    @sg.kernel
    def draw(a: sg.types.ndarray(needs_grad=True), b: sg.types.ndarray(needs_grad=True), n: sg.i32) -> sg.f32:
        for i in a:
            v = a[i]
            for _ in range(n + i % 3):
                v *= sg.random()
            b[i] += v
            assert v < 100.0
        return 1.0

    a, b = (sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(2))
    a.fill(1.0)
    for n in (1, 3):
        assert draw(a, b, n) == 1.0
        draw.grad(a, b, n)
    x, loss, square, total = _program(1)
    with sg.ad.Tape(loss):
        square()
        x.fill(3.0)
        total()
    cells = sg.field(sg.i32)
    sg.root.pointer(sg.i, 4).dense(sg.i, 8).place(cells)
    cells[3] = 1
    sg.deactivate_all_snodes()
    graph = sg.Graph()
    with graph:
        square()
    graph.launch()
    sg.sync()


def test_the_thread_that_prepares_code_waits_for_no_first_use(monkeypatch):
    """The owner of that lock waits for the code."""
    monkeypatch.setattr(cpu_pool, "_code", [])
    monkeypatch.setattr(cpu_pool, "build", lambda *_: object())
    with once.lock:
        thread = threading.Thread(target=cpu_pool.code, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
