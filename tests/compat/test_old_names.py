"""Old names of the family work, with the warnings that the family gives."""

import warnings

import pytest

from spirograd.compat import quadrants as qd
from spirograd.compat import taichi as ti

pytestmark = pytest.mark.archs("cpu")  # Python decides


def test_the_experimental_real_func(arch):
    ti.init(arch=arch)
    with pytest.warns(DeprecationWarning, match="experimental.real_func is deprecated because it is no longer experimental"):

        @ti.experimental.real_func
        def double(n: ti.i32) -> ti.i32:
            return 2 * n

    @ti.kernel
    def run(n: ti.i32) -> ti.i32:
        return double(n)

    assert run(4) == 8


def test_field_dim_of_arguments_of_graphs(arch):
    ti.init(arch=arch)
    with pytest.warns(DeprecationWarning, match="The field_dim argument for ndarray will be deprecated in v1.6.0, use ndim instead"):
        old = ti.graph.Arg(ti.graph.ArgKind.NDARRAY, "x", ti.i32, field_dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ti.graph.Arg(ti.graph.ArgKind.NDARRAY, "x", ti.i32, ndim=1)

    @ti.kernel
    def fill(x: ti.types.ndarray(ndim=1)):
        for i in x:
            x[i] = i

    builder = ti.graph.GraphBuilder()
    builder.dispatch(fill, old)
    x = ti.ndarray(ti.i32, 3)
    builder.compile().run({"x": x})
    assert x.to_numpy().tolist() == [0, 1, 2]


def test_flat_names_of_graphs(arch):
    qd.init(arch=arch)
    count = qd.ndarray(qd.i32, ())

    @qd.kernel(graph=True)
    def flat(n: qd.types.ndarray(qd.i32, 0), x: qd.types.ndarray(qd.i32, 1)):
        while qd.graph_do_while(n):
            for i in x:
                x[i] += 1
            n[()] -= 1
        with qd.graph_parallel_context():  # noqa: SIM117
            with qd.graph_parallel():
                for i in x:
                    x[i] += 10

    @qd.kernel(graph=True)
    def spaced(n: qd.types.ndarray(qd.i32, 0), x: qd.types.ndarray(qd.i32, 1)):
        while qd.graph.do_while(n):
            for i in x:
                x[i] += 1
            n[()] -= 1

    x = qd.ndarray(qd.i32, 2)
    count.fill(3)
    with pytest.warns(DeprecationWarning) as caught:
        flat(count, x)
    texts = [str(w.message) for w in caught if w.filename == __file__]
    names = ("do_while", "parallel_context", "parallel")
    assert texts == [f"qd.graph_{n}() is deprecated and will be removed in a future release; use qd.graph.{n}() instead." for n in names]
    assert x.to_numpy().tolist() == [13, 13]
    count.fill(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spaced(count, x)
    assert x.to_numpy().tolist() == [15, 15]


def test_promises_of_purity(arch):
    qd.init(arch=arch)
    with pytest.warns(UserWarning, match="parameter `pure` is deprecated. Please use parameter `fastcache`"):

        @qd.kernel(pure=True)
        def one() -> qd.i32:
            return 1

    with pytest.warns(UserWarning, match="pure` is deprecated"):

        @qd.pure
        @qd.kernel
        def two() -> qd.i32:
            return 2

    assert one() + two() == 3
