"""Gradients through `while`, `break`, `continue`, branches, early returns, and kernels of several loops and statements."""

from __future__ import annotations

from typing import Any

import numpy as np
from grad.check import Program, check, on_back_ends_with_types

import spirograd as sg

N = 7


def xy(t: Any, n: int = N) -> tuple[Any, Any]:
    return sg.field(t, shape=n, needs_grad=True), sg.field(t, shape=n, needs_grad=True)


def while_counted(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            j = 0
            while j < i:
                v = sg.sin(v) + x[j] * v
                j += 1
            y[i] = v

    return Program(run, [x, y])


def while_on_values(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            while v < t(9.7):
                v = v * t(1.9) + x[i] * v * t(0.1)
            y[i] = v

    return Program(run, [x, y])


def while_true_with_break(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run(limit: sg.i32):
        for i in x:
            v = x[i]
            w = t(0.5)
            j = 0
            while True:
                v = sg.sin(v * w) + t(0.5)
                if j >= limit:
                    break
                w += v * v
                j += 1 + i % 2
            y[i] = v * w

    return Program(run, [x, y], [4])


def break_of_for(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(20):
                v = v * t(1.4) + x[i] * x[j % N]
                if v > t(6.1):
                    break
                v += sg.sin(v) * t(0.1)
            y[i] = v

    return Program(run, [x, y])


def break_at_once(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(5):
                if i < 3:
                    break
                v = v * v
            y[i] = v * t(2.0)

    return Program(run, [x, y])


def continue_of_for(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            if i % 3 == 2:
                continue
            v = x[i]
            for j in range(6):
                if (i + j) % 3 == 0:
                    continue
                v = sg.sin(v) + v * x[j]
                if v > t(1.5):
                    continue
                v *= x[i]
            y[i] = v

    return Program(run, [x, y])


def break_in_a_nest(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(4):
                w = v
                for k in range(6):
                    w = w * (t(1.0) + t(0.3) * x[k])
                    if w > t(1.7):
                        break
                    if k == i:
                        continue
                    w += v * t(0.2)
                v = sg.sin(w) * t(0.4) + v * t(0.7)
                if v > t(0.95):
                    break
            y[i] = v * v

    return Program(run, [x, y])


def loops_in_branches_in_loops(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            v = x[i]
            for j in range(4):
                if (i + j) % 2 == 0:
                    for k in range(n):
                        v = sg.sin(v) + x[k] * v
                        if v > t(1.2):
                            v = v * t(0.6)
                elif i > 3:
                    for k in range(j):
                        v += x[k] * x[k]
                else:
                    v = sg.exp(-v)
            y[i] = v

    return Program(run, [x, y], [3])


def branches_of_values(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            w = t(0.0)
            if v > t(1.0):
                w = v * v
                if v > t(1.1):
                    w = sg.sin(w)
            elif v > t(0.7):
                w = sg.log(v)
                v = w * v
            y[i] = v + t(2.0) * w

    return Program(run, [x, y], low=0.3, high=1.6)


def ternaries(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i] if x[i] > t(0.8) else x[i] * x[i]
            for j in range(3):
                v = (sg.sin(v) if j % 2 == 0 else sg.cos(v)) if v > t(0.4) else v + t(0.37)
                v = sg.select(v > t(0.6), v * x[i], v + x[j])
            y[i] = v

    return Program(run, [x, y])


def min_max_abs(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i] - t(0.9)
            for j in range(5):
                v = sg.max(v, x[j] - t(0.6), sg.abs(v) * t(0.31))
                v = sg.min(v * t(1.21) + t(0.013), x[(j + i) % N], t(0.83))
            y[i] = sg.abs(v - t(0.5)) + sg.max(v, t(0.1))

    return Program(run, [x, y])


def early_returns(t: Any) -> Program:
    x, y = xy(t)

    @sg.func
    def curve(a, n):
        if a < t(0.6):
            return a * a
        s = a
        for k in range(n):
            s = sg.sin(s) + a
            if s > t(1.5):
                return s * t(3.0)
        if n == 2:
            return sg.exp(s)
        return s - a

    @sg.kernel
    def run():
        for i in x:
            y[i] = curve(x[i], i) * x[i] + curve(x[(i + 1) % N] * t(0.5), 2)

    return Program(run, [x, y])


def functions_in_loops(t: Any) -> Program:
    x, y = xy(t)

    @sg.func
    def power(a, n):
        out = t(1.0)
        while n > 0:
            if n % 2 == 1:
                out *= a
            a *= a
            n //= 2
        return out

    @sg.func
    def twice(a, n):
        return power(power(a, n), 2)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(3):
                v = twice(v, 1 + j % 2) + t(0.1) * x[j]
            y[i] = power(v, i)

    return Program(run, [x, y])


def loops_and_statements(t: Any) -> Program:
    x, y = xy(t)
    s = sg.field(t, shape=(), needs_grad=True)

    @sg.kernel
    def run(n: sg.i32):
        a = x[0] * x[1]
        for i in x:
            y[i] = sg.sin(x[i]) * a
        b = a * t(2.0)
        if n > 2:
            b += x[2]
        for i in range(n):
            s[None] += x[i] * b
        b = b * a
        s[None] += b * b

    return Program(run, [x, y, s], [4])


def serial_kernel(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run(n: sg.i32):
        v = x[0]
        for i in range(n):
            if v > t(2.0):
                v = v * t(0.4)
            for j in range(i):
                v = sg.sin(v) + x[j] * v
            y[i] = v
        y[n] = v * v

    return Program(run, [x, y], [5])


def serialized_loop(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run(n: sg.i32):
        v = t(0.3)
        sg.loop_config(serialize=True)
        for i in range(n):
            v = sg.sin(v) + x[i]
            for j in range(3):
                v *= x[j] + t(0.2)
            y[i] = v * x[i]

    return Program(run, [x, y], [6])


def while_at_the_top(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        v = x[0]
        k = 0
        while v < t(20.0):
            v += v * x[k % N]
            k += 1
        y[0] = v
        for i in range(1, N):
            y[i] = v * x[i]

    return Program(run, [x, y])


def static_loops(t: Any) -> Program:
    x, y = xy(t)
    weights = (0.5, 1.5, -0.7)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for k in sg.static(range(3)):
                v = sg.sin(v) * t(weights[k]) + x[i]
                for j in range(k + 1):
                    v = v * x[j] + t(0.2)
                if sg.static(k == 1):
                    v = v * v
            y[i] = v

    return Program(run, [x, y])


def newton(t: Any) -> Program:
    """A solver that stops where it has converged: what it is for is the gradient of the solution."""
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            r = t(1.0)
            for it in range(50):
                step = (r * r * r - x[i]) / (t(3.0) * r * r)
                r = r - step
                if sg.abs(step) < t(1e-3):
                    break
            y[i] = r

    return Program(run, [x, y])


def short_circuits(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            j = 0
            while j < N and (v < t(2.0) or j < 2):
                if not (v < t(0.8)) and j != 3:
                    v = v * x[j] + t(0.3)
                v += x[j]
                j += 1
            y[i] = v

    return Program(run, [x, y])


def assigned_in_loops(t: Any) -> Program:
    """Values that loops set and never read: the last iteration counts, or what was before where there is none."""
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            a, b, c = y[i], x[i], t(0.5)
            while True:
                a = x[i] * x[0]
                break
            for j in range(i):
                b = x[j] * a
                for k in range(j % 2):
                    c = x[k] * b
            y[i] = a * b + c

    return Program(run, [x, y], tape=True)


CASES = [
    assigned_in_loops,
    while_counted,
    while_on_values,
    while_true_with_break,
    break_of_for,
    break_at_once,
    continue_of_for,
    break_in_a_nest,
    loops_in_branches_in_loops,
    branches_of_values,
    ternaries,
    min_max_abs,
    early_returns,
    functions_in_loops,
    loops_and_statements,
    serial_kernel,
    serialized_loop,
    while_at_the_top,
    static_loops,
    newton,
    short_circuits,
]


@on_back_ends_with_types(CASES)
def test_jumps(session: Any, case: Any, t: Any) -> None:
    check(case, t)


def test_newton_gives_the_derivative_of_the_root(session: Any) -> None:
    """d x^(1/3) / dx: another reference than finite differences of the program."""
    program = newton(sg.f32)
    x, y = program.memories
    values = np.linspace(0.5, 2.0, N).astype(np.float32)
    x.from_numpy(values)
    program.kernel()
    y.grad.fill(1.0)
    program.kernel.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), values ** (-2 / 3) / 3, rtol=2e-3)
