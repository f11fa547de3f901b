"""`@real_func`s that call themselves, directly or by way of others, beside the same functions in Python."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import spirograd as sg

stacked = pytest.mark.archs("interpreter", "cpu", "cuda")
VEC3 = sg.types.vector(3, sg.f32)


@sg.real_func
def fibonacci(n: sg.i32) -> sg.i32:
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


@sg.real_func
def even(n: sg.i64) -> sg.i32:
    result = 1
    if n > 0:
        result = odd(n - 1)
    return result


@sg.real_func
def odd(n: sg.i64) -> sg.i32:
    result = 0
    if n > 0:
        result = even(n - 1)
    return result


@sg.real_func
def partitions(n: sg.i32, most: sg.i32) -> sg.i32:
    """In how many ways n is a sum of numbers up to ``most``."""
    if n == 0:
        return 1
    count = 0
    for k in range(1, sg.min(n, most) + 1):
        count += partitions(n - k, k)
    return count


@sg.real_func
def ackermann(m: sg.i32, n: sg.i32) -> sg.i32:
    if m == 0:
        return n + 1
    if n == 0:
        return ackermann(m - 1, 1)
    return ackermann(m - 1, ackermann(m, n - 1))


@sg.real_func
def spread(v: VEC3, n: sg.i32) -> tuple[VEC3, sg.i32]:
    if n == 0:
        return v, 1
    left, a = spread(2.0 * v, n - 1)
    right, b = spread(v + 1.0, n - 1)
    return left + right, a + b + 1


@functools.cache
def partitions_(n: int, most: int) -> int:
    return 1 if n == 0 else sum(partitions_(n - k, k) for k in range(1, min(n, most) + 1))


def fibonacci_(n: int) -> int:
    return n if n < 2 else fibonacci_(n - 1) + fibonacci_(n - 2)


def spread_(v: np.ndarray, n: int) -> tuple[np.ndarray, int]:
    if n == 0:
        return v, 1
    (left, a), (right, b) = spread_(2 * v, n - 1), spread_(v + 1, n - 1)
    return left + right, a + b + 1


@stacked
def test_in_parallel_and_serial_loops(session: Any) -> None:
    x, y, z = (sg.field(sg.i32, shape=19) for _ in range(3))

    @sg.kernel
    def run(shift: sg.i32):
        for i in x:
            x[i] = fibonacci((i + shift) % 15)
            if i % 3 == 0:
                y[i] = partitions(i + shift, i) + even(i) * 1000
            for k in range(i % 4):
                z[i] += fibonacci(k + 3)

    for shift in (0, 2):
        z.fill(0)
        run(shift)
        assert x.to_numpy().tolist() == [fibonacci_((i + shift) % 15) for i in range(19)]
        assert y.to_numpy()[::3].tolist() == [partitions_(i + shift, i) + (i % 2 == 0) * 1000 for i in range(0, 19, 3)]
        assert z.to_numpy().tolist() == [sum(fibonacci_(k + 3) for k in range(i % 4)) for i in range(19)]


@stacked
@pytest.mark.parametrize("dtype", [sg.f32, sg.f64], ids=str)
def test_floats(session: Any, dtype: Any) -> None:
    @sg.real_func
    def power(x: dtype, n: sg.i32) -> dtype:
        if n == 0:
            return 1.0
        half = power(x, n // 2)
        return half * half * (x if n % 2 == 1 else dtype(1.0))

    x = sg.field(dtype, shape=33)

    @sg.kernel
    def run():
        for i in x:
            x[i] = power(x[i], i)

    values = np.linspace(0.9, 1.1, 33).astype(dtype.np)
    x.from_numpy(values)
    run()
    np.testing.assert_allclose(x.to_numpy(), values ** np.arange(33), rtol=40 * np.finfo(dtype.np).eps)


@stacked
def test_vectors_several_results_and_mutual_recursion(session: Any) -> None:
    @sg.kernel
    def run(v: VEC3, n: sg.i32) -> tuple[VEC3, sg.i32, sg.i32, sg.i32]:
        total, calls = spread(v, n)
        return total, calls, ackermann(2, n), even(n) * 10 + odd(n + 2)

    for n in (0, 1, 5):
        total, calls, a, parity = run(VEC3(1, 2, 3), n)
        want, count = spread_(np.array([1.0, 2, 3]), n)
        assert total.to_list() == want.tolist() and (calls, a, parity) == (count, 2 * n + 3, (n % 2 == 0) * 10 + n % 2)


@stacked
def test_debug_mode(arch: str) -> None:
    sg.init(arch=arch, debug=True)
    x = sg.field(sg.i32, shape=9)

    @sg.kernel
    def run(n: sg.i32):
        for i in range(n):
            x[i] = fibonacci(i)

    run(9)
    assert x.to_numpy().tolist() == [fibonacci_(i) for i in range(9)]
    with pytest.raises(sg.SpirogradAssertionError, match="out of range"):
        run(10)
        sg.sync()


@stacked
def test_recursion_that_does_not_end(session: Any) -> None:
    x = sg.field(sg.i32, shape=5)

    @sg.real_func
    def endless(n: sg.i32) -> sg.i32:
        return endless(n + 1) + 1

    @sg.real_func
    def branching(n: sg.i32) -> sg.i32:
        return branching(n + 1) + branching(n - 1)

    @sg.real_func
    def storing(n: sg.i32):
        x[n % 5] += 1
        storing(n + 1)

    @sg.kernel
    def run(f: sg.template()):
        for i in x:
            f(i)
            x[i] = 7

    @sg.kernel
    def fine(n: sg.i32) -> sg.i32:
        return fibonacci(n)

    for function in (endless, branching, storing):
        name = function.__name__
        with pytest.raises(sg.SpirogradRuntimeError, match=f"`{name}` recurses too deeply: the stack has no room") as caught:
            run(function)
            sg.sync()
        assert f"{name}(n + 1)" in str(caught.value)
        assert fine(10) == 55


@stacked
def test_as_deep_as_it_should(session: Any) -> None:
    depth = {"interpreter": 1000, "cpu": 20_000, "cuda": 100}[session.device.caps.target_name]

    @sg.real_func
    def count(n: sg.i32) -> sg.i32:
        return 0 if n == 0 else count(n - 1) + 1

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return count(n)

    assert [run(n) for n in (0, 1, depth)] == [0, 1, depth]


@pytest.mark.archs("vulkan", "wgpu", "amdgpu")
def test_devices_without_a_stack(session: Any) -> None:
    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return fibonacci(n)

    with pytest.raises(sg.errors.SpirogradUnsupportedError, match=r"`fibonacci` calls itself, but .* has no call stack") as caught:
        run(4)
    assert "return fibonacci(n - 1) + fibonacci(n - 2)" in str(caught.value)


@stacked
@pytest.mark.parametrize("dtype", [sg.i32, sg.i64, sg.f32, sg.f64], ids=str)
def test_memory(session: Any, dtype: Any) -> None:
    """A tree in fields, with numbers added up along it; an array is sorted by quicksort."""
    left, right = sg.field(sg.i32, shape=31), sg.field(sg.i32, shape=31)
    value, below = sg.field(dtype, shape=31), sg.field(dtype, shape=31)
    visits = sg.field(sg.i32, shape=())

    @sg.real_func
    def total(node: sg.i32) -> dtype:
        result = dtype(0)
        if node >= 0:
            visits[None] += 1
            result = value[node] + total(left[node]) + total(right[node])
            below[node] = result
        return result

    @sg.real_func
    def quicksort(a: sg.types.ndarray(dtype, 1), first: sg.i32, last: sg.i32):
        if first < last:
            pivot, i = a[last], first
            for k in range(first, last):
                if a[k] < pivot:
                    a[k], a[i] = a[i], a[k]
                    i += 1
            a[last], a[i] = a[i], a[last]
            quicksort(a, first, i - 1)
            quicksort(a, i + 1, last)

    @sg.kernel
    def run(root: sg.i32) -> dtype:
        return total(root)

    @sg.kernel
    def sort(a: sg.types.ndarray(dtype, 1)):
        for _ in range(1):
            quicksort(a, 0, a.shape[0] - 1)

    @sg.kernel
    def sort_at_the_top(a: sg.types.ndarray(dtype, 1)):
        quicksort(a, 0, a.shape[0] - 1)

    rng = np.random.default_rng(3)
    numbers = rng.integers(-9, 9, 31).astype(dtype.np)
    children = np.arange(31)
    left.from_numpy(np.where(2 * children + 1 < 31, 2 * children + 1, -1).astype(np.int32))
    right.from_numpy(np.where(2 * children + 2 < 31, 2 * children + 2, -1).astype(np.int32))
    for count in (0, 1):
        value.from_numpy(numbers + count)
        sums = (numbers + count).copy()
        for node in range(14, -1, -1):
            sums[node] += sums[2 * node + 1] + sums[2 * node + 2]
        assert run(0) == sums[0]
        assert below.to_numpy().tolist() == sums.tolist() and visits[None] == 31 * (count + 1)
    assert run(-1) == 0
    for size in (0, 1, 2, 37):
        for kernel in (sort, sort_at_the_top):
            array = rng.integers(-50, 50, size).astype(dtype.np)
            kernel(sorted_ := array.copy())
            assert sorted_.tolist() == sorted(array.tolist())


@stacked
def test_mutual_recursion_with_memory(session: Any) -> None:
    """Functions that store, and are called on the way to themselves; from several threads."""
    path, mask = sg.field(sg.i32, shape=(9, 12)), sg.field(sg.u1, shape=12)

    @sg.real_func
    def down(row: sg.i32, n: sg.i32):
        path[row, n] += 1
        if n > 1:
            jump(row, n - 2)

    @sg.real_func
    def jump(row: sg.i32, n: sg.i32):
        path[row, n] += 10
        mask[n] = True
        if n > 0:
            down(row, n - 1)

    @sg.kernel
    def run():
        for row in range(9):
            down(row, row + 3)

    run()
    want, seen = np.zeros((9, 12), np.int32), np.zeros(12, bool)
    for row in range(9):
        n, added = row + 3, 1
        while True:
            want[row, n] += added
            seen[n] |= added == 10
            if n <= (1 if added == 1 else 0):
                break
            n, added = n - (2 if added == 1 else 1), 11 - added
    assert path.to_numpy().tolist() == want.tolist() and mask.to_numpy().tolist() == seen.tolist()


@stacked
def test_checks_and_prints(arch: str, capfd: Any) -> None:
    """Debug mode checks what functions do that call themselves; they print and assert."""
    sg.init(arch=arch, debug=True)
    x = sg.field(sg.i32, shape=4)

    @sg.real_func
    def back(n: sg.i32) -> sg.i32:
        return x[n] + back(n - 1)

    @sg.real_func
    def factorial(n: sg.i32) -> sg.i32:
        return 1 if n < 2 else n * factorial(n - 1)

    @sg.real_func
    def hanoi(n: sg.i32, a: sg.i32, b: sg.i32, c: sg.i32):
        assert n < 4, f"{n} discs"
        if n > 0:
            hanoi(n - 1, a, c, b)
            print(n, a, c)
            hanoi(n - 1, b, a, c)

    @sg.kernel
    def run(f: sg.template(), n: sg.i32) -> sg.i32:
        return f(n)

    @sg.kernel
    def play(n: sg.i32):
        hanoi(n, 0, 1, 2)

    play(2)
    sg.sync()
    assert capfd.readouterr().out == "1 0 1\n2 0 2\n1 1 2\n"
    assert run(factorial, 12) == 479001600
    for call, match in (
        (lambda: run(back, 2), r"index \(-1\) out of range of field `x`"),
        (lambda: run(factorial, 13), "does not fit i32"),
        (lambda: play(4), "4 discs"),
    ):
        with pytest.raises(sg.SpirogradAssertionError, match=match):
            call()
            sg.sync()


def test_what_is_refused(session: Any) -> None:
    x, loss = sg.field(sg.f32, shape=4, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.real_func
    def draws(n: sg.i32) -> sg.f32:
        return draws(n - 1) + sg.random(sg.f32)

    @sg.real_func
    def changes(n: sg.ref(sg.i32)) -> sg.f32:
        n -= 1
        return changes(n)

    @sg.real_func
    def untyped(n: sg.i32):
        return untyped(n - 1)

    for function, match in (
        (draws, "`draws` calls itself, and does what only functions can that are inlined"),
        (untyped, "`untyped` calls itself, and does not say of what type its result is"),
    ):

        @sg.kernel
        def run(f: sg.template()) -> sg.f32:
            return f(3)

        with pytest.raises(sg.SpirogradSyntaxError, match=match):
            run(function)

    @sg.real_func
    def power(v: sg.f32, n: sg.i32) -> sg.f32:
        return v if n == 1 else v * power(v, n - 1)

    @sg.kernel
    def differentiated():
        loss[None] += power(loss[None], 3)

    @sg.real_func
    def tail(n: sg.i32) -> sg.f32:
        return 0.0 if n == 4 else x[n] + tail(n + 1)

    @sg.kernel
    def summed():
        loss[None] += tail(0)

    for kernel, name in ((differentiated, "power"), (summed, "tail")):
        with pytest.raises(
            sg.errors.SpirogradUnsupportedError, match=f"`{name}` calls itself; recursive functions have no derivative"
        ) as caught:
            kernel.grad()
        assert name + "(" in str(caught.value)
