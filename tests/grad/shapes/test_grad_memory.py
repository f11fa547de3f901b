"""Gradients through memory: fields and arrays of scalars, vectors, matrices and structs, layouts, 0-d fields, atomics; linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
from grad.check import Program, check, on_back_ends_with_types

import spirograd as sg

N = 7


def xy(t: Any, n: int = N) -> tuple[Any, Any]:
    return sg.field(t, shape=n, needs_grad=True), sg.field(t, shape=n, needs_grad=True)


def arrays(t: Any) -> Program:
    x, y = sg.ndarray(t, N, needs_grad=True), sg.ndarray(t, N + 4, needs_grad=True)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), y: sg.types.ndarray(t, 1)):
        for i in range(y.shape[0]):
            v = y[i]
            for j in range(x.shape[0]):
                v = sg.sin(v) + x[j] * v
            y[i] += v * x[i % x.shape[0]]

    return Program(run, [x, y], [x, y], tape=True)


def arrays_of_vectors(t: Any) -> Program:
    x, y = sg.Vector.ndarray(3, t, N, needs_grad=True), sg.ndarray(t, N, needs_grad=True)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.types.vector(3, t), 1), y: sg.types.ndarray(t, 1)):
        for i in x:
            v = x[i]
            for j in range(3):
                v = v.cross(x[(i + j) % N]) + v * t(0.5)
            y[i] = v.dot(x[0]) + x[i][i % 3]

    return Program(run, [x, y], [x, y])


def arrays_of_matrices(t: Any) -> Program:
    x, y = sg.Matrix.ndarray(2, 2, t, (2, 3), needs_grad=True), sg.Matrix.ndarray(2, 2, t, (2, 3), needs_grad=True)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.types.matrix(2, 2, t), 2), y: sg.types.ndarray(sg.types.matrix(2, 2, t), 2)):
        for i, j in x:
            m = x[i, j]
            for k in range(j + 1):
                m = m @ x[i, k] + x[1 - i, k]
            y[i, j] += m

    return Program(run, [x, y], [x, y])


def no_dimensions(t: Any) -> Program:
    a, b, c = (sg.field(t, shape=(), needs_grad=True) for _ in range(3))

    @sg.kernel
    def run(n: sg.i32):
        v = a[None]
        for j in range(n):
            v = v * a[None] + sg.sin(b[None])
        c[None] = v
        c[None] += b[None] * v

    return Program(run, [a, b, c], [4])


def three_dimensions(t: Any) -> Program:
    x = sg.field(t, shape=(2, 3, 2), needs_grad=True)
    y = sg.field(t, shape=(3, 2), needs_grad=True)

    @sg.kernel
    def run():
        for i, j, k in x:
            y[j, k] += x[i, j, k] * x[1 - i, j, 1 - k]

    return Program(run, [x, y])


def matrix_fields(t: Any) -> Program:
    v = sg.Vector.field(3, t, shape=4, needs_grad=True)
    m = sg.Matrix.field(3, 3, t, shape=(), needs_grad=True)
    out = sg.Vector.field(3, t, shape=4, needs_grad=True)

    @sg.kernel
    def run():
        for i in v:
            w = v[i]
            for j in range(i):
                w = m[None] @ w * t(0.5) + v[j]
            out[i] = w
            out[i][1] += w[0] * w[2]

    return Program(run, [v, m, out])


def struct_fields(t: Any) -> Program:
    Part = sg.types.struct(at=sg.types.vector(2, t), mass=t)
    parts = Part.field(shape=4, needs_grad=True)
    energy = sg.field(t, shape=(), needs_grad=True)

    @sg.kernel
    def run():
        for i in parts:
            for j in range(4):
                if i != j:
                    d = parts[i].at - parts[j].at
                    energy[None] += parts[i].mass * parts[j].mass / sg.sqrt(d.norm_sqr() + t(0.1))

    return Program(run, [parts.get_member_field("at"), parts.get_member_field("mass"), energy])


def struct_written(t: Any) -> Program:
    Part = sg.types.struct(at=sg.types.vector(2, t), mass=t)
    parts = Part.field(shape=4, needs_grad=True)
    out = Part.field(shape=4, needs_grad=True)

    @sg.kernel
    def run(dt: t):
        for i in parts:
            p = parts[i]
            for j in range(i):
                p.at = p.at * p.mass + parts[j].at * dt
                p.mass += dt * p.at[0]
            out[i] = p

    names = ("at", "mass")
    return Program(run, [s.get_member_field(n) for s in (parts, out) for n in names], [0.3])


def array_of_structs(t: Any) -> Program:
    x, y, v = sg.field(t), sg.field(t), sg.Vector.field(2, t)
    sg.root.dense(sg.i, N).place(x, y, v)
    sg.root.lazy_grad()

    @sg.kernel
    def run():
        for i in x:
            a = x[i]
            for j in range(3):
                a = sg.sin(a) * v[j][i % 2] + v[i][0]
            y[i] = a

    return Program(run, [x, y, v])


def structs_of_arrays(t: Any) -> Program:
    x, y, v = sg.field(t), sg.field(t), sg.Vector.field(2, t)
    for k in (x, y, v):
        sg.root.dense(sg.i, N).place(k)
    sg.root.lazy_grad()

    @sg.kernel
    def run():
        for i in x:
            a = x[i]
            for j in range(3):
                a = sg.sin(a) * v[j][i % 2] + v[i][0]
            y[i] += a

    return Program(run, [x, y, v])


def nested_blocks(t: Any) -> Program:
    x, y = sg.field(t), sg.field(t)
    sg.root.dense(sg.ij, (2, 2)).dense(sg.ij, (2, 1)).place(x, y)
    sg.root.lazy_grad()

    @sg.kernel
    def run():
        for i, j in x:
            a = x[i, j]
            for k in range(i):
                a = a * x[k, j] + x[i, 1 - j]
            y[i, j] = a

    return Program(run, [x, y])


def other_order(t: Any) -> Program:
    x = sg.field(t, shape=(3, 2), order="ji", needs_grad=True)
    y = sg.field(t, shape=(3, 2), needs_grad=True)

    @sg.kernel
    def run():
        for i, j in x:
            y[i, j] = x[i, j] * x[2 - i, 1 - j] ** 2

    return Program(run, [x, y])


def with_offset(t: Any) -> Program:
    x = sg.field(t, shape=(N,), offset=(-3,), needs_grad=True)
    y = sg.field(t, shape=(N,), offset=(10,), needs_grad=True)

    @sg.kernel
    def run():
        for i in x:
            a = x[i]
            for j in range(-3, i):
                a = a * x[j] + t(0.2)
            y[i + 13] = a

    return Program(run, [x, y])


def scattered(t: Any) -> Program:
    """Many iterations add to the same elements, and read the same ones."""
    x, y = xy(t)
    to = sg.field(sg.i32, shape=N)

    @sg.kernel
    def run():
        for i, j in sg.ndrange(N, 5):
            y[to[(i + j) % N]] += x[to[i]] * x[j] - x[i]
            y[i] -= x[j] * x[j]

    return Program(run, [x, y], prepare=lambda trial: to.from_numpy(np.random.default_rng(trial).integers(0, N, N).astype(np.int32)))


def several_kinds_of_updates(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            y[i] = x[i] * x[i]
            y[i] += sg.sin(x[i])
            y[i] -= x[0] * t(0.5)
            sg.atomic_add(y[(i * 3) % N], t(0.0) * x[i])

    return Program(run, [x, y])


def gather_with_weights(t: Any) -> Program:
    """The shape of a particle method: indices from floats, weights, a small neighbourhood."""
    x = sg.Vector.field(2, t, shape=5, needs_grad=True)
    grid = sg.field(t, shape=(4, 4), needs_grad=True)

    @sg.kernel
    def run():
        for p in x:
            base = sg.cast(x[p] * t(1.5), sg.i32)
            fx = x[p] * t(1.5) - sg.cast(base, t)
            w = [t(0.5) * (t(1.5) - fx) ** 2, t(0.75) - (fx - t(1.0)) ** 2, t(0.5) * (fx - t(0.5)) ** 2]
            for i, j in sg.static(sg.ndrange(3, 3)):
                grid[base[0] + i, base[1] + j] += w[i][0] * w[j][1]

    return Program(run, [x, grid])


def linear_algebra(t: Any) -> Program:
    a = sg.Matrix.field(3, 3, t, shape=2, needs_grad=True)
    v = sg.Vector.field(3, t, shape=2, needs_grad=True)
    out = sg.Vector.field(3, t, shape=2, needs_grad=True)

    @sg.kernel
    def run():
        for i in a:
            m = a[i] + sg.Matrix.identity(t, 3) * t(2.0)
            w = m.inverse() @ v[i]
            for j in range(3):
                w = (m.inverse() @ w).normalized() * m.determinant() * t(0.1) + w
            out[i] = w + m.transpose() @ w.cross(v[i]) * m.trace() + v[i].norm(t(0.01)) * w
            out[i] += v[i].outer_product(w) @ w * t(0.1) + m[1, :] * m.norm()

    return Program(run, [a, v, out])


def inverses(t: Any) -> Program:
    a = sg.Matrix.field(2, 2, t, shape=2, needs_grad=True)
    b = sg.Matrix.field(4, 4, t, shape=(), needs_grad=True)
    out = sg.field(t, shape=3, needs_grad=True)

    @sg.kernel
    def run():
        for i in a:
            out[i] = (a[i] + sg.Matrix([[t(1.0), t(0.0)], [t(0.0), t(2.0)]])).inverse()[i, 1]
        for _ in range(1):
            m = b[None] + sg.Matrix.identity(t, 4) * t(3.0)
            inv = m.inverse()
            out[2] = inv[0, 1] * inv[3, 2] * t(50.0) + sg.log(m.determinant())

    return Program(run, [a, b, out])


def polar(t: Any) -> Program:
    a = sg.Matrix.field(2, 2, t, shape=3, needs_grad=True)
    out = sg.field(t, shape=3, needs_grad=True)

    @sg.kernel
    def run():
        for i in a:
            r, s = sg.polar_decompose(a[i] + sg.Matrix([[t(1.0), t(0.0)], [t(0.5), t(2.0)]]), t)
            out[i] = r[0, 1] * t(2.0) + s[0, 0] * s[1, 0]

    return Program(run, [a, out])


def singular_values(t: Any) -> Program:
    a = sg.Matrix.field(2, 2, t, shape=3, needs_grad=True)
    out = sg.field(t, shape=3, needs_grad=True)

    @sg.kernel
    def run():
        for i in a:
            u, s, v = sg.svd(a[i] + sg.Matrix([[t(1.0), t(0.0)], [t(0.5), t(3.0)]]), t)
            out[i] = s[0, 0] * s[1, 1] + s[0, 0] * t(2.0) + u[0, 0] * v[1, 0]

    return Program(run, [a, out])


def elementary(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            w = sg.tan(v * t(0.5)) + sg.asin(v * t(0.6)) * sg.acos(v * t(0.5)) + sg.atan2(v, x[0]) + sg.tanh(v)
            w += sg.exp(v) * sg.log(v + t(1.0)) + sg.sqrt(v) * sg.rsqrt(v + t(0.2)) + v ** t(1.7) + sg.pow(t(1.3), v) + v**3
            w += v % t(0.35) + sg.floor(v) * v - sg.ceil(v) * v + v / x[i - i // 2] - (-v) + sg.round(v) * v
            y[i] = w + sg.math.mix(v, w, v) + sg.math.clamp(v, t(0.5), t(1.1)) * v + sg.math.length(sg.Vector([v, w]))

    return Program(run, [x, y])


CASES = [
    arrays,
    arrays_of_vectors,
    arrays_of_matrices,
    no_dimensions,
    three_dimensions,
    matrix_fields,
    struct_fields,
    struct_written,
    array_of_structs,
    structs_of_arrays,
    nested_blocks,
    other_order,
    with_offset,
    scattered,
    several_kinds_of_updates,
    gather_with_weights,
    linear_algebra,
    inverses,
    polar,
    singular_values,
    elementary,
]


@on_back_ends_with_types(CASES)
def test_memory(session: Any, case: Any, t: Any) -> None:
    check(case, t)
