"""Vectors, matrices, structs, classes, functions."""

from __future__ import annotations

import dataclasses

import numpy as np

import spirograd as sg
from validation.case import Results, case

vec3, mat3 = sg.types.vector(3, sg.f32), sg.types.matrix(3, 3, sg.f32)


@case((2, 3, 4, 7))
def vector_arithmetic(n) -> Results:
    """Up to four entries are vectors of the hardware, longer ones arrays."""
    vector = sg.types.vector(n, sg.f32)
    a, b = (np.random.default_rng(k).uniform(-2, 2, (12, n)).astype(np.float32) for k in range(2))
    out, scalars = np.zeros((12, n), np.float32), np.zeros((12, 3), np.float32)

    @sg.kernel
    def run(a: sg.types.ndarray(vector, 1), b: sg.types.ndarray(vector, 1), out: sg.types.ndarray(vector, 1), scalars: sg.types.ndarray()):
        for i in a:
            out[i] = (a[i] + 2.0 * b[i]) * b[i] - a[i] / 4.0
            scalars[i, 0] = a[i].dot(b[i])
            scalars[i, 1] = a[i].norm()
            scalars[i, 2] = sg.max(a[i].max(), b[i].sum())

    run(a, b, out, scalars)
    want = np.stack([(a * b).sum(1), np.linalg.norm(a, axis=1), np.maximum(a.max(1), b.sum(1))], 1)
    return {"out": (out, (a + 2 * b) * b - a / 4), "scalars": (scalars, want)}


@case((2, 3, 4), rtol=1e-3, atol=1e-3)
def matrix_inverse(n) -> Results:
    matrix = sg.types.matrix(n, n, sg.f32)
    a = (np.random.default_rng(n).uniform(-1, 1, (10, n, n)) + 2 * np.eye(n)).astype(np.float32)
    out, determinants = np.zeros_like(a), np.zeros(10, np.float32)

    @sg.kernel
    def run(a: sg.types.ndarray(matrix, 1), out: sg.types.ndarray(matrix, 1), determinants: sg.types.ndarray(sg.f32, 1)):
        for i in a:
            out[i] = a[i].inverse()
            determinants[i] = a[i].determinant()

    run(a, out, determinants)
    return {"inverse": (out, np.linalg.inv(a.astype(np.float64))), "determinant": (determinants, np.linalg.det(a.astype(np.float64)))}


@case()
def matrix_products() -> Results:
    out, trace = np.zeros((2, 2), np.float32), np.zeros(2, np.float32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.f32, 2), trace: sg.types.ndarray(sg.f32, 1)):
        a = sg.Matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        c = a @ a.transpose()
        for i in sg.static(range(2)):
            for j in sg.static(range(2)):
                out[i, j] = c[i, j]
        trace[0] = c.trace()
        trace[1] = (a @ sg.Vector([1.0, -1.0, 0.5])).sum()

    run(out, trace)
    a = np.array([[1, 2, 3], [4, 5, 6.0]])
    return {"out": (out, a @ a.T), "trace": (trace, [np.trace(a @ a.T), (a @ [1, -1, 0.5]).sum()])}


@case()
def run_time_indices() -> Results:
    """Entries whose index only the device knows, read and written."""
    out = np.zeros((20, 6), np.int32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.i32, 2)):
        for i in range(20):
            v = sg.Vector([0, 0, 0, 0, 0, 0])
            k = i
            for _ in range(12):
                k = (5 * k + 3) % 17
                v[k % 6] += k
            for j in range(6):
                out[i, j] = v[j]

    run(out)
    want = np.zeros((20, 6), np.int32)
    for i in range(20):
        k = i
        for _ in range(12):
            k = (5 * k + 3) % 17
            want[i, k % 6] += k
    return {"out": (out, want)}


@case()
def swizzles() -> Results:
    out = np.zeros(8, np.float32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.f32, 1)):
        v = sg.Vector([1.0, 2.0, 3.0, 4.0])
        v.xy = v.zw
        w = v.wzyx
        c = v.xyz.cross(sg.Vector([0.0, 0.0, 1.0]))
        for k in sg.static(range(4)):
            out[k] = w[k]
        for k in sg.static(range(3)):
            out[4 + k] = c[k]

    run(out)
    return {"out": (out, [4, 3, 4, 3, *np.cross([3, 4, 3], [0, 0, 1]), 0])}


@case(rtol=1e-3, atol=1e-4)
def polar_decomposition() -> Results:
    """R S = A, with R a rotation and S symmetric."""
    a = np.random.default_rng(5).uniform(-1, 1, (9, 2, 2)).astype(np.float32) + np.eye(2, dtype=np.float32)
    r, s = np.zeros_like(a), np.zeros_like(a)
    matrix = sg.types.matrix(2, 2, sg.f32)

    @sg.kernel
    def run(a: sg.types.ndarray(matrix, 1), r: sg.types.ndarray(matrix, 1), s: sg.types.ndarray(matrix, 1)):
        for i in a:
            r[i], s[i] = sg.polar_decompose(a[i])

    run(a, r, s)
    return {"product": (r @ s, a), "rotation": (r @ r.transpose(0, 2, 1), np.broadcast_to(np.eye(2), (9, 2, 2))),
            "symmetric": (s, s.transpose(0, 2, 1))}  # fmt: skip


@case()
def functions() -> Results:
    """Inlined: early returns, several results, functions of functions, defaults."""

    @sg.func
    def middle(a, b, c):
        return sg.max(sg.min(a, b), sg.min(sg.max(a, b), c))

    @sg.func
    def sign_of(x: sg.i32, scale: sg.i32 = 1) -> sg.i32:
        if x < 0:
            return -scale
        if x == 0:
            return 0
        return scale

    @sg.func
    def both(x):
        return middle(x, 3, 7), sign_of(x - 5, 2)

    out = np.zeros((2, 12), np.int32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.i32, 2)):
        for i in range(12):
            out[0, i], out[1, i] = both(i)

    run(out)
    k = np.arange(12)
    return {"out": (out, np.stack([np.clip(k, 3, 7), 2 * np.sign(k - 5)]))}


@case()
def templates() -> Results:
    x, y = sg.field(sg.i32, shape=9), sg.field(sg.f32, shape=(3, 3))

    @sg.kernel
    def fill(target: sg.template(), value: sg.template()):
        for p in sg.grouped(target):
            target[p] = value + p.sum()

    fill(x, 4)
    fill(y, 0.5)
    return {"x": (x.to_numpy(), 4 + np.arange(9)), "y": (y.to_numpy(), 0.5 + np.indices((3, 3)).sum(0))}


@case()
def structs() -> Results:
    @sg.dataclass
    class Ball:
        place: vec3
        mass: sg.f32
        kind: sg.i8

        @sg.func
        def momentum(self, speed):
            return self.mass * speed + self.place.x

    balls = Ball.field(shape=6)
    out = np.zeros(6, np.float32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.f32, 1)):
        for i in balls:
            balls[i] = Ball(place=[i, 1.0, 2.0], mass=0.5 * i, kind=sg.i8(-i))
            balls[i].place.z += 1.0
        for i in balls:
            out[i] = balls[i].momentum(3.0) + balls[i].place.z + balls[i].kind

    run(out)
    k = np.arange(6)
    return {"out": (out, 1.5 * k + k + 3 - k)}


@case()
def classes_of_arguments() -> Results:
    """A dataclass of Python as an argument: its members are arguments of their own."""

    @dataclasses.dataclass
    class State:
        x: sg.types.ndarray(sg.f32, 1)
        factor: sg.f32

    state = State(np.arange(5, dtype=np.float32), 2.0)

    @sg.kernel
    def run(state: State):
        for i in state.x:
            state.x[i] *= state.factor

    run(state)
    return {"x": (state.x, np.arange(5) * 2)}


@case()
def data_oriented() -> Results:
    @sg.data_oriented
    class Counter:
        def __init__(self, step):
            self.values = sg.field(sg.i32, shape=4)
            self.step = step

        @sg.kernel
        def advance(self, times: sg.i32):
            for i in self.values:
                self.values[i] += self.step * times

    a, b = Counter(3), Counter(5)
    a.advance(2)
    b.advance(1)
    a.step = 1
    a.advance(1)
    return {"a": (a.values.to_numpy(), np.full(4, 7)), "b": (b.values.to_numpy(), np.full(4, 5))}


@case()
def returned_values() -> Results:
    @sg.kernel
    def number(k: sg.i32) -> sg.f32:
        total = 0.0
        for i in range(k):
            total += i * 0.5
        return total

    @sg.kernel
    def matrix() -> mat3:
        return sg.Matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]).transpose()

    return {"number": (number(10), 22.5), "none": (number(0), 0.0), "matrix": (matrix(), np.arange(1, 10).reshape(3, 3).T)}
