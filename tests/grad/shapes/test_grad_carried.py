"""Gradients of what loops carry: scalars, vectors, matrices, integers, locals indexed at run time, structs, every width, random numbers."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest
from grad.check import Program, check, on_back_ends_with_types

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

N = 7


def xy(t: Any, n: int = N) -> tuple[Any, Any]:
    return sg.field(t, shape=n, needs_grad=True), sg.field(t, shape=n, needs_grad=True)


def two_scalars(t: Any) -> Program:
    """Carried values that feed each other, one swapped, one linear."""
    x, y = xy(t)

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            a, b, total = x[i], t(0.5), t(0.0)
            for j in range(n):
                a, b = b * x[j % N] + t(0.1), sg.sin(a) + b * t(0.5)
                total += a * b
            y[i] = total + a

    return Program(run, [x, y], [9])


def vectors(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in range(N):
            v = sg.Vector([x[i], x[(i + 1) % N], t(0.3)])
            for j in range(4):
                v = sg.Vector([v[1] * v[2], sg.sin(v[0]), v[0] + x[j] * v[1]])
                v += v.cross(sg.Vector([t(0.2), x[j], t(0.1)])) * t(0.5)
            y[i] = v.dot(v) + v.norm()

    return Program(run, [x, y])


def matrix_products(t: Any) -> Program:
    a = sg.Matrix.field(2, 2, t, shape=5, needs_grad=True)
    out = sg.Matrix.field(2, 2, t, shape=3, needs_grad=True)

    @sg.kernel
    def run():
        for i in out:
            m = sg.Matrix.identity(t, 2)
            for j in range(4 - i):
                m = m @ a[i + j]
            out[i] = m

    return Program(run, [a, out])


def matrix_powers(t: Any) -> Program:
    a = sg.Matrix.field(3, 3, t, shape=2, needs_grad=True)
    out = sg.field(t, shape=2, needs_grad=True)

    @sg.kernel
    def run(n: sg.i32):
        for i in out:
            m = a[i] * t(0.4)
            v = sg.Vector([t(1.0), t(0.5), t(-0.5)])
            for j in range(n):
                v = m @ v + v * t(0.2)
                m = m @ m.transpose() * t(0.5) + a[i] * t(0.1)
            out[i] += v.sum() + m.trace()

    return Program(run, [a, out], [4])


def integers_as_indices(t: Any) -> Program:
    """A walk through memory whose indices are computed from carried integers."""
    x, y = xy(t)
    table = sg.field(sg.i32, shape=N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            at = i
            for j in range(6):
                at = (table[at] * 3 + j) % N
                v = sg.sin(v) * x[at] + v * t(0.3)
            y[at] += v

    return Program(run, [x, y], prepare=lambda trial: table.from_numpy(np.random.default_rng(trial).integers(0, N, N).astype(np.int32)))


def integers_from_floats(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for j in range(5):
                k = int(v * t(3.1))
                v = v * x[k % N] + t(0.61)
            y[i] = v

    return Program(run, [x, y])


def integer_widths(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            a, b, c = sg.u8(250), sg.i16(-5), sg.i64(1 << 40)
            d, e = sg.u32(4000000000), sg.u64(1 << 63)
            flag = i > 3
            for j in range(5):
                v = sg.sin(v) * t(a) * t(0.01) + t(b) * t(0.1) * v
                v += t(c >> 40) * x[j] + t(d >> 28) * v * t(0.01) + t(e >> 62) * v * t(0.1)
                if flag:
                    v *= x[i]
                a = sg.u8(a * 7 + 9)
                b = sg.i16(b * 3 + 1)
                c = c + (sg.i64(j) << 40)
                d = d * sg.u32(3) + sg.u32(1)
                e = e ^ (e >> sg.u64(1))
                flag = not flag or v > t(0.9)
            y[i] = v

    return Program(run, [x, y])


def locals_indexed(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = sg.Vector([x[i], t(0.2), t(0.4), t(0.9)])
            for j in range(6):
                k = (i + j * 3) % 4
                v[k] = v[(k + 1) % 4] * x[j] + sg.sin(v[k])
                v[(j * j) % 4] += v[k] * t(0.3)
            y[i] = v[i % 4] * v[(i + 1) % 4]

    return Program(run, [x, y])


def matrices_indexed(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            m = sg.Matrix([[x[i], t(0.2)], [t(0.4), t(0.9)]])
            for j in range(5):
                m[(i + j) % 2, j % 2] = m[j % 2, i % 2] * x[j] + m[0, j % 2] * t(0.5)
                for k in range(2):
                    m[k, 1 - k] = sg.cos(m[k, 1 - k]) * m[k, k]
            y[i] = m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0]

    return Program(run, [x, y])


def powers_of_a_table(t: Any) -> Program:
    """A local array filled in one loop and read in the next."""
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            p = sg.Vector([t(0.0)] * 6)
            v = t(1.0)
            for j in range(6):
                p[j] = v
                v *= x[i]
            s = t(0.0)
            for j in range(6):
                s += p[5 - j] * p[j] * x[j]
            y[i] = s

    return Program(run, [x, y])


def structs(t: Any) -> Program:
    x, y = xy(t)
    vec2 = sg.types.vector(2, t)
    Ball = sg.types.struct(at=vec2, speed=vec2, mass=t, hits=sg.i32)

    @sg.kernel
    def run():
        for i in x:
            ball = Ball(at=vec2(x[i], t(1.0)), speed=vec2(t(0.5), x[(i + 1) % N]), mass=t(1.5), hits=0)
            for step in range(8):
                ball.speed = ball.speed * t(0.97) - ball.at * (t(0.2) / ball.mass)
                ball.at += ball.speed * t(0.3)
                if ball.at[1] < t(0.7):
                    ball.speed[1] = -ball.speed[1] * x[step % N]
                    ball.at[1] = t(1.4) - ball.at[1]
                    ball.hits += 1
                ball.mass *= t(1.05)
            y[i] = ball.at.dot(ball.at) * ball.mass + t(ball.hits) * ball.speed[0]

    return Program(run, [x, y])


def random_numbers(t: Any) -> Program:
    """The counter-based numbers of a launch are replayed. Checked by what they multiply (see below), not by finite differences."""
    x, y = xy(t)
    seen = sg.field(t, shape=N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            p = t(1.0)
            for j in range(3 + i % 2):
                r = sg.random(t) + t(0.5)
                v = v * r
                p = p * r
                if sg.random() > 0.5:
                    v *= t(2.0)
                    p *= t(2.0)
            y[i] = v
            seen[i] = p

    program = Program(run, [x, y])
    program.prepare = lambda trial: seen.fill(0)
    program.seen = seen  # type: ignore[attr-defined]
    return program


def reduction(t: Any) -> Program:
    x, _ = xy(t)
    loss = sg.field(t, shape=(), needs_grad=True)

    @sg.kernel
    def run():
        s = t(0.0)
        for i in x:
            s += x[i] ** 2
        loss[None] = sg.sqrt(s)

    return Program(run, [x, loss])


def reductions_in_a_row(t: Any) -> Program:
    """A softmax: locals of the kernel that parallel loops add to and read."""
    x, y = xy(t)

    @sg.kernel
    def run():
        mean = t(0.0)
        for i in x:
            mean += x[i] / t(N)
        var = t(0.0)
        for i in x:
            var += (x[i] - mean) ** 2
        scale = t(1.0) / sg.sqrt(var + t(0.1))
        total = t(0.0)
        for i in x:
            total += sg.exp((x[i] - mean) * scale)
        for i in x:
            y[i] = sg.exp((x[i] - mean) * scale) / total

    return Program(run, [x, y])


def reduction_of_vectors(t: Any) -> Program:
    a = sg.Vector.field(2, t, shape=N, needs_grad=True)
    loss = sg.field(t, shape=(), needs_grad=True)

    @sg.kernel
    def run():
        centre = sg.Vector([t(0.0), t(0.0)])
        for i in a:
            centre += a[i] * t(0.5)
        spread = t(0.0)
        for i in a:
            spread += (a[i] - centre).norm()
        loss[None] += spread * centre[0]

    return Program(run, [a, loss])


def horner(t: Any) -> Program:
    x, y = xy(t)
    c = sg.field(t, shape=5, needs_grad=True)

    @sg.kernel
    def run():
        for i in x:
            v = t(0.0)
            for k in range(5):
                v = v * x[i] + c[4 - k]
            y[i] += v

    return Program(run, [x, y, c])


def long_chain(t: Any) -> Program:
    """More iterations than any default size."""
    x, y = xy(t, 3)

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            v = x[i]
            for j in range(n):
                v = sg.sin(v) * t(1.1) + t(0.1) * x[j % 3]
            y[i] = v

    return Program(run, [x, y], [1237])


CASES = [
    two_scalars,
    vectors,
    matrix_products,
    matrix_powers,
    integers_as_indices,
    integers_from_floats,
    integer_widths,
    locals_indexed,
    matrices_indexed,
    powers_of_a_table,
    structs,
    reduction,
    reductions_in_a_row,
    reduction_of_vectors,
    horner,
    long_chain,
]


@on_back_ends_with_types(CASES)
def test_carried(session: Any, case: Any, t: Any) -> None:
    if case is integer_widths:
        needs.of_type(sg.i64)
    check(case, t)


@pytest.mark.parametrize("case", [two_scalars, vectors, horner, locals_indexed, matrix_products], ids=lambda c: c.__name__)
def test_half_precision(session: Any, case: Any) -> None:
    check(case, sg.f16)


@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
def test_random_numbers_are_replayed(session: Any, t: Any) -> None:
    needs.of_type(t)
    program = random_numbers(t)
    x, y = program.memories
    before = None
    for taped in (False, True, False):
        x.fill(0.7)
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        if taped:
            with sg.ad.Tape(clear_gradients=False) as tape:
                program.kernel()
            tape.grad()
        else:
            program.kernel()
            program.kernel.grad()
        factor = program.seen.to_numpy()  # type: ignore[attr-defined]
        np.testing.assert_allclose(x.grad.to_numpy(), factor, rtol=1e-5)
        assert before is None or not np.allclose(before, factor), "the kernel draws the same numbers again"
        before = factor
