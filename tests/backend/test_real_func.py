"""`@real_func`: functions that compute and access memory are called, the others are inlined; both mean the same."""

import numpy as np
import pytest
from backend.real_functions import functions

import spirograd as sg
from spirograd import compiler
from spirograd.base.dtypes import DType

pytestmark = pytest.mark.vulkan_or_wgpu

DTYPES = [sg.f32, sg.f64, sg.i32, sg.i64, sg.u8, sg.i16, sg.u32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scalars(session, arch, dtype: DType) -> None:
    @sg.real_func
    def mix(a: dtype, b: dtype) -> dtype:
        c = a * b + 3
        a = c - b
        return sg.max(a, b)

    x, y, z = (sg.field(dtype, shape=37) for _ in range(3))

    @sg.kernel
    def run():
        for i in x:
            z[i] = mix(x[i], y[i]) + mix(y[i], x[i])

    rng = np.random.default_rng(1)
    a, b = (rng.integers(1, 100, 37).astype(dtype.np) for _ in range(2))
    x.from_numpy(a)
    y.from_numpy(b)
    run()
    with np.errstate(over="ignore"):
        three = dtype.np.type(3)
        want = np.maximum(a * b + three - b, b) + np.maximum(b * a + three - a, a)
    np.testing.assert_array_equal(z.to_numpy(), want)
    assert functions(run) == ["mix.1"]
    x.from_numpy(b)
    run()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(z.to_numpy(), 2 * np.maximum(b * b + three - b, b))


def test_one_function_for_each_signature(session) -> None:
    @sg.real_func
    def twice(a):
        return a + a

    @sg.kernel
    def run(n: sg.i32, v: sg.f32) -> sg.f32:
        return twice(v) + twice(twice(v)) + twice(n) + twice(1)

    assert run(3, 0.5) == 1 + 2 + 6 + 2
    assert functions(run) == ["twice.1", "twice.2"]


def test_vectors_matrices_structs_and_tuples(session) -> None:
    ray = sg.types.struct(origin=sg.types.vector(3, sg.f32), hits=sg.i32)

    @sg.real_func
    def rotated(m: sg.types.matrix(3, 3, sg.f32), v: sg.types.vector(3, sg.f32)) -> sg.types.vector(3, sg.f32):
        return m @ v

    @sg.real_func
    def moved(r: ray, by) -> ray:
        r.origin += by
        r.hits = r.hits + 1
        return r

    @sg.real_func
    def parts(r):
        return r.origin.sum(), (r.hits, r.origin)

    x, out, count = sg.Vector.field(3, sg.f32, shape=9), sg.Vector.field(3, sg.f32, shape=9), sg.field(sg.f32, shape=9)

    @sg.kernel
    def run():
        for i in x:
            m = sg.Matrix([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 3.0]])
            r = ray(x[i], i)
            s = moved(moved(r, 1.0), rotated(m, x[i]))
            total, (hits, origin) = parts(s)
            out[i] = origin
            count[i] = total + hits + r.hits

    a = np.random.default_rng(2).random((9, 3), dtype=np.float32)
    x.from_numpy(a)
    run()
    want = a + 1 + a @ np.array([[0, 1, 0], [2, 0, 0], [0, 0, 3]], np.float32).T
    np.testing.assert_allclose(out.to_numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(count.to_numpy(), want.sum(1) + 2 * np.arange(9) + 2, rtol=1e-6)
    assert [name.split(".")[0] for name in functions(run)] == ["moved", "rotated", "moved", "parts"]


def test_early_returns_loops_and_nested_calls_in_divergent_branches(session) -> None:
    @sg.real_func
    def collatz(n: sg.i32, most: sg.i32) -> sg.i32:
        steps = 0
        while n != 1:
            if steps == most:
                return -1
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    @sg.real_func
    def first_divisor(n: sg.i32) -> sg.i32:
        for k in range(2, n):
            if n % k == 0:
                return k
        return n

    @sg.real_func
    def both(n: sg.i32) -> sg.i32:
        if n < 2:
            return 0
        return 1000 * first_divisor(n) + collatz(n, 40)

    out = sg.field(sg.i32, shape=61)

    @sg.kernel
    def run():
        for i in out:
            if i % 3 == 0:
                out[i] = both(i)
            else:
                for k in range(i % 4):
                    out[i] += first_divisor(i + k)

    def steps(n: int) -> int:
        count = 0
        while n != 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        return count if count <= 40 else -1

    def divisor(n: int) -> int:
        return next((k for k in range(2, n) if n % k == 0), n)

    run()
    want = [(1000 * divisor(i) + steps(i) if i > 1 else 0) if i % 3 == 0 else sum(divisor(i + k) for k in range(i % 4)) for i in range(61)]
    assert out.to_numpy().tolist() == want
    assert len(functions(run)) == 3


def test_a_call_that_would_not_return_is_left_where_it_is(session) -> None:
    """Under a condition that does not change in the loop around it."""

    @sg.real_func
    def logarithm(n: sg.i32) -> sg.i32:
        k = 0
        while n != 1:
            n = n // 2
            k += 1
        return k

    @sg.kernel
    def run(n: sg.i32, times: sg.i32) -> sg.i32:
        total = 0
        for _ in range(times):
            total += logarithm(n)
        return total

    assert run(1024, 3) == 30
    assert run(0, 0) == 0


def test_static_and_template_arguments(session) -> None:
    class Shape:
        def __init__(self, radius: float) -> None:
            self.radius = radius

    @sg.real_func
    def power(x: sg.f32, n: sg.template()) -> sg.f32:
        result = 1.0
        for _ in sg.static(range(n)):
            result *= x
        return result

    @sg.real_func
    def countdown(n: sg.template()) -> sg.i32:
        if sg.static(n > 0):
            return countdown(n - 1) + n
        return 0

    @sg.real_func
    def area(shape: sg.template(), x: sg.f32) -> sg.f32:
        return shape.radius * x

    @sg.real_func
    def pi() -> sg.f32:
        return 3.25

    small, large = Shape(0.5), Shape(2.0)

    @sg.kernel
    def run(x: sg.f32) -> sg.f32:
        return power(x, 2) + power(x, 3) + power(x + 1, 2) + countdown(4) + area(small, x) + area(large, x) + pi()

    assert run(2.0) == 4 + 8 + 9 + 10 + 1 + 4 + 3.25
    assert sum(name.startswith("power.") for name in functions(run)) == 2
    assert sum(name.startswith("area.") for name in functions(run)) == 2


def test_methods_of_data_oriented_classes(session) -> None:
    @sg.data_oriented
    class Scene:
        def __init__(self, scale: float) -> None:
            self.scale = scale
            self.out = sg.field(sg.f32, shape=5)

        @sg.real_func
        def scaled(self, x: sg.f32) -> sg.f32:
            return x * self.scale

        @sg.kernel
        def run(self):
            for i in self.out:
                self.out[i] = self.scaled(i) + self.scaled(1.0)

    for scale in (2.0, 3.0):
        scene = Scene(scale)
        scene.run()
        assert scene.out.to_numpy().tolist() == [scale * i + scale for i in range(5)]
    scene.scale = 5.0
    scene.run()
    assert scene.out[3] == 20


def test_what_draws_or_changes_its_arguments_is_inlined(session) -> None:
    x, total = sg.field(sg.f32, shape=12), sg.field(sg.f32, shape=())

    @sg.real_func
    def at(i: sg.i32) -> sg.f32:
        return x[i] + 1.0

    @sg.real_func
    def add(v: sg.f32):
        total[None] += v

    @sg.real_func
    def advance(v: sg.template(), by: sg.f32):
        v += by

    @sg.real_func
    def extent(a: sg.template(), n: sg.i32) -> sg.i32:
        return a.shape[0] + n

    @sg.real_func
    def noise() -> sg.f32:
        return sg.random()

    @sg.real_func
    def half(v: sg.f32) -> sg.f32:
        return v / 2

    @sg.real_func
    def half_of(i: sg.i32) -> sg.f32:
        return half(at(i))

    @sg.kernel
    def run(a: sg.types.ndarray(sg.f32, 1)) -> sg.f32:
        for i in x:
            add(half_of(i))
        v = 1.0
        advance(v, 2.0)
        r = noise()
        return v + extent(a, 2) + (1.0 if 0 <= r < 1 else 100.0)

    x.from_numpy(np.arange(12, dtype=np.float32))
    assert run(np.zeros(7, np.float32)) == 3 + 9 + 1
    assert total[None] == (np.arange(12) + 1).sum() / 2
    assert [name.split(".")[0] for name in functions(run)] == ["at", "half", "half_of", "add"]


def test_loops_at_the_top_of_functions_run_in_order(session) -> None:
    @sg.real_func
    def total(n: sg.i32) -> sg.i32:
        s = 0
        for i, j in sg.ndrange(4, 3):
            s = 2 * s + i * j * n
        for k in range(n):
            s += k
        return s

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return total(n)

    for n in (0, 1, 6):
        want = 0
        for i in range(4):
            for j in range(3):
                want = 2 * want + i * j * n
        assert run(n) == want + sum(range(n))
    assert functions(run) == ["total.1"]


def test_elementary_functions_in_functions(session) -> None:
    @sg.real_func
    def wave(a: sg.f32, k: sg.f32) -> sg.f32:
        return sg.sin(a * k) * sg.exp(-a) + sg.cos(a + k) * sg.tanh(a) + a ** (0.5 + 0.01 * k)

    x = sg.field(sg.f32, shape=33)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            total = 0.0
            for k in sg.static(range(12)):
                total += wave(v, k + 1.0) + sg.exp(-v * k)
            x[i] = total

    a = np.linspace(0.1, 0.9, 33).astype(np.float32)
    x.from_numpy(a)
    run()
    w = a.astype(float)
    want = sum(np.sin(w * k) * np.exp(-w) + np.cos(w + k) * np.tanh(w) + w ** (0.5 + 0.01 * k) + np.exp(-w * (k - 1)) for k in range(1, 13))
    np.testing.assert_allclose(x.to_numpy(), want, rtol=1e-5)


@pytest.mark.parametrize("calls", [3, 20])
def test_functions_on_lanes(session, calls: int) -> None:
    """What vectorised loops call: all operations on 32 and 64 bits, of which LLVM may make vector forms. More calls are not inlined."""

    @sg.real_func
    def bits(a: sg.i32, b: sg.i32) -> sg.i32:
        c = (a & b) ^ (a << 3) | (~b >> 2)
        d = sg.cast(a, sg.i64) * b + sg.cast(sg.cast(c, sg.u32), sg.i64)
        return sg.cast(d >> 5, sg.i32) + sg.abs(a - b) + sg.min(a, 7) - sg.max(b, -3)

    @sg.real_func
    def floats(a: sg.f32, n: sg.i32) -> sg.f32:
        b = sg.floor(a * 3) + sg.ceil(a) / (1 + a * a) - sg.sqrt(sg.abs(a))
        c = b if a > 0.25 else -a
        return c + sg.cast(a * 100, sg.i32) + sg.bit_cast(sg.cast(n % 4, sg.i32) + 1065353216, sg.f32)

    x, y, z = sg.field(sg.i32, shape=77), sg.field(sg.f32, shape=77), sg.field(sg.f32, shape=77)

    @sg.kernel
    def run():
        for i in x:
            a, b = x[i], y[i]
            n, s = 0, 0.0
            for k in sg.static(range(calls)):
                n = n ^ bits(a + k, 5 * k - a)
                s += floats(b * (k + 1) / calls, a)
            x[i], z[i] = n, s

    rng = np.random.default_rng(3)
    a, b = rng.integers(-1000, 1000, 77).astype(np.int32), rng.random(77, dtype=np.float32)
    x.from_numpy(a)
    y.from_numpy(b)
    run()
    n, s = np.zeros(77, np.int32), np.zeros(77)
    for k in range(calls):
        p, q = a + np.int32(k), np.int32(5 * k) - a
        c = (p & q) ^ (p << 3) | (~q >> 2)
        d = p.astype(np.int64) * q + c.astype(np.uint32).astype(np.int64)
        n = n ^ ((d >> 5).astype(np.int32) + np.abs(p - q) + np.minimum(p, 7) - np.maximum(q, -3))
        u = (b * np.float32(k + 1) / np.float32(calls)).astype(np.float32)
        v = np.floor(u * np.float32(3)) + np.ceil(u) / (1 + u * u) - np.sqrt(u)
        v = np.where(u > 0.25, v, -u)
        s += v + (u * np.float32(100)).astype(np.int32) + (np.mod(a, 4) + 1065353216).astype(np.int32).view(np.float32)
    np.testing.assert_array_equal(x.to_numpy(), n)
    np.testing.assert_allclose(z.to_numpy(), s, rtol=1e-5)


def test_vectors_indexed_at_run_time(session) -> None:
    """Large ones live on the stack of the function."""

    @sg.real_func
    def table(n: sg.i32, k: sg.i32) -> sg.i32:
        t = sg.Vector([0] * 12)
        for i in range(12):
            t[i] = n * i
        return t[k]

    out = sg.field(sg.i32, shape=(7, 12))

    @sg.kernel
    def run():
        for i, j in out:
            out[i, j] = table(i, j) + table(j, 11)

    run()
    i, j = np.indices((7, 12))
    np.testing.assert_array_equal(out.to_numpy(), i * j + j * 11)
    assert functions(run) == ["table.1"]


def test_bounds_of_parallel_loops_and_values_that_cross_tasks(session) -> None:
    @sg.real_func
    def size(n: sg.i32):
        return n // 2 + 1, 3 * n

    out = sg.field(sg.i32, shape=32)

    @sg.kernel
    def run(n: sg.i32):
        half, triple = size(n)
        for i in range(half):
            out[i] = triple
        for i in range(half, size(triple)[0]):
            out[i] = half

    for n in (0, 6, 10):
        out.fill(0)
        run(n)
        half, end = n // 2 + 1, 3 * n // 2 + 1
        assert out.to_numpy().tolist() == [3 * n] * half + [half] * (end - half) + [0] * (32 - end)


def test_reductions_of_what_functions_give(session) -> None:
    @sg.real_func
    def square(n: sg.i32) -> sg.i32:
        return n * n

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        s = 0
        for i in range(n):
            s += square(i)
        return s

    for n in (0, 1, 1000):
        assert run(n) == sum(i * i for i in range(n))


@pytest.mark.archs("cpu")  # reads LLVM IR
def test_many_calls_take_an_instruction_each(session) -> None:
    @sg.real_func
    def large(a: sg.f32) -> sg.f32:
        for k in sg.static(range(60)):
            a = a * (1.0 + 0.001 * k) + 1.0 / (1.0 + a * a)
        return a

    x = sg.field(sg.f32, shape=16)

    def lines(n: int) -> int:
        @sg.kernel
        def run():
            for i in x:
                a = x[i]
                for _ in sg.static(range(n)):
                    a = 0.5 * large(a)
                x[i] = a

        run()
        return run.llvm().count("\n  ")

    assert lines(200) - lines(100) <= 300


@pytest.mark.archs("vulkan", "wgpu")  # SPIR-V
def test_loops_in_functions_of_devices_that_do_not_end_them_early(session, monkeypatch) -> None:
    """Few iterations, so that it does not matter that this driver does."""

    def unchanged(kernel, ctx):
        return kernel

    for name in ("inline_some", "check_loops"):
        monkeypatch.setattr(compiler, name, unchanged)

    @sg.real_func
    def partial_sum(n: sg.i32, a: sg.f32):
        s, k = 0.0, 0
        while k < n:
            if s > 20:
                return s, True
            for j in range(k):
                s += a * j
            k += 1
        return s, False

    sums, stopped = sg.field(sg.f32, shape=16), sg.field(sg.i32, shape=16)

    @sg.kernel
    def run():
        for i in sums:
            s, early = partial_sum(i, 0.5)
            sums[i] = s
            stopped[i] = 1 if early else 0

    def want(n: int) -> tuple[float, int]:
        s = 0.0
        for k in range(n):
            if s > 20:
                return s, 1
            s += sum(0.5 * j for j in range(k))
        return s, 0

    run()
    assert list(zip(sums.to_numpy().tolist(), stopped.to_numpy().tolist())) == [want(i) for i in range(16)]
    assert 'function "partial_sum.1"' in run.ir("device")
