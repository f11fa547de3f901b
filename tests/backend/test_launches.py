"""Launches in a row, many launches, from threads, with many arguments; launches see each other's data and the host's writes."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.usefixtures("session")
INTS = sg.types.ndarray(sg.i32, 1)


def resident_bytes() -> int:
    """Memory of this process that is in use (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS")


def test_launches_in_a_row_with_changed_data(arch: str) -> None:
    """Host writes between launches, launches that read what others wrote, arguments that change: never stale data."""
    x = sg.field(sg.i32, shape=16)
    a = sg.ndarray(sg.i32, shape=16)

    @sg.kernel
    def step(k: sg.i32, b: INTS):
        for i in x:
            x[i] = x[i] * 2 + b[i] + k

    @sg.kernel
    def total() -> sg.i32:
        s = 0
        for i in x:
            s += x[i]
        return s

    want = np.zeros(16, np.int64)
    for k in range(12):
        if k % 3 == 0:
            data = np.arange(16) * k
            a.from_numpy(data.astype(np.int32))
        if k == 5:
            x.fill(1)
            want[:] = 1
        if k == 8:
            x[3] = 77
            want[3] = 77
        step(k, a)
        want = want * 2 + data + k
        if k % 4 == 1:
            assert total() == want.sum()
            assert x[3] == want[3]
    np.testing.assert_array_equal(x.to_numpy(), want)


def test_numpy_arguments_are_fresh_each_time(arch: str) -> None:
    @sg.kernel
    def double(b: INTS):
        for i in b:
            b[i] *= 2

    b = np.arange(10, dtype=np.int32)
    for k in range(5):
        double(b)
        b += 1
    want = np.arange(10)
    for _ in range(5):
        want = want * 2 + 1
    np.testing.assert_array_equal(b, want)
    part = np.arange(20, dtype=np.int32)
    double(part[3:9:2])
    np.testing.assert_array_equal(part[:10], [0, 1, 2, 6, 4, 10, 6, 14, 8, 9])


def test_many_arrays_of_changing_sizes(arch: str) -> None:
    @sg.kernel
    def fill(b: INTS, v: sg.i32):
        for i in b:
            b[i] = v + i

    arrays = [sg.ndarray(sg.i32, shape=n) for n in (1, 3, 100, 257, 5000)]
    for k, array in enumerate(arrays):
        fill(array, k)
    for k, array in enumerate(arrays):
        np.testing.assert_array_equal(array.to_numpy(), np.arange(array.shape[0]) + k)


@pytest.mark.archs("cpu", "vulkan")
def test_ten_thousand_launches_without_growth(arch: str) -> None:
    x = sg.field(sg.i32, shape=4)
    a = sg.ndarray(sg.i32, shape=4)
    b = np.ones(4, np.int32)

    @sg.kernel
    def step(k: sg.i32, a: INTS, b: INTS) -> sg.i32:
        for i in range(4):
            x[i] += a[i] + b[i]
        return k

    @sg.kernel
    def quick(k: sg.i32, a: INTS):
        for i in range(4):
            a[i] = k

    def round_of(n: int) -> None:
        for k in range(n):
            quick(k % 3, a)
            if k % 10 == 0:
                step(k, a, b)
        sg.sync()

    round_of(2000)
    growth = []
    for _ in range(2):  # buffers and drivers may grow once, to their full size; what leaks grows again
        gc.collect()
        before = resident_bytes()
        round_of(10000)
        gc.collect()
        growth.append(resident_bytes() - before)
        if growth[-1] < 4 << 20:
            break
    assert min(growth) < 4 << 20
    calls = [*range(0, 2000, 10), *range(0, 10000, 10)] + [*range(0, 10000, 10)] * (len(growth) - 1)
    assert x[0] == sum(1 + k % 3 for k in calls)


def test_threads(arch: str) -> None:
    """Threads compile and launch at once, each with its own data and one shared counter."""
    counter = sg.field(sg.i32, shape=())
    fields = [sg.field(sg.i32, shape=50) for _ in range(4)]
    results: list[list[int]] = [[] for _ in range(4)]
    errors: list[BaseException] = []

    @sg.func
    def step(v, k):
        return v * 3 + k

    @sg.kernel
    def shared(f: sg.template(), k: sg.i32) -> sg.i32:
        for i in f:
            f[i] = step(f[i], k)
            counter[None] += 1
        return f[7]

    def work(number: int) -> None:
        try:

            @sg.kernel
            def own(k: sg.i32) -> sg.i32:
                return k * number

            for k in range(15):
                results[number].append(shared(fields[number], k + number))
                results[number].append(own(k))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors
    for number in range(4):
        value, want = 0, []
        for k in range(15):
            value = (value * 3 + k + number + 2**31) % 2**32 - 2**31
            want += [value, k * number]
        assert results[number] == want
        assert fields[number].to_numpy().tolist() == [value] * 50
    assert counter[None] == 4 * 15 * 50


def test_many_arguments(arch: str) -> None:
    """More than 128 bytes of arguments (what Vulkan's push constants surely hold): scalars of all widths, arrays, vectors."""

    @sg.kernel
    def run(
        a0: sg.f64, a1: sg.i8, a2: sg.u16, a3: sg.i64, a4: sg.f32, a5: sg.u1, a6: sg.f64, a7: sg.i32, a8: sg.u64, a9: sg.i16,
        b0: INTS, b1: INTS, b2: INTS, b3: INTS, b4: INTS, b5: INTS, b6: INTS, b7: INTS,
        m: sg.types.matrix(3, 3, sg.f64), v: sg.types.vector(4, sg.f32), out: sg.types.ndarray(sg.f64, 1),
    ):  # fmt: skip
        for i in range(4):
            out[i] = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + v[i]
            out[4 + i] = b0[i] + b1[i] * 2 + b2[i] * 3 + b3[i] * 4 + b4[i] * 5 + b5[i] * 6 + b6[i] * 7 + b7[i] * 8
        out[8] = m[0, 0] + m[1, 1] * 10 + m[2, 0] * 100 + m[2, 2] * 1000

    scalars = (0.1, -7, 60000, 2**40, 1.5, True, 1e-3, -100000, 2**50, -300)
    arrays = [np.arange(4, dtype=np.int32) + k for k in range(8)]
    m = np.arange(9.0).reshape(3, 3)
    out = np.zeros(9)
    run(*scalars, *arrays, sg.Matrix(m.tolist()), sg.Vector([1.0, 2, 3, 4]), out)
    np.testing.assert_allclose(out[:4], sum(map(float, scalars)) + np.arange(1, 5), rtol=1e-15)
    np.testing.assert_array_equal(out[4:8], sum((k + 1) * arrays[k] for k in range(8)))
    assert out[8] == 0 + 40 + 600 + 8000


def test_many_fields_in_one_kernel(arch: str) -> None:
    fields = [sg.field(sg.f32, shape=8) for _ in range(40)]

    @sg.kernel
    def run():
        for i in range(8):
            for k in sg.static(range(1, 40)):
                fields[k][i] = fields[k - 1][i] + k

    run()
    assert fields[39][5] == sum(range(40))


def test_same_kernel_in_a_new_session(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return n + 1

    assert run(1) == 2
    sg.init(arch=arch)
    assert run(2) == 3
    sg.reset()
    with pytest.raises(sg.SpirogradRuntimeError, match="init"):
        run(1)


def test_session_options_decide_the_compilation(arch: str) -> None:
    @sg.kernel
    def run(x: float) -> float:
        return x * 0.1

    narrow = run(3.3)
    sg.init(arch=arch, default_fp=sg.f64)
    wide = run(3.3)
    assert wide == 3.3 * 0.1 and narrow != wide and abs(narrow - wide) < 1e-6


def test_long_kernels(arch: str) -> None:
    """Hundreds of operations and dozens of tasks in one kernel."""

    @sg.kernel
    def run(out: INTS, n: sg.i32):
        for k in sg.static(range(30)):
            for i in range(n):
                out[i] = out[i] * 3 + k
        for i in range(n):
            v = out[i]
            for k in sg.static(range(200)):
                v = v * 5 + k - (v >> 3)
            out[i] = v

    out = np.arange(6, dtype=np.int32)
    run(out, 6)

    def wrapped(v: int) -> int:
        return (v + 2**31) % 2**32 - 2**31

    want = []
    for v in range(6):
        for k in range(30):
            v = wrapped(v * 3 + k)
        for k in range(200):
            v = wrapped(v * 5 + k - (v >> 3))
        want.append(v)
    assert out.tolist() == want
