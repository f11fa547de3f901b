"""`@real_func`s that access fields and arrays: several tasks, gradients, checks and arguments of the kernels that call them."""

from collections.abc import Iterator

import numpy as np
import pytest
from backend.real_functions import called, functions

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("calls_stay"), pytest.mark.vulkan_or_wgpu]


def test_values_that_cross_tasks(session) -> None:
    state, out = sg.field(sg.i32, shape=2), sg.field(sg.i32, shape=10)

    @sg.real_func
    def bump(k: sg.i32) -> sg.i32:
        state[k] += 1
        return state[k]

    @sg.real_func
    def pair():
        state[1] += 1
        return state[0], state[1]

    @sg.kernel
    def run():
        n = bump(0)
        a, b = pair()
        for i in range(n):
            out[i] = a + 10 * b
        state[0] = 4
        for i in range(state[0], 10):
            out[i] = -n
        bump(0)

    run()
    assert out.to_numpy().tolist() == [11, 0, 0, 0] + [-1] * 6
    assert state.to_numpy().tolist() == [5, 1]
    run()
    assert out.to_numpy().tolist() == [26] * 4 + [-6] * 6


def test_loops_that_call_do_not_fuse_with_what_they_access(session) -> None:
    x, y = sg.field(sg.i32, shape=64), sg.field(sg.i32, shape=64)

    @sg.real_func
    def neighbour(i: sg.i32) -> sg.i32:
        return x[(i + 1) % 64]

    @sg.kernel
    def run():
        for i in range(64):
            x[i] = i
        for i in range(64):
            y[i] = neighbour(i)
        for i in range(64):
            x[i] = 2 * x[i]

    run()
    assert y.to_numpy().tolist() == [(i + 1) % 64 for i in range(64)]
    assert x.to_numpy().tolist() == [2 * i for i in range(64)]


def test_what_is_accumulated_is_read_by_a_call(session) -> None:
    """Neither a reduction nor a copy for each workgroup may stand for the element then."""
    total, seen = sg.field(sg.i32, shape=()), sg.field(sg.i32, shape=256)

    @sg.real_func
    def so_far() -> sg.i32:
        return total[None]

    @sg.kernel
    def run(serial: sg.template()):
        sg.loop_config(serialize=serial)
        for i in range(256):
            total[None] += 1
            seen[i] = so_far()

    run(True)
    assert seen.to_numpy().tolist() == list(range(1, 257))
    total[None] = 0
    run(False)
    assert total[None] == 256
    assert (seen.to_numpy() >= 1).all() and (seen.to_numpy() <= 256).all()


def test_histogram_partly_in_a_function(session) -> None:
    bins, x = sg.field(sg.i32, shape=16), sg.field(sg.i32, shape=1 << 16)

    @sg.real_func
    def put(v: sg.i32):
        bins[v] += 1

    @sg.kernel
    def run():
        for i in x:
            bins[x[i] % 16] += 1
            put(x[i] // 16 % 16)

    a = np.random.default_rng(7).integers(0, 256, 1 << 16).astype(np.int32)
    x.from_numpy(a)
    run()
    want = np.bincount(a % 16, minlength=16) + np.bincount(a // 16, minlength=16)
    assert bins.to_numpy().tolist() == want.tolist()


def test_two_tasks_one_with_and_one_without_contention(session) -> None:
    """A function is compiled once: what one task may do without atomics, the other may not."""
    total = sg.field(sg.i32, shape=())

    @sg.real_func
    def add(v: sg.i32):
        total[None] += v

    @sg.kernel
    def run(n: sg.i32):
        add(1)
        for i in range(n):
            add(i)
        add(n)

    for n in (0, 1, 3000):
        total[None] = 0
        run(n)
        assert total[None] == 1 + n + n * (n - 1) // 2


def test_gradients_of_kernels_that_call(session) -> None:
    x, w, loss = (sg.field(sg.f32, shape=s, needs_grad=True) for s in (16, 16, ()))

    @sg.real_func
    def weighted(i: sg.i32, k: sg.i32) -> sg.f32:
        return w[(i + k) % 16] * x[i] ** 2

    @sg.real_func
    def collect(v: sg.f32):
        loss[None] += v

    @sg.kernel
    def run():
        for i in x:
            for k in sg.static(range(3)):
                collect(weighted(i, k))

    rng = np.random.default_rng(4)
    a, b = rng.random(16, dtype=np.float32), rng.random(16, dtype=np.float32)
    x.from_numpy(a)
    w.from_numpy(b)
    with sg.ad.Tape(loss):
        run()
    near = sum(np.roll(b, -k) for k in range(3)).astype(float)
    np.testing.assert_allclose(loss[None], (near * a**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * near * a, rtol=1e-5)
    np.testing.assert_allclose(w.grad.to_numpy(), sum(np.roll(a.astype(float) ** 2, k) for k in range(3)), rtol=1e-5)


def test_the_tape_saves_what_functions_overwrite(session) -> None:
    x, loss = sg.field(sg.f32, shape=4, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.real_func
    def squared(i: sg.i32):
        x[i] = x[i] * x[i]

    @sg.kernel
    def step():
        for i in x:
            squared(i)

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    a = np.array([0.5, 1.0, -1.5, 2.0], np.float32)
    x.from_numpy(a)
    with sg.ad.Tape(loss):
        step()
        step()
        total()
    np.testing.assert_allclose(x.grad.to_numpy(), 4 * a.astype(float) ** 3, rtol=1e-6)


def test_checks_name_the_line_and_the_call(arch) -> None:
    sg.init(arch=arch, debug=True)
    x = sg.field(sg.i32, shape=4)

    @sg.real_func
    def put(i: sg.i32):
        x[i] = 1

    @sg.kernel
    def run(n: sg.i32):
        for i in range(n):
            put(i)

    run(4)
    with pytest.raises(sg.SpirogradAssertionError, match="index") as caught:
        run(5)
        sg.sync()
    assert "x[i] = 1" in str(caught.value) and "put(i)" in str(caught.value)


def test_data_oriented_classes_and_fields_of_several_trees(session) -> None:
    @sg.data_oriented
    class Grid:
        def __init__(self, n: int, scale: int) -> None:
            self.scale = scale
            self.cells, self.back = sg.field(sg.i32), sg.field(sg.i32)
            sg.root.dense(sg.i, n).place(self.cells)
            sg.root.dense(sg.i, n).place(self.back)

        @sg.real_func
        def swap(self, i: sg.i32):
            self.cells[i], self.back[i] = self.back[i] * self.scale, self.cells[i]

        @sg.kernel
        def run(self):
            for i in self.cells:
                self.swap(i)
                self.swap(i)
                self.back[i] += 1

    small, large = Grid(3, 2), Grid(20, 3)
    for grid in (small, large, small):
        grid.cells.fill(1)
        grid.back.fill(5)
        grid.run()
        n = grid.cells.shape[0]
        assert grid.cells.to_numpy().tolist() == [grid.scale] * n
        assert grid.back.to_numpy().tolist() == [5 * grid.scale + 1] * n


@pytest.fixture
def many_buffers(session) -> Iterator[list]:
    yield [sg.ndarray(sg.f32, 3) for _ in range(12)]


def test_more_arguments_than_fit_in_push_constants(many_buffers) -> None:
    """The argument block lies in memory then."""

    @sg.real_func
    def collect(a: sg.template(), b: sg.template(), i: sg.i32, k: sg.i32):
        b[i] = b[i] + k * a[i]

    A = sg.types.ndarray(sg.f32, 1)

    @sg.kernel
    def run(a: A, b: A, c: A, d: A, e: A, f: A, g: A, h: A, p: A, q: A, r: A, s: A, k: sg.i32):
        for i in range(3):
            for x, y in sg.static([(a, b), (b, c), (c, d), (d, e), (e, f), (f, g), (g, h), (h, p), (p, q), (q, r), (r, s)]):
                collect(x, y, i, k)

    for n, array in enumerate(many_buffers):
        array.fill(n)
    run(*many_buffers, 2)
    want = [0.0]
    for n in range(1, 12):
        want.append(n + 2 * want[-1])
    for n, array in enumerate(many_buffers):
        assert array.to_numpy().tolist() == [want[n]] * 3
    assert called(run)


def test_the_cache_and_the_text_of_the_ir(session) -> None:
    from spirograd.ir.text import parse, to_text

    x = sg.field(sg.i32, shape=4)

    @sg.real_func
    def twice(i: sg.i32):
        x[i] = 2 * x[i]
        return x[i], i

    @sg.kernel
    def run() -> sg.i32:
        a, b = twice(1)
        return a + b

    x.fill(3)
    assert run() == 7
    for stage in ("kernel", "offload", "device"):
        if stage in {name.split(".")[0] for name in run.stages()}:
            text = run.ir(stage)
            assert "call_memory[MemoryCall(" in text
            assert to_text(parse(text)) == text


@pytest.mark.archs("cpu")  # reads LLVM IR
def test_many_calls_take_an_instruction_each(session, monkeypatch) -> None:
    """And few are inlined."""
    monkeypatch.undo()
    x = sg.field(sg.f32, shape=256)

    @sg.real_func
    def large(i: sg.i32, a: sg.f32) -> sg.f32:
        for k in sg.static(range(20)):
            a = a * x[(i + k) % 256] + 1.0 / (1.0 + a * a)
        x[i] += a
        return a

    def text(n: int) -> str:
        @sg.kernel
        def run():
            for i in range(16):
                a = x[i]
                for k in sg.static(range(n)):
                    a = 0.5 * large(i + 16 * (k % 15), a)
                x[i + 240] = a

        run()
        assert len(functions(run)) == 1
        return run.llvm()

    assert "@sg.large.1" in text(9)
    assert "@sg.large.1" not in text(8)
    assert text(200).count("\n  ") - text(100).count("\n  ") <= 500


@pytest.mark.archs("interpreter", "cpu")  # decided before there is code for a device
def test_small_functions_are_inlined_however_often_they_are_called(session, monkeypatch) -> None:
    monkeypatch.undo()
    x = sg.field(sg.i32, shape=64)

    @sg.real_func
    def at(i: sg.i32) -> sg.i32:
        return x[(i + 64) % 64]

    y = sg.field(sg.i32, shape=64)

    @sg.kernel
    def run():
        for i in x:
            for k in sg.static(range(-8, 9)):
                y[i] += at(i + k)

    a = np.random.default_rng(6).integers(0, 100, 64).astype(np.int32)
    x.from_numpy(a)
    run()
    assert y.to_numpy().tolist() == sum(np.roll(a, -k) for k in range(-8, 9)).tolist()
    assert not called(run) or "device.ir" not in run.stages()


def test_functions_that_return_several_values_in_chains(session) -> None:
    """Loops whose iterations depend on each other run in lockstep on CPUs, where they can."""

    @sg.real_func
    def pair(a: sg.f32):
        return a * 0.5, a + 1.0

    x = sg.field(sg.f32, shape=64)

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                u, w = pair(v)
                v = u + w * 0.25
            x[i] = v

    a = np.random.default_rng(8).random(64).astype(np.float32)
    for n in (0, 1, 100):
        x.from_numpy(a)
        run(n)
        want = a.astype(float)
        for _ in range(n):
            want = want * 0.5 + (want + 1) * 0.25
        np.testing.assert_allclose(x.to_numpy(), want, rtol=1e-5)
