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


@pytest.mark.archs("interpreter")
def test_recursion_that_does_not_end(session: Any) -> None:
    @sg.real_func
    def endless(n: sg.i32) -> sg.i32:
        return endless(n + 1) + 1

    @sg.kernel
    def run() -> sg.i32:
        return endless(0)

    with pytest.raises(sg.SpirogradRuntimeError, match="`endless` calls itself too often"):
        run()


@pytest.mark.archs("vulkan", "wgpu", "amdgpu")
def test_devices_without_a_stack(session: Any) -> None:
    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return fibonacci(n)

    with pytest.raises(sg.errors.SpirogradUnsupportedError, match=r"`fibonacci` calls itself, which .* has no stack for") as caught:
        run(4)
    assert "return fibonacci(n - 1) + fibonacci(n - 2)" in str(caught.value)


def test_what_is_refused(session: Any) -> None:
    x, loss = sg.field(sg.f32, shape=4), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.real_func
    def reads(n: sg.i32) -> sg.f32:
        return x[n] if n < 2 else reads(n - 1)

    @sg.real_func
    def prints(n: sg.i32) -> sg.i32:
        print(n)
        return prints(n - 1)

    @sg.real_func
    def untyped(n: sg.i32):
        return untyped(n - 1)

    @sg.real_func
    def outer(n: sg.i32) -> sg.f32:
        return inner(n)

    @sg.real_func
    def inner(n: sg.i32) -> sg.f32:
        x[n] = 1.0
        return outer(n - 1)

    for function, match in (
        (reads, "`reads` calls itself, and does more than compute"),
        (prints, "`prints` calls itself, and does more than compute"),
        (untyped, "`untyped` calls itself, and does not say of what type its result is"),
        (outer, "calls itself"),
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

    with pytest.raises(sg.errors.SpirogradUnsupportedError, match="`power` calls itself, and has no derivative"):
        differentiated.grad()
