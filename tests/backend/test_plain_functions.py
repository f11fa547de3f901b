"""Plain Python functions, lambdas and methods that kernels call with run-time values; texts made by `str.format`."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

N = 5
X = np.linspace(0.5, 2.5, N).astype(np.float32)
FACTOR = 3.0


def cube(a):
    return a * a * a


def branch(a, low=1.2, *, scale=2.0):
    if a > low:
        return a * scale
    b = 0.0
    for _ in range(3):
        b += a
    return b


class Line:
    def __init__(self, slope):
        self.slope = slope

    def at(self, a):
        return self.slope * a + FACTOR

    def __call__(self, a):
        return a - self.slope

    @staticmethod
    def twice(a):
        return 2.0 * a


def made(k):
    def scaled(a):
        return cube(a) * k

    return scaled


SUM = lambda a, b=1.0: a + b * FACTOR  # noqa: E731
TWO = [lambda a: a * a, lambda a: a + a]

CASES = {
    "function": (cube, lambda x: x**3, lambda x: 3 * x**2),
    "branch": (branch, lambda x: np.where(x > 1.2, 2 * x, 3 * x), lambda x: np.where(x > 1.2, 2.0, 3.0)),
    "lambda": (SUM, lambda x: x + 3, lambda x: 1 + 0 * x),
    "closure": (made(2.0), lambda x: 2 * x**3, lambda x: 6 * x**2),
    "method": (Line(4.0).at, lambda x: 4 * x + 3, lambda x: 4 + 0 * x),
    "object": (Line(4.0), lambda x: x - 4, lambda x: 1 + 0 * x),
    "static method": (Line.twice, lambda x: 2 * x, lambda x: 2 + 0 * x),
    "partial": (functools.partial(branch, scale=5.0), lambda x: np.where(x > 1.2, 5 * x, 3 * x), lambda x: np.where(x > 1.2, 5.0, 3.0)),
}
if sys.version_info >= (3, 11):  # which tells columns: before, such lambdas are refused
    CASES["first of a line"] = (TWO[0], lambda x: x * x, lambda x: 2 * x)
    CASES["second of a line"] = (TWO[1], lambda x: 2 * x, lambda x: 2 + 0 * x)


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str, session: Any) -> None:
    function, values, slopes = CASES[case]
    x, y, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, N), sg.field(sg.f32, (), needs_grad=True)
    x.from_numpy(X)

    @sg.kernel
    def run():
        for i in x:
            y[i] = function(x[i])

    @sg.kernel
    def total():
        for i in x:
            loss[None] += function(x[i])

    run()
    np.testing.assert_allclose(y.to_numpy(), values(X), rtol=1e-5)
    with sg.ad.Tape(loss):
        total()
    np.testing.assert_allclose(x.grad.to_numpy(), slopes(X), rtol=1e-5)


def test_as_arguments(session: Any) -> None:
    x = sg.field(sg.f32, N)

    @sg.kernel
    def apply(f: sg.template()):
        for i in x:
            x[i] = f(x[i])

    x.from_numpy(X)
    line = Line(2.0)
    for _ in range(2):
        apply(cube)
        apply(lambda a: a - 1.0)
        apply(line.at)
    wanted = X.astype(np.float64)
    for _ in range(2):
        wanted = 2.0 * (wanted**3 - 1.0) + 3.0
    np.testing.assert_allclose(x.to_numpy(), wanted, rtol=1e-4)


def test_memory_vectors_and_several_results(session: Any) -> None:
    x, w = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, 2, needs_grad=True)
    x.from_numpy(X)
    w.from_numpy(np.array([2.0, 3.0], np.float32))

    def pair(a):
        return sg.Vector([a, w[1] * a])

    def parts(v):
        return v[0], v.dot(v)

    def store(i, *values):
        x[i] = values[0] + values[1]

    @sg.kernel
    def run():
        for i in x:
            first, square = parts(pair(x[i]))
            store(i, first, square)

    run()
    np.testing.assert_allclose(x.to_numpy(), X + 10 * X**2, rtol=1e-5)


@pytest.mark.archs("interpreter")
def test_what_cannot_be_inlined(session: Any) -> None:
    x = sg.field(sg.f32, N)

    def endless(a):
        return endless(a)

    @functools.cache
    def wrapped(a):
        return a

    pair = [lambda a: (a, 1)[0], lambda a: (a, 1)[0]]

    @sg.kernel
    def run(f: sg.template()):
        for i in x:
            x[i] = f(x[i])

    for function, message in ((endless, "calls itself"), (wrapped, "cannot take run-time values"), (np.sin, "use `sg.sin`")):
        with pytest.raises(sg.SpirogradCompilationError, match=message):
            run(function)
    run(pair[1])  # equal ones need not be told apart


FORMATS = {
    "{}": "2.5",
    "{:.2f}|{}": "2.50|7",
    "{1:04d} {0:8.3f}|": "0007    2.500|",
    "{{}} {n} {n:>5}|": "{} 7     7|",
    "{v} {v[1]:.1f}": "[1.0, 2.5] 2.5",
    "{text!r:>6} {0:e}": "  'ab' 2.500000e+00",
}


@pytest.mark.parametrize("text", FORMATS)
def test_formatted_texts(text: str, session: Any, capfd: pytest.CaptureFixture[str]) -> None:
    @sg.kernel
    def show(a: sg.f32, b: sg.i32):
        v = sg.Vector([1.0, a])
        print(text.format(a, b, n=b, v=v, text="ab"), "end")

    show(2.5, 7)
    sg.sync()
    assert capfd.readouterr().out == f"{FORMATS[text]} end\n"


def test_messages_of_asserts(arch: str) -> None:
    sg.init(arch=arch, debug=True)

    @sg.kernel
    def check(a: sg.f32, b: sg.i32):
        assert b > 10, "a is {:.2f}, b {{{}}}".format(a, b)  # noqa: UP032 -- it is what is tested

    check(2.5, 11)
    with pytest.raises(sg.SpirogradAssertionError, match=r"a is 2.50, b \{7\}"):
        check(2.5, 7)
        sg.sync()
