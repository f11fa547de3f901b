"""Taichi's `graph`: named arguments, sequences, checks; on every back end."""

from __future__ import annotations

import numpy as np
import pytest
from spirograd.compat.taichi.graph import Arg, ArgKind, GraphBuilder

import spirograd as sg
import spirograd.compat.taichi as ti

pytestmark = pytest.mark.usefixtures("session")


@ti.kernel
def add(x: ti.types.ndarray(dtype=ti.f32, ndim=1), k: ti.f32):
    for i in x:
        x[i] += k * (i + 1)


@ti.kernel
def turn(v: ti.types.ndarray(dtype=ti.math.vec2, ndim=1), m: ti.types.matrix(2, 2, ti.f32)):
    for i in v:
        v[i] = m @ v[i]


def test_launches_run_in_order_with_the_values_given() -> None:
    x, k = Arg(ArgKind.NDARRAY, "x", ti.f32, ndim=1), Arg(ArgKind.SCALAR, "k", ti.f32)
    v, m = Arg(ArgKind.NDARRAY, "v", ti.math.vec2, ndim=1), Arg(ArgKind.MATRIX, "m", ti.math.mat2)
    builder = GraphBuilder()
    builder.dispatch(add, x, k)
    both = builder.create_sequential()
    both.dispatch(add, x, k)
    both.dispatch(turn, v, m)
    builder.append(both)
    builder.append(both)
    graph = builder.compile()
    for size, step in ((5, 1.5), (3, 2)):
        numbers, vectors = ti.ndarray(ti.f32, size), ti.Vector.ndarray(2, ti.f32, size)
        vectors.fill(1)
        graph.run({"x": numbers, "k": step, "v": vectors, "m": ti.Matrix([[1.0, 1.0], [0.0, 2.0]]), "unused": 0})
        assert numbers.to_numpy().tolist() == [3 * step * (i + 1) for i in range(size)]
        assert (vectors.to_numpy() == np.array([[1, 1], [0, 2]]) @ np.array([[1, 1], [0, 2]]) @ [1, 1]).all()


def test_a_graph_of_nothing_and_of_fields() -> None:
    GraphBuilder().compile().run({})
    f = ti.field(ti.i32, 4)

    @ti.kernel
    def count(by: ti.i32):
        for i in f:
            f[i] += by

    builder = GraphBuilder()
    builder.dispatch(count, Arg(ArgKind.SCALAR, "by", ti.i32))
    graph = builder.compile()
    graph.run({"by": 2})
    graph.run({"by": 3})
    assert f.to_numpy().tolist() == [5] * 4


def test_what_does_not_fit_is_refused() -> None:
    x, k = Arg(ArgKind.NDARRAY, "x", ti.f32, ndim=1), Arg(ArgKind.SCALAR, "k", ti.f32)
    builder = GraphBuilder()
    builder.dispatch(add, x, k)
    graph, good = builder.compile(), ti.ndarray(ti.f32, 2)
    clash = GraphBuilder()
    clash.dispatch(add, x, k)
    clash.dispatch(add, Arg(ArgKind.NDARRAY, "y", ti.f32, ndim=1), Arg(ArgKind.SCALAR, "x", ti.f32))
    for wrong, message in [
        (lambda: graph.run({"x": good}), "these arguments of the graph have no value: k"),
        (lambda: graph.run({"x": np.ones(2, np.float32), "k": 1}), "argument `x` of the graph is an ndarray, got"),
        (lambda: graph.run({"x": ti.ndarray(ti.i32, 2), "k": 1}), "argument `x` of the graph: expected an array of f32, got i32"),
        (lambda: graph.run({"x": ti.ndarray(ti.f32, (2, 2)), "k": 1}), "argument `x` of the graph: expected"),
        (lambda: graph.run({"x": good, "k": "1"}), "argument `k` of the graph is a scalar, got"),
        (lambda: GraphBuilder().dispatch(add, x), "takes 2 arguments, and the graph gives it 1"),
        (lambda: GraphBuilder().dispatch(add, x, 2.0), "expected an argument of the graph, got"),
        (lambda: GraphBuilder().dispatch(add, k, k), "parameter `x` of the kernel: expected"),
        (lambda: GraphBuilder().dispatch(add, x, Arg(ArgKind.SCALAR, "k", ti.i32)), "got argument `k` of the graph, a scalar of i32"),
        (lambda: GraphBuilder().dispatch(len, x), "a graph launches kernels"),
        (lambda: Arg(ArgKind.SCALAR, "k", ti.math.vec2), "use `ArgKind.MATRIX`"),
        (lambda: Arg(ArgKind.MATRIX, "k", ti.f32), "use `ArgKind.SCALAR`"),
        (lambda: Arg(ArgKind.TEXTURE, "k", ti.f32), "textures are not supported"),
        (lambda: clash.compile(), "two different arguments of the graph have the name `x`"),
    ]:
        with pytest.raises(sg.SpirogradError) as caught:
            wrong()
        assert message in str(caught.value)
