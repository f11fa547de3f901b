"""`@real_func`s that access fields and arrays: they are called where that pays, and mean the same as inlined ones."""

import numpy as np
import pytest
from backend.real_functions import called, functions

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("calls_stay"), pytest.mark.vulkan_or_wgpu]


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


def test_loops_of_functions_that_update_an_element(session) -> None:
    """The element is that of an iteration of the caller."""
    x, y = sg.field(sg.f32, shape=8), sg.field(sg.f32, shape=8)

    @sg.real_func
    def mix(k: sg.i32, n: sg.i32) -> sg.f32:
        for j in range(n):
            y[k] = 0.5 * y[k] + x[j]
        return y[k]

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            y[i] = i * mix(i, n)

    a = np.random.default_rng(1).random(8, np.float32)
    x.from_numpy(a)
    for n in (0, 3, 8):
        y.fill(1.0)
        run(n)
        mixed = 1.0
        for j in range(n):
            mixed = 0.5 * mixed + a[j]
        np.testing.assert_allclose(y.to_numpy(), np.arange(8) * mixed, rtol=1e-5)
    assert called(run) or session.device.caps.loop_limit  # there functions with loops are inlined


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


_TYPES = (sg.i32, sg.f32, sg.i64)
KINDS = [(kind, t) for kind in ("add", "min", "max", "sub") for t in _TYPES] + [("or", sg.i32), ("or", sg.i64)]


@pytest.mark.parametrize(("kind", "dtype"), KINDS, ids=[f"{dtype}-{kind}" for kind, dtype in KINDS])
def test_atomics(session, kind, dtype) -> None:
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
