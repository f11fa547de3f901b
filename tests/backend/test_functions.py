"""Functions that are inlined, methods, and what kernels return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend.twin import run_both

import spirograd as sg
from spirograd.base import dtypes
from spirograd.base.dtypes import DType

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
INTS = sg.types.ndarray(sg.i32, 1)


def ints(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


@sg.func
def classify(a, limit):
    if a < 0:
        return -1
    if a == 0:
        return 0
    elif a > limit:
        if a > 2 * limit:
            return 3
        return 2
    return 1


@sg.func
def first_multiple(n, begin, end):
    for i in range(begin, end):
        if i % n == 0:
            return i
    return -1


@sg.func
def search(target, n):
    """Returns from two loops deep."""
    tries = 0
    for i in range(n):
        j = 0
        while j < n:
            tries += 1
            if i * j == target:
                return i * 1000 + j + tries * 1000000
            j += 1
            if i + j > 9:
                break
    return -tries


def test_early_returns(arch: str) -> None:
    @sg.kernel
    def run(x: INTS, out: INTS):
        for i in range(x.shape[0]):
            out[3 * i] = classify(x[i], 4) + 10 * classify(x[i] - 3, 2)
            out[3 * i + 1] = first_multiple(7, x[i], x[i] + 5)
            out[3 * i + 2] = search(x[i], 8)

    x = np.arange(-3, 20, dtype=np.int32)
    out = ints(3 * len(x))
    run(x, out)
    for i, v in enumerate(x.tolist()):
        want = classify.function(v, 4) + 10 * classify.function(v - 3, 2)
        assert out[3 * i : 3 * i + 3].tolist() == [want, first_multiple.function(7, v, v + 5), search.function(v, 8)], v


def test_returns_in_branches_of_loops(arch: str) -> None:
    @sg.func
    def walk(n):
        x = n
        while True:
            if x % 2 == 0:
                x = x // 2
                if x < 3:
                    return x + 100
            else:
                x = x - 1
                if x <= 0:
                    return -x
            if x == 6:
                break
        return x * 1000

    @sg.kernel
    def run(x: INTS, out: INTS):
        for i in range(x.shape[0]):
            r = walk(x[i])
            if r > 0:
                out[i] = r + walk(i + 1)

    x = np.arange(1, 30, dtype=np.int32)
    out = ints(29)
    run(x, out)
    f = walk.function
    assert out.tolist() == [f(v) + f(i + 1) if f(v) > 0 else 0 for i, v in enumerate(x.tolist())]


def test_several_values(arch: str) -> None:
    """Functions may return tuples, nested ones too, from any of their `return` statements."""

    @sg.func
    def divide(a, b):
        return a // b, a % b

    @sg.func
    def sort(a, b, x):
        if a <= b:
            return a, (b, sg.Vector([x, 1.0]))
        return b, (a, sg.Vector([2.0, x]))

    @sg.func
    def find(n):
        for i in range(10):
            for j in range(10):
                if i * j == n:
                    return i, j
        return -1, -1

    @sg.kernel
    def run(x: INTS, out: INTS):
        for i in range(x.shape[0]):
            q, r = divide(x[i], 7)
            low, (high, v) = sort(q, r, 5.0)
            v[0] += 1
            a, b = find(x[i])
            out[i] = low + high * 10 + v[0] * 100 + a * 10000 + b * 1000000

    x = np.arange(0, 60, dtype=np.int32)
    out = ints(60)
    run(x, out)
    for k in range(60):
        q, r = divmod(k, 7)
        a, b = find.function(k)
        assert out[k] == min(q, r) + max(q, r) * 10 + (6 if q <= r else 3) * 100 + a * 10000 + b * 1000000


def test_default_and_keyword_arguments(arch: str) -> None:
    @sg.func
    def f(a, b: sg.f32 = 2, *, c=10):
        return a * 100 + b * 10 + c

    @sg.kernel
    def run(n: sg.i32, scale: sg.f32 = 1.0, offset: sg.i32 = 0) -> sg.f32:
        return (f(n) + f(n, 3) + f(b=1, a=n) + f(n, c=1)) * scale + offset

    want = (320 + 330 + 310 + 310 + 11) + 0
    total = (3 * 100 + 20 + 10) + (300 + 30 + 10) + (300 + 10 + 10) + (300 + 20 + 1)
    assert want and run(3) == total
    assert run(3, 2.0) == total * 2
    assert run(offset=5, n=3) == total + 5
    assert run(3, offset=1, scale=0.5) == total * 0.5 + 1


def test_annotations_of_functions_convert(arch: str) -> None:
    @sg.func
    def half(x: sg.i32) -> sg.f32:
        return x / 2

    @sg.func
    def whole(x: float) -> sg.i32:
        return x

    @sg.kernel
    def run(a: sg.f32) -> sg.f32:
        return half(a) + whole(a) * 100

    assert run(3.9) == 301.5


def test_arguments_are_copies(arch: str) -> None:
    @sg.func
    def change(a, v):
        a += 10
        v[0] = 99
        return a + v[0]

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        x = n
        v = sg.Vector([1, 2])
        r = change(x, v)
        return r * 10000 + x * 100 + v[0]

    assert run(5) == (15 + 99) * 10000 + 501


def test_template_arguments_are_references(arch: str) -> None:
    x = sg.field(sg.i32, shape=4)

    @sg.func
    def bump(v: sg.template(), by):
        v += by
        v *= 2

    @sg.func
    def swap(a: sg.template(), b: sg.template()):
        a, b = b, a

    @sg.func
    def twice(v: sg.template()):
        for _ in range(2):
            bump(v, 1)

    @sg.func
    def fill(f: sg.template(), value):
        for i in range(4):
            f[i] = value + i

    @sg.kernel
    def run(n: sg.i32, out: INTS):
        a, b = n, 7
        bump(a, 3)
        out[0] = a
        swap(a, b)
        out[1] = a
        out[2] = b
        for _ in range(1):
            c = 1
            for k in range(n):
                bump(c, k)
                if c > 10:
                    twice(c)
            out[3] = c
        v = sg.Vector([1, 2])
        bump(v[1], 5)
        out[4] = v[1]
        fill(x, n)
        bump(x[2], 1)

    out = ints(5)
    run(4, out)
    c = 1
    for k in range(4):
        c = (c + k) * 2
        if c > 10:
            c = ((c + 1) * 2 + 1) * 2
    assert out.tolist() == [14, 7, 14, c, 14]
    assert x.to_numpy().tolist() == [4, 5, 14, 7]


def test_references_to_memory_are_updated_atomically(arch: str) -> None:
    """A function that adds to its parameter adds to the element itself, from many iterations at once."""
    hist = sg.field(sg.i32, shape=4)
    vectors = sg.Vector.field(2, sg.i32, shape=2)

    @sg.func
    def add(v: sg.template(), by):
        v += by

    @sg.func
    def largest(v: sg.template(), x):
        old = sg.atomic_max(v, x)
        return old

    @sg.kernel
    def run():
        total = 0
        for i in range(2000):
            add(hist[i % 3], i)
            largest(hist[3], i * 7 % 1999)
            add(vectors[i % 2], 1)
            add(vectors[0][1], 2)
            total += 1
        add(vectors[1], total)

    run()
    assert hist.to_numpy().tolist() == [*(sum(range(k, 2000, 3)) for k in range(3)), 1998]
    assert vectors.to_numpy().tolist() == [[1000, 5000], [3000, 3000]]


def test_static_recursion(arch: str) -> None:
    @sg.func
    def power(x, n: sg.template()):
        r = x
        if sg.static(n == 0):
            r = 1
        elif sg.static(n > 1):
            r = x * power(x, n - 1)
        return r

    @sg.func
    def fib(n: sg.template()):
        if sg.static(n < 2):
            return n
        return fib(n - 1) + fib(n - 2)

    @sg.kernel
    def run(x: sg.i32, out: INTS):
        for i in sg.static(range(5)):
            out[i] = power(x, i)
        out[5] = fib(7)

    out = ints(6)
    run(3, out)
    assert out.tolist() == [1, 3, 9, 27, 81, 13]


def test_endless_recursion_is_refused(arch: str) -> None:
    @sg.func
    def f(n):
        return f(n - 1) if n > 0 else 0

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return f(n)

    with pytest.raises(sg.SpirogradCompilationError, match="calls itself"):
        run(3)


def test_functions_as_values(arch: str) -> None:
    """Functions in lists, closures and template arguments."""

    @sg.func
    def double(x):
        return x * 2

    @sg.func
    def negate(x):
        return -x

    table = [double, negate]

    @sg.func
    def apply(f: sg.template(), x):
        return f(f(x))

    @sg.kernel
    def run(n: sg.i32, g: sg.template(), out: INTS):
        for k in sg.static(range(2)):
            out[k] = table[k](n)
        out[2] = apply(double, n)
        out[3] = apply(g, n) + g(n)

    out = ints(4)
    run(3, negate, out)
    assert out.tolist() == [6, -3, 12, 0]


@sg.data_oriented
class Counter:
    step = 5

    def __init__(self, start: int) -> None:
        self.start = start
        self.data = sg.field(sg.i32, shape=8)
        self.total = sg.field(sg.i32, shape=())

    @sg.func
    def value(self, i):
        if i % 2 == 0:
            return self.start + i * self.step
        return self.helper(i) - 1

    @sg.func
    def helper(self, i):
        return i * 100

    @staticmethod
    @sg.func
    def scaled(x, by):
        return x * by

    @sg.kernel
    def fill(self, scale: sg.i32):
        for i in self.data:
            self.data[i] = self.scaled(self.value(i), scale)
            self.total[None] += self.data[i]

    @sg.kernel
    def get(self, i: sg.i32) -> sg.i32:
        return self.data[i] + self.total[None]


def test_methods(arch: str) -> None:
    a, b = Counter(1), Counter(1000)
    a.fill(2)
    b.fill(1)
    value = [[s + i * 5 if i % 2 == 0 else i * 100 - 1 for i in range(8)] for s in (1, 1000)]
    assert a.data.to_numpy().tolist() == [v * 2 for v in value[0]]
    assert b.data.to_numpy().tolist() == value[1]
    assert a.get(3) == value[0][3] * 2 + sum(value[0]) * 2
    assert b.get(2) == value[1][2] + sum(value[1])
    a.start = 50  # a constant of the compilation that changed: compiled again
    a.fill(1)
    assert a.data[0] == 50


@pytest.mark.parametrize("t", dtypes.ALL, ids=str)
def test_return_values(arch: str, t: DType) -> None:
    @sg.kernel
    def run(a: t, early: sg.i32) -> t:
        if early > 0:
            return a
        b = a
        return b

    for v in [True] if t is sg.u1 else [-1.5, float(t.max)] if t.is_float else [int(t.min), int(t.max)]:
        assert run(v, 1) == v and run(v, 0) == v


def test_return_of_aggregates(arch: str) -> None:
    pair = sg.types.struct(a=sg.i32, v=sg.types.vector(2, sg.f32))

    @sg.kernel
    def vector(x: sg.f32) -> sg.types.vector(3, sg.f32):
        return sg.Vector([x, x * 2, 1])

    @sg.kernel
    def matrix(x: sg.f64) -> sg.types.matrix(2, 2, sg.f64):
        return sg.Matrix([[x, 1], [2, x]])

    @sg.kernel
    def struct(n: sg.i32) -> pair:
        return pair(a=n, v=sg.Vector([n * 0.5, 2]))

    assert list(vector(1.5)) == [1.5, 3, 1]
    m = matrix(0.1)
    assert [[m[0, 0], m[0, 1]], [m[1, 0], m[1, 1]]] == [[0.1, 1], [2, 0.1]]
    s = struct(3)
    assert s.a == 3 and list(s.v) == [1.5, 2]


def test_return_after_parallel_loops(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32, out: INTS) -> sg.i32:
        for i in range(n):
            out[i] = i * 2
        last = out[n - 1]
        for i in range(n):
            out[i] += last
        return out[0] + last

    run_both(run, 9, ints(9))


def test_return_in_a_while_of_a_kernel(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        k = 0
        while k < 100:
            if k * k > n:
                return k
            k += 1
        return -1

    for n in (0, 10, 50, 100000):
        run_both(run, n)


def test_return_without_a_value_ends_the_kernel(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32, out: INTS):
        out[0] = 1
        if n > 3:
            return
        out[1] = 2

    run_both(run, 5, ints(2))
    run_both(run, 1, ints(2))


def test_missing_return_is_refused(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        if n > 3:
            return 1

    with pytest.raises(sg.SpirogradSyntaxError, match="every path"):
        run(1)


def test_kernels_without_work(arch: str) -> None:
    @sg.kernel
    def nothing():
        pass

    @sg.kernel
    def empty_loop(n: sg.i32):
        for _ in range(n):
            pass

    @sg.kernel
    def documented():
        """Nothing but this."""

    for _ in range(3):
        assert nothing() is None and empty_loop(5) is None and empty_loop(0) is None and documented() is None
    sg.sync()


def test_kernel_calls_are_refused_in_kernels(arch: str) -> None:
    @sg.kernel
    def inner():
        pass

    @sg.kernel
    def outer():
        inner()

    with pytest.raises(sg.SpirogradSyntaxError, match="cannot be called from a kernel"):
        outer()


def test_calls_with_wrong_arguments(arch: str) -> None:
    @sg.func
    def f(a, b):
        return a + b

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return f(n)

    @sg.kernel
    def fine(n: sg.i32):
        pass

    with pytest.raises(sg.SpirogradTypeError, match="`f`"):
        run(1)
    wrong: Any = fine
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="`fine`"):
        wrong()
    with pytest.raises(sg.SpirogradRuntimeTypeError):
        wrong("a")


@sg.func
def settle(v: sg.f32) -> sg.f32:
    if v > 1.0:
        return v
    sg.loop_config(serialize=True)
    for _ in range(3):
        v += 1.0
    return v


def test_a_return_before_a_serialized_loop_at_the_top_of_a_kernel(session):
    x = sg.field(sg.f32, 2)

    @sg.kernel
    def run():
        x[0] = settle(x[0])
        x[1] = settle(x[1])

    x.from_numpy(np.array([0.5, 2.0], np.float32))
    run()
    np.testing.assert_array_equal(x.to_numpy(), [3.5, 2.0])
