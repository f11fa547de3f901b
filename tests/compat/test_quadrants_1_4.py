"""What Quadrants 1.4 added: arguments that may be None, unpacked vectors, groups by number, options of classes and of `init`."""

import dataclasses
from typing import Optional

import numpy as np
import pytest

from spirograd.compat import quadrants as qd


@dataclasses.dataclass
class Pair:
    x: qd.types.NDArray[qd.f32, 1]
    y: qd.types.NDArray[qd.f32, 1] | None


@pytest.fixture
def twos(arch):
    qd.init(arch=arch)
    x = qd.ndarray(qd.f32, 3)
    x.fill(2.0)
    return x


@pytest.mark.parametrize("spelling", ["ndarray", "optional", "tensor", "template", "template()"])
def test_arguments_that_may_be_none(twos, spelling):
    annotation = {
        "ndarray": qd.types.NDArray[qd.f32, 1] | None,
        "optional": Optional[qd.types.ndarray(dtype=qd.f32, ndim=1)],  # noqa: UP045
        "tensor": qd.Tensor | None,
        "template": qd.Template | None,
        "template()": None | qd.template(),
    }[spelling]

    @qd.kernel
    def total(x: qd.types.NDArray[qd.f32, 1], y: annotation) -> qd.f32:
        sum = x[0]
        if qd.static(y is not None):
            sum += 10 * y[1]
        return sum

    field = qd.field(qd.f32, 3)
    field.fill(3.0)
    array = np.full(3, 4.0, np.float32)
    for _ in range(2):  # once compiled, values still decide
        assert total(twos, None) == 2
        assert total(twos, twos) == 22
        if spelling in ("tensor", "template", "template()"):
            assert total(twos, field) == 32
        if spelling in ("ndarray", "optional"):
            assert total(twos, array) == 42


def test_arguments_that_may_be_none_are_checked(twos):
    @qd.kernel
    def first(x: qd.types.NDArray[qd.f32, 1] | None) -> qd.f32:
        return x[0]

    assert first(twos) == 2
    with pytest.raises(TypeError, match="expected an array of f32, got i32"):
        first(qd.ndarray(qd.i32, 3))
    with pytest.raises(TypeError, match="None cannot be indexed"):
        first(None)

    @qd.kernel
    def never(x: qd.types.NDArray[qd.f32, 1]):
        pass

    with pytest.raises(TypeError, match="takes an array, got None"):
        never(None)
    for wrong in (qd.types.NDArray[qd.f32, 1], 3):
        with pytest.raises(TypeError):
            qd.types.NDArray[qd.f32, 1] | wrong


def test_members_and_arguments_of_functions_that_may_be_none(twos):
    @qd.func
    def second(y: qd.template()):
        result = 7.0
        if qd.static(y is not None):
            result = y[1]
        return result

    @qd.kernel
    def total(pair: Pair) -> qd.f32:
        sum = pair.x[0] + second(pair.y)
        if qd.static(pair.y is not None):
            sum += 100
        return sum

    assert total(Pair(twos, None)) == 9
    assert total(Pair(twos, twos)) == 104


def test_gradients_of_kernels_with_an_argument_that_is_none(arch):
    qd.init(arch=arch)
    x, y = (qd.ndarray(qd.f32, 3, needs_grad=True) for _ in range(2))
    x.fill(3.0)

    @qd.kernel
    def square(x: qd.types.NDArray[qd.f32, 1], factor: qd.types.NDArray[qd.f32, 1] | None, y: qd.types.NDArray[qd.f32, 1]):
        for i in x:
            scaled = x[i] * x[i]
            if qd.static(factor is not None):
                scaled *= factor[i]
            y[i] = scaled

    y.grad.fill(1.0)
    square(x, None, y)
    square.grad(x, None, y)
    assert x.grad.to_numpy().tolist() == [6.0, 6.0, 6.0]
    factor = qd.ndarray(qd.f32, 3, needs_grad=True)
    factor.fill(2.0)
    y.grad.fill(1.0)
    x.grad.fill(0.0)
    square.grad(x, factor, y)
    assert x.grad.to_numpy().tolist() == [12.0, 12.0, 12.0] and factor.grad.to_numpy().tolist() == [9.0, 9.0, 9.0]


def test_unpacked_vectors(arch):
    qd.init(arch=arch)

    @qd.dataclass
    class Tile:
        r: qd.types.vector(8, qd.f32, unpacked=True)
        scale: qd.f32

    @qd.kernel
    def run(out: qd.types.NDArray[qd.f32, 1]):
        for k in out:
            t = Tile()
            t.scale = 0.5
            for i in qd.static(range(8)):
                t.r[i] = qd.f32(i) + k
            out[k] = t.r[3] * t.scale + t.r.sum() + t.r[k]

    out = qd.ndarray(qd.f32, 4)
    run(out)
    r = np.arange(8)[None] + np.arange(4)[:, None]
    assert out.to_numpy().tolist() == (r[:, 3] * 0.5 + r.sum(1) + np.diag(r)).tolist()


def test_the_number_of_the_group(arch):
    qd.init(arch=arch)
    out = qd.field(qd.i32, 100)

    @qd.kernel
    def number():
        qd.loop_config(block_dim=32)
        for i in range(100):
            out[i] = qd.block_idx()

    number()
    assert (out.to_numpy() == np.arange(100) // 32).all()


def test_primitive_members_that_are_no_templates(arch):
    qd.init(arch=arch)

    @qd.data_oriented(template_primitives=False, stable_members=True)
    class Model:
        def __init__(self):
            self.n, self.step = 3, 1.5
            self.x = qd.ndarray(qd.f32, 4)

        @qd.kernel
        def advance(self):
            for i in range(self.n):
                self.x[i] += self.step

    model = Model()
    model.advance()
    model.n, model.step = 2, 0.5
    model.advance()
    assert model.x.to_numpy().tolist() == [2.0, 2.0, 1.5, 0.0]


@pytest.mark.archs("cpu")
def test_names_and_options(arch, capsys):
    from spirograd.compat.quadrants.lang._fast_caching import FIELD_METADATA_CACHE_VALUE

    qd.init(arch=arch, cpu_work_scheduling=qd.CPUWorkScheduling.PER_WORKER, cpu_fixed_block_dim=32, cpu_per_worker_min_block_dim=512)
    qd.dump_compile_config()
    assert "default_fp: f32\n" in capsys.readouterr().out
    assert qd.sparse_matrix_builder is qd.types.sparse_matrix_builder and qd.__version__ == (1, 4, 0)

    @dataclasses.dataclass(frozen=True)
    class Config:
        count: int = dataclasses.field(metadata={FIELD_METADATA_CACHE_VALUE: True})

    @qd.kernel(fastcache=True)
    def grow(x: qd.types.NDArray[qd.i32, 1], config: qd.template()):
        for i in range(config.count):
            x[i] += 1

    x = qd.ndarray(qd.i32, 3)
    grow(x, Config(2))
    grow(x, Config(3))
    assert x.to_numpy().tolist() == [2, 2, 1]


VALUES = {"number": (2.5, [2.5, 2.5]), "list": ([1, 2], [1.0, 2.0]), "vector": (qd.Vector([3, 4]), [3.0, 4.0])}


@pytest.mark.parametrize("value", VALUES)
def test_what_elements_are_at_first(arch, value):
    qd.init(arch=arch)
    fill, wanted = VALUES[value]
    vec = qd.types.vector(2, qd.f32)
    made = [
        qd.Vector.field(2, qd.f32, 3, fill=fill, needs_grad=True),
        qd.Vector.field(2, qd.f32, 3, fill=fill, layout=qd.Layout.SOA),
        qd.field(vec, 3, fill=fill),
        vec.field(3, fill=fill),
        qd.Vector.ndarray(2, qd.f32, 3, fill=fill, needs_grad=True),
        qd.ndarray(vec, 3, fill=fill),
        vec.ndarray(3, fill=fill),
        *[qd.Vector.tensor(2, qd.f32, 3, fill=fill, backend=backend) for backend in qd.Backend],
        *[qd.tensor(vec, 3, fill=fill, backend=backend) for backend in qd.Backend],
    ]
    later = qd.Vector.field(2, qd.f32, fill=fill)
    qd.root.dense(qd.i, 3).place(later)
    for array in (*made, later):
        assert array.to_numpy().tolist() == [wanted] * 3
    assert not made[0].grad.to_numpy().any() and not made[4].grad.to_numpy().any()


def test_scalars_and_matrices_at_first(arch):
    qd.init(arch=arch)
    zero, x, u = qd.field(qd.i32, (), fill=7), qd.field(qd.i32, 3, fill=1.5), qd.ndarray(qd.u8, 3, fill=-1)

    @qd.kernel
    def total() -> qd.i32:
        s = zero[None]
        for i in x:
            s += x[i]
        return s

    assert total() == 10 and u.to_numpy().tolist() == [255] * 3
    assert qd.Matrix.field(2, 2, qd.f32, shape=1, fill=[[1, 2], [3, 4]]).to_numpy().tolist() == [[[1, 2], [3, 4]]]
    assert qd.Matrix.ndarray(2, 2, qd.f32, 1, fill=5).to_numpy().tolist() == [[[5, 5], [5, 5]]]
    turned = qd.tensor(qd.f32, (2, 3), fill=4, layout=(1, 0), backend=qd.Backend.FIELD)
    assert (turned.to_numpy() == 4).all() and turned.layout == (1, 0)
    for make in (qd.field, qd.ndarray):
        for wrong in ("x", [1, 2]):
            with pytest.raises(TypeError):
                make(qd.f32, 3, fill=wrong)
    with pytest.raises(TypeError):
        qd.Vector.field(2, qd.f32, 3, fill=[1, 2, 3])
    with pytest.raises(TypeError, match="a field of structs takes no `fill`"):
        qd.field(qd.types.struct(a=qd.f32), shape=3, fill=1)
    sparse = qd.field(qd.f32, fill=1)
    qd.root.pointer(qd.i, 4).place(sparse)
    with pytest.raises(RuntimeError, match="field `sparse` is below a sparse node"):
        sparse.to_numpy()


def test_functions_for_the_top_level(arch):
    qd.init(arch=arch)
    x = qd.field(qd.i32, 5)

    @qd.func(requires_top_level=True)
    def count(step: qd.i32):
        for i in x:
            x[i] += step

    @qd.func()
    def twice(step: qd.i32):
        count(step)
        count(step)

    @qd.kernel
    def good():
        twice(3)

    good()
    assert x.to_numpy().tolist() == [6] * 5

    @qd.kernel
    def in_a_loop():
        for _ in range(2):
            count(1)

    @qd.kernel
    def under_a_condition(n: qd.i32):
        if n > 0:
            count(1)

    for bad in (in_a_loop, lambda: under_a_condition(1)):
        with pytest.raises(SyntaxError, match="`count` has requires_top_level=True, and is called under a condition or in a loop"):
            bad()


def test_names_of_arguments(arch):
    qd.init(arch=arch)

    @qd.kernel
    def draw() -> qd.f64:
        qd.static_assert(cond=True, msg="never")
        qd.static_assert(True, message="never")
        return qd.randn(dt=qd.f64)

    assert draw() != 0

    @qd.kernel
    def fail():
        qd.static_assert(cond=False, msg="said so")

    with pytest.raises(qd.QuadrantsCompilationError, match="said so"):
        fail()
