"""Compile-time evaluation: unrolled loops, chosen branches, constants from outside, and what they are frozen to."""

import numpy as np
import pytest
from backend.twin import run_both

import spirograd as sg

# The front end leaves nothing of it to code generators: the interpreter, which runs what it makes, and one back end with passes.
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("interpreter", "cpu")]
INTS = sg.types.ndarray(sg.i32, 1)


def ints(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


def test_unrolled_loops(arch: str) -> None:
    numbers, words = [3, 1, 4], {"a": 1, "b": 2}

    @sg.kernel
    def run(out: INTS, n: sg.i32):
        for i in sg.static(range(4)):
            out[i] = i * n
        for i in sg.static(range(10, 4, -3)):
            out[i] += 5
        for k, v in sg.static(enumerate(numbers)):
            out[k] += v * 100
        for a, b in sg.static(zip(numbers, [10, 20, 30])):
            out[4] += a * b
        for i, j in sg.static(sg.ndrange(2, (1, 3))):
            out[5] += i * 10 + j
        for name in sg.static(["a", "b"]):
            out[6] += words[name]
        for v in sg.static(numbers):
            out[8] += v
        for _ in sg.static(range(0)):
            out[9] = 1
        for k in sg.static(range(len(numbers))):
            out[9] += numbers[k] * n

    run_both(run, ints(12), 7)


def test_nested_unrolled_loops_with_jumps(arch: str) -> None:
    """`break` and `continue` under compile-time conditions only."""

    @sg.kernel
    def run(out: INTS, n: sg.i32):
        for i in range(3):
            total = 0
            for j in sg.static(range(5)):
                if sg.static(j == 1):
                    continue
                for k in sg.static(range(4)):
                    if sg.static(k > j):
                        break
                    for m in range(k + n):
                        if m == 3:
                            break
                        total += m * 100 + j * 10 + k + i
                if sg.static(j == 3):
                    break
            out[i] = total

    run_both(run, ints(3), 2)


def test_run_time_jump_in_an_unrolled_loop_is_refused(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32, out: INTS):
        for i in sg.static(range(3)):
            if n == i:
                break
            out[i] = 1

    with pytest.raises(sg.SpirogradSyntaxError, match="unrolled loop"):
        run(1, ints(3))


def test_run_time_jump_through_an_unrolled_loop(arch: str) -> None:
    """`break` and `continue` of a run-time loop around an unrolled `if`; `continue` of the outer loop after an unrolled inner one."""

    @sg.kernel
    def run(x: INTS, out: INTS):
        for i in range(x.shape[0]):
            total = 0
            for j in range(6):
                for k in sg.static(range(2)):
                    total += j * (k + 1)
                if x[i] == j:
                    break
                for k in sg.static(range(2)):
                    if x[i] > j + k:
                        total += 100
                    else:
                        total -= 1
                if total > 400:
                    continue
                total += 1000
            out[i] = total

    run_both(run, np.arange(8, dtype=np.int32), ints(8))


def test_static_if(arch: str) -> None:
    def make(mode: str, size: int) -> object:
        @sg.kernel
        def run(n: sg.i32) -> sg.i32:
            r = 0
            if sg.static(mode == "double"):
                r = n * 2
            elif sg.static(mode == "square" and size > 1):
                r = n * n
            else:
                r = -n
            if sg.static(size == 3):
                r += 1000
            return r + (1 if sg.static(size == 1) else nothing_of_that_name)  # noqa: F821

        return run

    assert make("double", 1)(5) == 11  # type: ignore[operator]
    assert make("other", 1)(5) == -4  # type: ignore[operator]
    with pytest.raises(sg.SpirogradNameError, match="nothing_of_that_name"):
        make("square", 3)(5)  # type: ignore[operator]


def test_comprehensions_and_python_objects(arch: str) -> None:
    table = {"x": (1, 2), "y": (3, 4)}

    class Settings:
        scale = 3
        names = ("x", "y")

    @sg.kernel
    def run(n: sg.i32, out: INTS):
        squares = [i * i for i in range(4)]
        for i in sg.static(range(4)):
            out[i] = squares[i]
        scaled = [n * k for k in sg.static(range(3))]
        out[4] = scaled[0] + scaled[1] + scaled[2]
        evens = [i for i in range(10) if i % 2 == 0]
        out[5] = len(evens)
        out[6] = sum([v * Settings.scale for v in evens])
        for name in sg.static(Settings.names):
            out[7] += table[name][0] * 10 + table[name][1]
        pairs = [(i, j) for i in range(2) for j in range(2)]
        for i, j in sg.static(pairs):
            out[8] += i * 2 + j + n
        out[9] = max([1, 5, 2]) + min(3, 4) + len(table)

    run_both(run, 3, ints(10))


def test_objects_that_python_iterates_over_by_index(arch: str) -> None:
    class Levels:
        def __getitem__(self, index: int) -> int:
            return (4, 7, 9)[index]

    levels = Levels()

    @sg.kernel
    def run(out: INTS):
        for i, level in sg.static(enumerate(list(levels))):  # type: ignore[call-overload]
            out[i] = level
        out[3] = len(tuple(levels)) + sum(levels)  # type: ignore[arg-type]

    run_both(run, ints(4))


def test_unrolled_loops_over_run_time_entries(arch: str) -> None:
    """The number of entries is known; their values need not be."""

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        items = [n * j for j in range(4)]
        total = 0
        for item in sg.static(items):
            total = total * 3 + item
        for k, item in sg.static(enumerate(sg.Vector([n, n + 1]))):
            total += k * item
        return total

    assert run(2) == ((2 * 3) + 4) * 3 + 6 + 3


def test_constants_are_frozen(arch: str) -> None:
    """Globals and closures are read when a kernel is compiled; later changes are not seen."""
    factor = 3

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return n * factor

    assert run(2) == 6
    factor = 10
    assert run(2) == 6


def test_template_arguments(arch: str) -> None:
    """A kernel is compiled for each value of its template arguments."""
    a, b = sg.field(sg.i32, shape=4), sg.field(sg.f32, shape=(2, 2))

    @sg.kernel
    def run(x: sg.template(), k: sg.template(), name: sg.Template) -> sg.f32:
        total = 0.0
        for index in sg.grouped(x):
            x[index] += k
        for _ in range(1):
            for index in sg.grouped(x):
                total += x[index]
        if sg.static(name == "negative"):
            total = -total
        return total

    assert run(a, 1, "") == 4
    assert run(b, 2.5, "") == 10
    assert run(a, 2, "negative") == -12
    assert run(a, 1, "") == 16


def test_static_assert(arch: str) -> None:
    @sg.kernel
    def run(k: sg.template()):
        sg.static_assert(k > 2, "k is too small")

    run(3)
    with pytest.raises(sg.SpirogradCompilationError, match="k is too small"):
        run(1)


def test_static_of_a_run_time_value_is_refused(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32, out: INTS):
        for i in sg.static(range(n)):
            out[i] = 1

    with pytest.raises(sg.SpirogradCompilationError, match="known while compiling"):
        run(3, ints(3))


def test_shapes_of_fields_are_constants(arch: str) -> None:
    x = sg.field(sg.i32, shape=(3, 5))

    @sg.kernel
    def run(out: INTS):
        for i in sg.static(range(x.shape[0])):
            out[i] = x.shape[1] * 10 + i
        if sg.static(len(x.shape) == 2):
            out[3] = 1

    out = ints(4)
    run(out)
    assert out.tolist() == [50, 51, 52, 1]
