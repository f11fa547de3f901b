"""`@real_func`s that access fields and arrays: they are called where that pays, and mean the same as inlined ones."""

from collections.abc import Iterator

import numpy as np
import pytest
from backend.real_functions import functions

import spirograd as sg
from spirograd.transforms.simplification import inline_calls


@pytest.fixture(autouse=True)
def calls_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few and small they are."""
    monkeypatch.setattr(inline_calls, "_FEW", 0)
    monkeypatch.setattr(inline_calls, "_SMALL", 0)


def called(kernel) -> bool:
    """Whether a call of a function that accesses memory is in what the code generator gets. Not on the interpreter, which inlines them."""
    return "device.ir" not in kernel.stages() or "call_memory[" in kernel.ir("device")


@pytest.mark.parametrize("dtype", [sg.f32, sg.f64, sg.i32, sg.i64, sg.u8, sg.i16, sg.f16, sg.u1], ids=str)
def test_loads_and_stores(session, dtype) -> None:
    x, y = sg.field(dtype, shape=37), sg.field(dtype, shape=37)

    @sg.real_func
    def copy(i: sg.i32, j: sg.i32) -> dtype:
        old = y[i]
        y[i] = x[j]
        return old

    @sg.kernel
    def run():
        for i in x:
            first = copy(i, 36 - i)
            if i % 2 == 0:
                y[i] = first

    rng = np.random.default_rng(1)
    for seed in (1, 2):
        a, b = (rng.integers(0, 2 if dtype is sg.u1 else 100, 37).astype(dtype.np) for _ in range(2))
        x.from_numpy(a)
        y.from_numpy(b)
        run()
        np.testing.assert_array_equal(y.to_numpy(), np.where(np.arange(37) % 2 == 0, b, a[::-1]), err_msg=str(seed))
    assert called(run)


def test_a_load_after_a_call_sees_what_the_call_stored(session) -> None:
    """And one before it does not; equal loads with a call in between are two."""
    x, out = sg.field(sg.i32, shape=8), sg.field(sg.i32, shape=(8, 4))

    @sg.real_func
    def put(i: sg.i32, v: sg.i32):
        x[i] = v

    @sg.real_func
    def nothing(i: sg.i32) -> sg.i32:
        return out[i, 3]

    @sg.kernel
    def run():
        for i in range(8):
            out[i, 0] = x[i]
            put(i, 10 * i)
            out[i, 1] = x[i]
            x[i] = 7
            put(i, x[i] + 1)
            out[i, 2] = x[i] + nothing(i)

    x.fill(3)
    run()
    i = np.arange(8)
    assert out.to_numpy().T.tolist() == [[3] * 8, (10 * i).tolist(), [8] * 8, [0] * 8]
    assert called(run)


def test_loads_stay_in_loops_whose_calls_store(session) -> None:
    x, n = sg.field(sg.i32, shape=()), sg.field(sg.i32, shape=5)

    @sg.real_func
    def step(by: sg.i32):
        x[None] += by

    @sg.kernel
    def run(times: sg.i32):
        sg.loop_config(serialize=True)
        for k in range(5):
            for _ in range(3):
                n[k] += x[None]
                step(1)
            for _ in range(times):
                step(2)

    for times in (0, 1, 4):
        x[None] = 1
        n.fill(0)
        run(times)
        value, want = 1, []
        for _ in range(5):
            want.append(sum(value + k for k in range(3)))
            value += 3 + 2 * times
        assert n.to_numpy().tolist() == want
        assert x[None] == value


def test_calls_for_their_effect_are_not_removed_or_merged(session) -> None:
    count = sg.field(sg.i32, shape=3)

    @sg.real_func
    def counted(k: sg.i32) -> sg.i32:
        old = count[k]
        count[k] = old + 1
        return 5

    @sg.kernel
    def run() -> sg.i32:
        a = counted(0)
        b = counted(0)
        c = counted(1)
        if a > 5:
            counted(2)
        return b + c

    assert run() == 10
    assert run() == 10
    assert count.to_numpy().tolist() == [4, 2, 0]
    assert called(run)


@pytest.mark.parametrize("kind", ["add", "min", "max", "or", "sub"])
@pytest.mark.parametrize("dtype", [sg.i32, sg.f32, sg.i64], ids=str)
def test_atomics(session, kind, dtype) -> None:
    if dtype is sg.f32 and kind == "or":
        pytest.skip("floats have no bits to combine")
    x, total = sg.field(dtype, shape=1000), sg.field(dtype, shape=4)
    update = getattr(sg, f"atomic_{kind}")

    @sg.real_func
    def collect(i: sg.i32):
        update(total[i % 3], x[i])

    @sg.kernel
    def run():
        for i in x:
            collect(i)
            update(total[i % 3], x[i])
            update(total[3], x[i])

    a = np.random.default_rng(3).integers(1, 50, 1000).astype(dtype.np)
    x.from_numpy(a)
    total.fill(7)
    run()
    combine = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum, "or": np.bitwise_or}[kind]
    parts = [np.repeat(a[k::3], 2) for k in range(3)]
    assert total.to_numpy().tolist() == [combine.reduce(np.concatenate([np.full(1, 7, a.dtype), p])) for p in [*parts, a]]


def test_values_that_atomics_return(session) -> None:
    """Each iteration gets a number of its own."""
    count, taken = sg.field(sg.i32, shape=()), sg.field(sg.i32, shape=500)

    @sg.real_func
    def ticket() -> sg.i32:
        return sg.atomic_add(count[None], 1)

    @sg.kernel
    def run():
        for _ in range(250):
            taken[ticket()] += 1
            taken[ticket()] += 1

    run()
    assert count[None] == 500
    assert (taken.to_numpy() == 1).all()


def test_arguments_of_the_kernel_in_functions(session) -> None:
    """Fields and arrays as template arguments, extents, components, gradients' neighbours; two arrays of one signature."""

    @sg.real_func
    def last(a: sg.template(), i: sg.i32, v: sg.f32) -> sg.f32:
        old = a[a.shape[0] - 1 - i, a.shape[1] - 1]
        a[a.shape[0] - 1 - i, a.shape[1] - 1] = v
        return old

    f = sg.field(sg.f32, shape=(3, 5))

    @sg.kernel
    def run(a: sg.types.ndarray(sg.f32, 2), b: sg.types.ndarray(sg.f32, 2), v: sg.f32) -> sg.f32:
        r = 0.0
        for i in range(3):
            r += last(a, i, v + i) + 10 * last(b, i, v - i) + 100 * last(f, i, v)
        return r

    for shape in ((3, 2), (4, 7), (3, 1)):
        a, b = np.full(shape, 1, np.float32), np.full(shape, 2, np.float32)
        f.fill(3)
        assert run(a, b, 0.5) == 3 * (1 + 20 + 300)
        want_a, want_b = np.full(shape, 1, np.float32), np.full(shape, 2, np.float32)
        want_a[::-1][:3, -1], want_b[::-1][:3, -1] = 0.5 + np.arange(3), 0.5 - np.arange(3)
        np.testing.assert_array_equal(a, want_a)
        np.testing.assert_array_equal(b, want_b)
        np.testing.assert_array_equal(f.to_numpy()[:, -1], np.full(3, 0.5, np.float32))
    assert called(run)


def test_one_array_passed_twice(session) -> None:
    """What the function stores through one argument is loaded through the other."""

    @sg.real_func
    def store(a: sg.template(), i: sg.i32, v: sg.i32):
        a[i] = v

    @sg.kernel
    def run(a: sg.types.ndarray(sg.i32, 1), b: sg.types.ndarray(sg.i32, 1)) -> sg.i32:
        r = 0
        sg.loop_config(serialize=True)
        for i in range(4):
            before = b[i]
            store(a, i, 10 + i)
            r += 1000 * before + b[i]
        return r

    a = sg.ndarray(sg.i32, 4)
    a.fill(1)
    assert run(a, a) == 4000 + 46
    b = sg.ndarray(sg.i32, 4)
    b.fill(2)
    a.fill(1)
    assert run(a, b) == 8000 + 8


def test_vectors_matrices_and_structs_in_memory(session) -> None:
    cell = sg.types.struct(p=sg.types.vector(3, sg.f32), n=sg.i32)
    cells = cell.field(shape=6)
    m = sg.Matrix.field(2, 2, sg.f32, shape=6)

    @sg.real_func
    def advance(i: sg.i32, v: sg.types.vector(3, sg.f32)) -> cell:
        cells[i].p += v
        cells[i].n = cells[i].n + 1
        for a, b in sg.static(sg.ndrange(2, 2)):
            m[i][a, b] += a - b
        return cells[i]

    @sg.kernel
    def run() -> sg.f32:
        s = 0.0
        for i in range(6):
            c = advance(i, sg.Vector([1.0, 2.0, i]))
            c = advance(i, c.p)
            s += c.p.sum() + c.n
        return s

    want = sum(2 * (3 + i) + 2 for i in range(6))
    assert run() == want
    np.testing.assert_array_equal(cells.p.to_numpy(), [[2, 4, 2 * i] for i in range(6)])
    np.testing.assert_array_equal(m.to_numpy(), [[[0, -2], [2, 0]]] * 6)


def test_nested_calls_loops_and_early_returns_in_divergent_branches(session) -> None:
    table, visits = sg.field(sg.i32, shape=16), sg.field(sg.i32, shape=16)

    @sg.real_func
    def find(v: sg.i32, start: sg.i32) -> sg.i32:
        k = start
        while k < 16:
            visits[k] += 1
            if table[k] == v:
                return k
            k += 1
        return -1

    @sg.real_func
    def second(v: sg.i32) -> sg.i32:
        k = find(v, 0)
        if k >= 0:
            k = find(v, k + 1)
        return k

    out = sg.field(sg.i32, shape=9)

    @sg.kernel
    def run():
        for v in out:
            out[v] = second(v) if v % 3 else -7

    a = np.random.default_rng(5).integers(0, 9, 16).astype(np.int32)
    table.from_numpy(a)
    run()
    want, count = [], np.zeros(16, int)
    for v in range(9):
        places = np.flatnonzero(a == v)
        want.append(-7 if v % 3 == 0 else int(places[1]) if len(places) > 1 else -1)
        if v % 3:
            last = want[-1] if want[-1] >= 0 else 15
            count[: last + 1] += 1
    assert out.to_numpy().tolist() == want
    assert visits.to_numpy().tolist() == count.tolist()


def test_loops_at_the_top_of_a_kernel_are_parallel(session) -> None:
    """There the function is inlined, since its loops could not be parallel else."""
    x = sg.field(sg.i32, shape=100)

    @sg.real_func
    def clear(v: sg.i32):
        for i in x:
            x[i] = v

    @sg.real_func
    def both(v: sg.i32):
        clear(v)
        clear(v + 1)

    @sg.kernel
    def run():
        both(3)

    run()
    assert (x.to_numpy() == 4).all()
    assert functions(run) == []
    assert run.ir("kernel").count("parallel=True") == 2


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
