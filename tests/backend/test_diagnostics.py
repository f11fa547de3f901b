"""What kernels say: prints in order, assertions, bounds and overflow checks with their place and values, on every back end."""

import inspect

import numpy as np
import pytest

import spirograd as sg

INTS = sg.types.ndarray(sg.i32, 1)


def line_of(function: object, text: str) -> int:
    """The line of this file, inside the kernel's source, where ``text`` stands."""
    lines, first = inspect.getsourcelines(function.function)  # type: ignore[attr-defined]
    return first + next(k for k, line in enumerate(lines) if text in line)


def test_print(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    sg.init(arch=arch)

    @sg.kernel
    def run(n: sg.i32, x: sg.f32, big: sg.u64, flag: sg.u1):
        print("hello")
        print("n =", n, "x =", x)
        print(f"{n:04d}|{x:.2f}|{n}|{big}|{flag}")
        print(n, x, sep=", ", end="!\n")
        print(1, "two", 3.5, sep="-")
        print()
        print(sg.Vector([n, n + 1]), x > 1)
        print(f"{{{n}}}", n * 2, end="")
        print(" done")
        print(-n, sg.i64(-5), sg.f64(0.1), 1e10)

    run(7, 1.5, 2**63 + 1, True)
    sg.sync()
    want = [
        "hello", "n = 7 x = 1.5", "0007|1.50|7|9223372036854775809|True", "7, 1.5!", "1-two-3.5", "", "[7, 8] True", "{7} 14 done",
        "-7 -5 0.1 10000000000.0",
    ]  # fmt: skip
    assert capfd.readouterr().out.splitlines() == want


def test_prints_of_launches_come_in_order(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    sg.init(arch=arch)

    @sg.kernel
    def first(n: sg.i32):
        print("first", n)

    @sg.kernel
    def second(n: sg.i32):
        print("second", n)
        for i in range(1):
            print("loop", i + n)
        print("after", n)

    want = []
    for n in range(20):
        first(n)
        second(n)
        want += [f"first {n}", f"second {n}", f"loop {n}", f"after {n}"]
    sg.sync()
    assert capfd.readouterr().out.splitlines() == want


def test_prints_of_parallel_iterations(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    sg.init(arch=arch)

    @sg.kernel
    def run():
        for i in range(100):
            if i % 10 == 3:
                print("at", i)

    run()
    sg.sync()
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(f"at {i}" for i in range(3, 100, 10))


def test_static_print(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    sg.init(arch=arch)

    @sg.kernel
    def run(n: sg.i32):
        for k in sg.static(range(2)):
            sg.static_print("compiling", k)

    run(1)
    run(2)
    assert capfd.readouterr().out.splitlines() == ["compiling 0", "compiling 1"]


def fails(launch: object, *words: str) -> None:
    """``launch()`` and a sync raise an assertion error that has the words; afterwards all is well."""
    with pytest.raises(sg.SpirogradAssertionError) as info:
        launch()  # type: ignore[operator]
        sg.sync()
    for word in words:
        assert word in str(info.value), str(info.value)
    sg.sync()


def test_assert(arch: str) -> None:
    sg.init(arch=arch, debug=True)

    @sg.kernel
    def run(n: sg.i32, out: INTS):
        for i in range(8):
            assert i + n < 9, f"i is {i} and n is {n}"
            out[i] = i + n
        assert n != 1

    out = np.zeros(8, np.int32)
    run(0, out)
    sg.sync()
    fails(lambda: run(2, out), "i is 7 and n is 2", f"test_diagnostics.py:{line_of(run, 'assert i + n')}", "run")
    fails(lambda: run(1, out), f"test_diagnostics.py:{line_of(run, 'assert n != 1')}")
    run(-5, out)
    assert out.tolist() == [i - 5 for i in range(8)]


def test_whatever_reads_results_raises_the_fault(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    sg.init(arch=arch, debug=True)
    x, pairs, array = sg.field(sg.i32, 4), sg.Vector.field(2, sg.f32, 3), sg.ndarray(sg.i32, 4)
    given = np.zeros(4, np.int32)

    @sg.kernel
    def run(bad: sg.i32):
        print("run", bad)
        for i in x:
            assert bad == 0 or i < 2
            x[i] = array[i] = i

    @sg.kernel
    def copy(out: INTS):
        for i in range(4):
            out[i] = x[i]

    def dlpack() -> object:
        return np.from_dlpack(x) if x.__dlpack_device__()[0] == 1 else x.to_numpy()

    ways = [lambda: x[0], lambda: pairs[0], lambda: array[0], x.to_numpy, array.to_numpy, lambda: array[1:3].to_numpy(), dlpack]
    for read in [*ways, lambda: copy(given), sg.sync]:

        def both() -> None:
            run(1)
            read()

        with pytest.raises(sg.SpirogradAssertionError):
            both()
        assert capfd.readouterr().out == "run 1\n"
        read()  # it is told once
    run(0)
    copy(given)
    assert given.tolist() == x.to_numpy().tolist() == [0, 1, 2, 3]
    assert capfd.readouterr().out == "run 0\n"


def test_assert_is_off_without_debug(arch: str) -> None:
    sg.init(arch=arch)

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        assert n < 0
        return n

    assert run(3) == 3


def test_assert_in_a_function_names_the_call(arch: str) -> None:
    sg.init(arch=arch, debug=True)

    @sg.func
    def inner(x):
        assert x < 10, "x is too large"
        return x * 2

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return inner(n) + 1

    assert run(3) == 7
    fails(lambda: run(12), "x is too large", f":{line_of(inner, 'assert x')}", f":{line_of(run, 'return inner')}", "in inner", "in run")


def test_first_fault_of_several_launches(arch: str) -> None:
    sg.init(arch=arch, debug=True)

    @sg.kernel
    def run(n: sg.i32):
        assert n != 2, f"n is {n}"

    def all_launches() -> None:
        for n in range(5):
            run(n)
        sg.sync()

    fails(all_launches, "n is 2")
    run(4)
    sg.sync()


def test_bounds(arch: str) -> None:
    sg.init(arch=arch, check_out_of_bound=True)
    x = sg.field(sg.i32, shape=(4, 5), name="x")
    v = sg.Vector.field(3, sg.f32, shape=2)

    @sg.kernel
    def read(i: sg.i32, j: sg.i32) -> sg.i32:
        return x[i, j]

    @sg.kernel
    def write(i: sg.i32, a: INTS):
        a[i] = 5

    @sg.kernel
    def update(i: sg.i32, a: INTS):
        for k in range(3):
            a[i + k] += 1

    @sg.kernel
    def component(i: sg.i32, k: sg.i32) -> sg.f32:
        v[i][k] = 1.0
        return v[i][k]

    a = np.zeros(6, np.int32)
    assert read(3, 4) == 0
    fails(lambda: read(4, 0), "(4, 0)", f":{line_of(read, 'x[i, j]')}", "out of range")
    fails(lambda: read(-1, 2), "(-1, 2)")
    fails(lambda: read(0, 5), "(0, 5)")
    fails(lambda: write(6, a), "(6)", "6)", f":{line_of(write, 'a[i] = 5')}")
    fails(lambda: write(-1, a), "(-1)")
    write(5, a)
    update(3, a)
    assert a.tolist() == [0, 0, 0, 1, 1, 6]
    fails(lambda: update(4, a), "(6)")
    assert a.tolist()[:4] == [0, 0, 0, 1]
    assert component(1, 2) == 1
    fails(lambda: component(0, 3), "3")


def test_constant_index_out_of_range_is_a_compile_error(arch: str) -> None:
    sg.init(arch=arch)
    x = sg.field(sg.i32, shape=4)

    @sg.kernel
    def run() -> sg.i32:
        return x[4]

    with pytest.raises(sg.SpirogradCompilationError, match="out of range"):
        run()


@pytest.mark.parametrize("t", [sg.i32, sg.u32, sg.i64, sg.u64], ids=str)
def test_overflow(arch: str, t: object) -> None:
    sg.init(arch=arch, debug=True)

    @sg.kernel
    def add(a: t, b: t) -> t:
        return a + b

    @sg.kernel
    def sub(a: t, b: t) -> t:
        return a - b

    @sg.kernel
    def mul(a: t, b: t) -> t:
        return a * b

    @sg.kernel
    def shift(a: t, b: t) -> t:
        return a << b

    high, low = int(t.max), int(t.min)  # type: ignore[attr-defined]
    assert add(high - 1, 1) == high and sub(low + 1, 1) == low and mul(high // 3, 3) == high // 3 * 3 and shift(1, 5) == 32
    fails(lambda: add(high, 1), f"{high} + 1", f"does not fit {t}", f":{line_of(add, 'a + b')}")
    fails(lambda: sub(low, 1), f"{low} - 1")
    fails(lambda: mul(high // 2 + 1, 3), "* 3")
    fails(lambda: shift(high, 1), "<< 1")
    if low:
        fails(lambda: mul(low, -1), f"{low} * -1")
        assert add(-5, 2) == -3 and mul(-4, 3) == -12


def test_checks_leave_random_numbers_and_addresses_alone(arch: str) -> None:
    """What the compiler computes itself wraps on purpose, and is not reported."""
    sg.init(arch=arch, debug=True)
    x = sg.field(sg.f32, shape=(50, 3))

    @sg.kernel
    def run() -> sg.f32:
        for i, j in x:
            x[i, j] = sg.random() + sg.cast(sg.random(sg.i32) > 0, sg.f32) + sg.randn() * 0
        for i in range(-2, 40, 3):
            x[i + 2, 0] += 1
        return x[0, 0]

    run()
    sg.sync()
