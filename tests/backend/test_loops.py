"""`for` over ranges: in parallel and in order, options, dependences; tasks in a row. Python is the reference."""

import itertools

import numpy as np
import pytest
from backend.twin import run_both

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
INTS = sg.types.ndarray(sg.i32, 1)
PLANE = sg.types.ndarray(sg.i32, 2)

UPWARDS = [(0, 0, 1), (0, 1, 1), (0, 7, 1), (3, 9, 1), (5, 2, 1), (-4, 3, 1), (0, 10, 3), (1, 10, 4), (2, 3, 7)]
RANGES = [*UPWARDS, (9, 0, -1), (10, -3, -4), (0, 5, -1)]


def ints(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


def test_range_of_one_argument(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32, out: INTS):
        for i in range(n):
            out[i] += i * 3 + 1
        for i in range(5):
            out[i] += 100
        for i in range(0):
            out[i] = -1

    for n in (0, 1, 2, 9):
        run_both(run, n, ints(10))
    many = ints(100000)
    run_both(run, 100000, many)


def test_parallel_ranges(arch: str) -> None:
    @sg.kernel
    def two(a: sg.i32, b: sg.i32, out: INTS):
        for i in range(a, b):
            out[i + 10] += i + 100

    @sg.kernel
    def three(a: sg.i32, b: sg.i32, s: sg.i32, out: INTS):
        for i in range(a, b, s):
            out[i + 10] += i + 100

    for a, b, s in RANGES:
        if s == 1:
            run_both(two, a, b, ints(24))
        run_both(three, a, b, s, ints(24))


def test_constant_steps(arch: str) -> None:
    @sg.kernel
    def run(a: sg.i32, b: sg.i32, out: INTS):
        for i in range(a, b, 3):
            out[i + 10] += 1
        for i in range(b, a, -2):
            out[i + 10] += 10
        for i in range(7, -8, -5):
            out[i + 10] += 100

    for a, b in [(0, 0), (0, 1), (-3, 10), (10, -3), (2, 8)]:
        run_both(run, a, b, ints(24))


def test_inner_ranges(arch: str) -> None:
    @sg.kernel
    def run(bounds: PLANE, out: INTS):
        for k in range(bounds.shape[0]):
            total = 0
            for i in range(bounds[k, 0], bounds[k, 1], bounds[k, 2]):
                total = total * 3 + i + 20
            for i in range(bounds[k, 0], bounds[k, 1]):
                total += i * 7
            for i in range(bounds[k, 1], bounds[k, 0], -2):
                total -= i
            for i in range(bounds[k, 1]):
                total += 1
                if i == 4:
                    break
            out[k] = total

    run_both(run, np.array(RANGES, np.int32), ints(len(RANGES)))


def test_bounds_from_memory_and_computed(arch: str) -> None:
    n = sg.field(sg.i32, shape=())
    sizes = sg.field(sg.i32, shape=3)

    @sg.kernel
    def run(m: sg.i32, out: INTS):
        n[None] += 1
        for i in range(n[None]):
            out[i] += 1
        for i in range(sizes[1], sizes[2] * 2 + m):
            out[i] += 10
        k = m * 2
        for i in range(k - 1):
            out[i] += 100
        for i in range(max(m, 2)):
            out[i] += 1000

    for start, m in [(0, 1), (4, 3)]:
        n[None] = start
        sizes.from_numpy(np.array([0, 1, 2], np.int32))
        out = ints(12)
        run(m, out)
        want = ints(12)
        want[: start + 1] += 1
        want[1 : 4 + m] += 10
        want[: 2 * m - 1] += 100
        want[: max(m, 2)] += 1000
        np.testing.assert_array_equal(out, want)


def test_wide_ranges(arch: str) -> None:
    """64-bit bounds, beyond 32 bits."""

    @sg.kernel
    def run(a: sg.i64, b: sg.i64, u: sg.u32, out: sg.types.ndarray(sg.i64, 1)):
        for i in range(a, b):
            out[i - a] = i
        for _ in range(1):
            for i in range(b, a, -1):
                out[8] += i
            for i in range(u, u + 2):
                out[9] += i

    a = 2**40
    out = np.zeros(10, np.int64)
    run(a, a + 5, 3000000000, out)
    assert out.tolist() == [*range(a, a + 5), 0, 0, 0, sum(range(a + 1, a + 6)), 6000000001]


def test_serialized_loops(arch: str) -> None:
    """In order, `break` allowed, variables carried; also over index spaces and fields."""
    x = sg.field(sg.i32, shape=(2, 3))

    @sg.kernel
    def run(n: sg.i32, out: INTS) -> sg.i32:
        last = 1
        sg.loop_config(serialize=True)
        for i in range(n):
            last = last * 2 + i
            if last > 200:
                break
            out[i] = last
        sg.loop_config(serialize=True)
        for i, j in sg.ndrange(2, 3):
            last = last * 3 + i - j
        sg.loop_config(serialize=True)
        for i, j in x:
            last = last + i * 10 + j * last % 7
        for i in range(3):
            out[i + 9] = last + i
        return last

    def reference(n: int) -> tuple[list[int], int]:
        out, last = [0] * 12, 1
        for i in range(n):
            last = last * 2 + i
            if last > 200:
                break
            out[i] = last
        for i, j in itertools.product(range(2), range(3)):
            last = last * 3 + i - j
        for i, j in itertools.product(range(2), range(3)):
            last = last + i * 10 + j * last % 7
        out[9:] = [last, last + 1, last + 2]
        return out, last

    for n in (0, 1, 4, 9):
        out = ints(12)
        want, last = reference(n)
        assert run(n, out) == last
        assert out.tolist() == want


def test_tasks_and_statements_interleaved(arch: str) -> None:
    """Values computed between parallel loops cross into later ones; each loop sees all that came before."""

    @sg.kernel
    def run(n: sg.i32, out: INTS) -> sg.i32:
        a = n * 2
        for i in range(n):
            out[i] = a + i
        b = out[0] + out[n - 1]
        out[n] = b
        for i in range(n):
            out[i] += b * a
        if b > 10:
            a = 5
        else:
            a += 1
        for i in range(n + 1):
            out[i] = out[i] * a + (b if i % 2 == 0 else -b)
        total = 0
        for i in range(n):
            total += out[i]
        c = total + a
        for i in range(2):
            out[n + 1 + i] = c * (i + 1)
        return c

    for n in (1, 2, 5, 40):
        run_both(run, n, ints(n + 4))


def test_vector_values_cross_tasks(arch: str) -> None:
    @sg.kernel
    def run(x: sg.f32, out: sg.types.ndarray(sg.f32, 1)):
        v = sg.Vector([x, x + 1, x * 2])
        m = sg.Matrix([[1.0, x], [0.0, 2.0]])
        for i in range(3):
            out[i] = v[i]
        v = v * 2 + m[0, 1]
        for i in range(4):
            out[3 + i] = m[i // 2, i % 2]
        for i in range(3):
            out[7 + i] = v[i]

    out = np.zeros(10, np.float32)
    run(1.5, out)
    v = np.array([1.5, 2.5, 3.0])
    np.testing.assert_allclose(out, [*v, 1, 1.5, 0, 2, *(v * 2 + 1.5)])


def test_loop_variables_do_not_leak(arch: str) -> None:
    """The name of a loop's index is the loop's own, and free afterwards. (Where a variable outside has that name and is read afterwards,
    Python would find the last index in it, so that is an error: tests/errors/cases/names.txt.)"""

    @sg.kernel
    def run(out: INTS):
        i = 42
        out[3] = i
        for i in range(3):
            out[i] = i
        i = 6
        out[5] = 2 * i
        for k in range(1):
            j = 7
            out[6] = j
            for j in range(4):
                out[4] += j

    out = ints(7)
    run(out)
    assert out.tolist() == [0, 1, 2, 42, 6, 12, 7]


def test_changing_the_index_changes_nothing(arch: str) -> None:
    @sg.kernel
    def run(out: INTS):
        for k in range(1):
            for i in range(5):
                out[i] += 1
                i = i + 3
                out[i % 8] += 10

    run_both(run, ints(8))


def test_break_of_a_parallel_loop_is_refused(arch: str) -> None:
    @sg.kernel
    def run(out: INTS):
        for i in range(5):
            if i == 3:
                break
            out[i] = 1

    with pytest.raises(sg.SpirogradSyntaxError, match="parallel loop"):
        run(ints(5))


def test_continue_in_parallel_loops(arch: str) -> None:
    x = sg.field(sg.i32, shape=(4, 4))

    @sg.kernel
    def run(out: INTS):
        for i in range(10):
            if i % 3 == 0:
                continue
            out[i] = i
            if i > 6:
                continue
            out[i] += 100
        for i, j in x:
            if i < j:
                continue
            x[i, j] = i + j
        for i, j in sg.ndrange(4, 4):
            if x[i, j] == 0:
                continue
            x[i, j] *= 2

    out = ints(10)
    run(out)
    assert out.tolist() == [0 if i % 3 == 0 else i if i > 6 else i + 100 for i in range(10)]
    i, j = np.indices((4, 4))
    np.testing.assert_array_equal(x.to_numpy(), np.where(i < j, 0, 2 * (i + j)))


def test_deep_nests(arch: str) -> None:
    @sg.kernel
    def run(out: INTS, n: sg.i32):
        for a in range(3):
            total = 0
            for b in range(a + n):
                for c in range(b):
                    d = c
                    while d < b:
                        for e in range(d, b):
                            if e == 4:
                                break
                            if (e + a) % 2 == 0:
                                continue
                            total += a + b * c + d - e
                        d += 1
                        if total > 5000:
                            break
            out[a] = total

    run_both(run, ints(3), 4)


def test_loop_options_are_accepted(arch: str) -> None:
    @sg.kernel
    def run(out: INTS):
        sg.loop_config(block_dim=64, name="first")
        for i in range(100):
            out[i] = i
        sg.loop_config(parallelize=2)
        for i in range(100):
            out[i] += 1

    out = ints(100)
    run(out)
    np.testing.assert_array_equal(out, np.arange(100) + 1)


def test_variables_of_the_kernel_in_parallel_loops(arch: str) -> None:
    """One that each iteration assigns before it reads is its own, also where it is updated, and used by later loops."""

    @sg.kernel
    def run(n: sg.i32, y: INTS, z: INTS) -> sg.i32:
        t = 0
        s = 0
        count = 0
        for i in range(n):
            t = i * 2
            y[i] = t + 1
        for i in range(n):
            s = 0
            for j in range(4):
                s += i * j
            if s % 4 == 0:
                t = s
            else:
                t = -s
            z[i] = t
            count += 1
        for i in range(n):
            count += 1
        for i in range(n):
            count = 5
            y[i] += count
        return count

    n = 3000
    y, z = ints(n), ints(n)
    assert run(n, y, z) == 5
    i = np.arange(n)
    np.testing.assert_array_equal(y, i * 2 + 6)
    np.testing.assert_array_equal(z, np.where(i * 6 % 4 == 0, i * 6, -i * 6))


def test_loops_whose_iterations_depend_on_each_other(arch: str, caplog: pytest.LogCaptureFixture) -> None:
    """They run in order, and a warning says so and why."""

    @sg.kernel
    def recurrence(n: sg.i32, out: INTS) -> sg.i32:
        a, b = 0, 1
        for i in range(n):
            out[i] = a
            a, b = b, (a + b) % 1000
        return a

    @sg.kernel
    def last(out: INTS) -> sg.i32:
        t = -1
        for i in out:
            t = out[i] * 2
            out[i] = t
        return t

    @sg.kernel
    def found(out: INTS, v: sg.i32) -> sg.i32:
        hit = 0
        for i in out:
            if out[i] == v:
                hit = 1
        return hit

    for n in (0, 1, 7, 2000):
        run_both(recurrence, n, ints(2000))
    assert "runs in order" in caplog.text and "`a`" in caplog.text and "test_loops.py" in caplog.text
    assert last(np.arange(100, dtype=np.int32)) == 198
    caplog.clear()
    assert found(np.arange(500, dtype=np.int32), 77) == 1
    assert found(np.arange(500, dtype=np.int32), 777) == 0
    assert not caplog.text


def test_loops_of_functions_called_by_a_kernel(arch: str) -> None:
    """They are parallel where they can be; a function may leave its loop early."""
    x = sg.field(sg.i32, shape=100)

    @sg.func
    def fill(v):
        for i in x:
            x[i] = v + i

    @sg.func
    def first_square_above(n):
        for i in range(1000):
            if i * i > n:
                return i
        return -1

    @sg.func
    def count_to(n):
        c = 0
        for i in range(n):
            if i == 5:
                break
            c = c * 2 + 1
        return c

    @sg.func
    def total(t: sg.template()):
        for i in x:
            t += x[i]

    @sg.kernel
    def run(n: sg.i32, out: INTS):
        fill(n)
        t = 1
        total(t)
        out[0] = t
        out[1] = first_square_above(n)
        out[2] = count_to(n)

    for n in (0, 3, 50):
        out = ints(3)
        run(n, out)
        assert out.tolist() == [1 + sum(n + i for i in range(100)), int(n**0.5) + 1, 2 ** min(n, 5) - 1]


@pytest.mark.archs("cpu", "vulkan")
def test_many_iterations_with_long_inner_loops(arch: str) -> None:
    """lavapipe silently ends all loops of an invocation after 65,535 iterations: a task with inner loops must not stride far."""
    n = 1 << 16
    x = sg.field(sg.i32, shape=n)
    few = sg.field(sg.i32, shape=2560)
    length = sg.field(sg.i32, shape=())

    @sg.kernel
    def run(m: sg.i32):
        sg.loop_config(block_dim=1)
        for i in few:
            s = 0
            for k in range(m):
                s += k & 1
            few[i] = s

    @sg.kernel
    def by_field(m: sg.i32):
        for i in range(length[None]):
            s = 0
            while s < m:
                s += 1
            x[i] += s

    run(10000)
    length[None] = n
    by_field(4200)
    assert np.unique(few.to_numpy()).tolist() == [5000]
    assert np.unique(x.to_numpy()).tolist() == [4200]


def test_an_index_may_have_the_name_of_a_variable_that_is_not_read_afterwards(session):
    @sg.kernel
    def count(n: sg.i32) -> sg.i32:
        s = 0
        i = 0
        while i < n:
            i += 1
            s += i
        for i in range(n):
            s += 10 * i
        for _ in range(1):
            for i in range(2):
                s += 100 * i
            i = n
            s += 1000 * i
        return s

    assert count(4) == 10 + 10 * 6 + 100 + 4000


def test_an_index_may_have_the_name_of_a_variable_that_other_paths_read(session):
    """After a loop control may leave the function, and comprehensions have variables of their own."""

    @sg.func
    def counted(n):
        s = 0
        i = 7
        if n == 1:
            for i in range(3):
                s += i
            return s
        for k in range(n):
            i = k
            if k == 1:
                for i in range(3):
                    s += 10 * i
                continue
            s += i
        for i in range(n):
            s += 100 * i
        v = sg.Vector([i * 1000 for i in range(3)])
        s += v[2] + (i := 10_000)
        return s + i

    @sg.kernel
    def count(n: sg.i32) -> sg.i32:
        s = 0
        for _ in range(1):
            s = counted(n)
        return s

    assert count(1) == 3
    assert count(3) == 30 + (0 + 2) + 300 + 2000 + 20_000
