"""Numbers that Python reads inside of a tape: their gradients flow on through Python's arithmetic, arguments of kernels, and writes."""

import dataclasses
import json
import math
import operator
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from tests import needs

pytestmark = pytest.mark.usefixtures("session")


class Program:
    """Memory and kernels that the tests share. ``k``: a number, ``x``: numbers, ``v``: a vector, ``loss``: of all."""

    def __init__(self, dtype: Any = sg.f32):
        self.k, self.x, self.loss = (sg.field(dtype, shape=shape, needs_grad=True) for shape in ((), 4, ()))
        self.v = sg.Vector.field(3, dtype, shape=2, needs_grad=True)
        self.array = sg.ndarray(dtype, 4, needs_grad=True)
        x, v, loss, k = self.x, self.v, self.loss, self.k

        @sg.kernel
        def weighted(a: dtype):
            for i in x:
                loss[None] += a * x[i] ** 2

        @sg.kernel
        def squares():
            for i in x:
                loss[None] += (i + 1) * x[i] ** 2

        @sg.kernel
        def lengths():
            for i in v:
                loss[None] += v[i].norm_sqr()

        @sg.kernel
        def of_vector(a: sg.types.vector(3, dtype), s: dtype, n: sg.i32):
            for i in x:
                loss[None] += (a[0] * a[1] + a[2] ** 2) * s * x[i] * n

        @sg.kernel
        def times(a: dtype):
            k[None] = k[None] * a

        self.weighted, self.squares, self.lengths, self.of_vector, self.times = weighted, squares, lengths, of_vector, times
        self.x.from_numpy(np.array([1.0, 2.0, -1.0, 0.5]))
        self.v.from_numpy(np.array([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]]))
        self.array.from_numpy(np.array([0.5, 1.5, 2.5, 3.5]))
        self.k[None] = 3.0


def _warnings(caplog: Any) -> list[str]:
    return [r.getMessage() for r in caplog.records if "read from memory with a gradient" in r.getMessage()]


def _checked(run: Callable[[Program], None], caplog: Any, **options: Any) -> None:
    """Compare the gradients of a program with central differences."""
    p = Program(sg.f64)
    memories = {"k": p.k, "x": p.x, "v": p.v, "array": p.array}
    start = {name: memory.to_numpy() for name, memory in memories.items()}

    def reset() -> None:
        for name, memory in memories.items():
            memory.from_numpy(start[name])
        p.loss[None] = 0.0

    with sg.ad.Tape(p.loss, **options):
        run(p)
    gradients = {name: memory.grad.to_numpy() for name, memory in memories.items()}
    assert not _warnings(caplog)
    some = False
    for name, memory in memories.items():
        for at in np.ndindex(*start[name].shape):
            values = []
            for step in (1e-5, -1e-5):
                reset()
                changed = np.array(start[name])
                changed[at] += step
                memory.from_numpy(changed)
                run(p)
                values.append(p.loss[None])
            difference = (values[0] - values[1]) / 2e-5
            some = some or difference != 0
            assert math.isclose(gradients[name][at], difference, rel_tol=1e-5, abs_tol=1e-6), (name, at)
    assert some


def _argument(p: Program) -> None:
    p.weighted(p.k[None])


def _write(p: Program) -> None:
    p.x[0] = 2 * p.k[None]
    p.squares()


def _arithmetic(p: Program) -> None:
    k, a = p.k[None], p.x[1]
    n = (k + 1) * a - a / k + k**2 + 2**k - (-a) * abs(-k) + (1 - a) / (2 + k) + k**a + (k % 2.0) + np.float64(2.0) * k
    p.weighted(n)
    p.weighted(min(k, a) + max(k, 1.0) + sum([k, a]) + sorted([k, a])[0])


def _functions(p: Program) -> None:
    k, a = p.k[None] / 4, p.x[1] / 3
    n = sg.sin(k) + sg.cos(a) + sg.tan(k) + sg.exp(k * a) + sg.log(k) + sg.sqrt(a) + sg.rsqrt(k) + sg.tanh(a) + sg.asin(k) + sg.acos(a)
    p.weighted(n + sg.atan2(k, a) + sg.max(k, a) * sg.min(k, a) + sg.abs(-a) + sg.pow(k, 3.0) + sg.math.clamp(k, 0.0, 1.0))
    p.weighted(np.sin(k) + np.sqrt(a) + sg.f64(k) + sg.math.mix(k, a, 0.25) + sg.math.fract(k))


def _vectors(p: Program) -> None:
    v = p.v[0]
    p.weighted(v[0] * v.dot(p.v[1]) + v.norm())
    p.v[1] = 2.0 * v + p.k[None]
    p.lengths()
    p.v[0][1] = p.k[None] * v[2]
    p.lengths()


def _vector_argument(p: Program) -> None:
    p.of_vector(p.v[0] * p.k[None], p.array[1], 2)
    p.of_vector([p.k[None], 1.0, p.x[0]], 2.0, 1)


def _fills(p: Program) -> None:
    p.x.fill(p.k[None] ** 2)
    p.squares()
    p.v.fill(p.array[2])
    p.lengths()
    p.array.fill(p.k[None])
    p.weighted(p.array[3])
    p.v.fill(sg.Vector([p.k[None], 1.0, p.array[0]]))
    p.lengths()


def _versions(p: Program) -> None:
    old = p.k[None]
    p.k[None] = 2.0 * old * old
    p.weighted(p.k[None] + old)
    p.times(old)
    p.weighted(p.k[None])
    p.k[None] = 1.5
    p.weighted(p.k[None])


def _steps(p: Program) -> None:
    for _ in range(5):
        a = p.k[None]
        p.times(0.5 + 0.1 * a)
        p.x[2] = p.x[2] * a
        p.squares()


def _arrays(p: Program) -> None:
    p.array[0] = p.array[1] * p.array[2]
    p.array[1:3][0] = p.array[0] + 1
    p.weighted(p.array[1] + p.array[1:][1])


def _loss(p: Program) -> None:
    p.loss[None] = p.k[None] ** 3 + p.x[0]


PROGRAMS = [_argument, _write, _arithmetic, _functions, _vectors, _vector_argument, _fills, _versions, _steps, _arrays, _loss]


@pytest.mark.archs("cpu", "interpreter")  # the others have no f64
@pytest.mark.parametrize("run", PROGRAMS)
@pytest.mark.parametrize("options", [{}, {"checkpoints": 2}], ids=["plain", "checkpoints"])
def test_against_differences(run: Callable[[Program], None], options: Any, caplog: Any) -> None:
    _checked(run, caplog, **options)


@pytest.mark.parametrize("run", PROGRAMS)
def test_all_back_ends_agree(run: Callable[[Program], None], arch: str) -> None:
    def gradients() -> list[Any]:
        p = Program()
        p_loss = p.loss
        with sg.ad.Tape(p_loss):
            if run is not _functions:
                run(p)
        return [m.grad.to_numpy() for m in (p.k, p.x, p.v, p.array)]

    found = gradients()
    sg.init(arch=sg.interpreter)
    for ours, expected in zip(found, gradients()):
        assert np.allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_the_case_of_an_argument_and_a_write() -> None:
    p = Program()
    p.x.fill(2.0)
    with sg.ad.Tape(p.loss):
        p.weighted(p.k[None])
    assert p.k.grad[None] == 16
    p.x.fill(0.0)
    with sg.ad.Tape(p.loss):
        p.x[0] = 2 * p.k[None]
        p.squares()
    assert p.k.grad[None] == 24


def test_a_tape_without_loss_runs_again() -> None:
    p = Program()
    p.x.fill(2.0)
    with sg.ad.Tape() as tape:
        p.weighted(p.k[None])
    for _ in range(2):
        p.k.grad.fill(0.0)
        p.x.grad.fill(0.0)
        p.loss.grad.fill(1.0)
        tape.grad()
        assert p.k.grad[None] == 16


def test_structs_and_shapes() -> None:
    particle = sg.types.struct(mass=sg.f32, position=sg.math.vec2)
    s, loss = particle.field(shape=2, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def energy(p: particle):
        loss[None] += p.mass * p.position.dot(p.position)

    s[0].mass, s[0].position = 2.0, [1.0, 3.0]
    with sg.ad.Tape(loss):
        energy(particle(mass=s[0].mass, position=s[0].position))
    assert s.mass.grad[0] == 10 and (s.position.grad.to_numpy()[0] == [4, 12]).all()


LEAVES = [
    float, int, bool, round, math.sin, np.asarray, lambda n: np.array([1.0, 2.0]) * n, lambda n: operator.mod("%f", n),
    lambda n: 1 if n > 2 else 0, lambda n: n.item(), lambda n: np.array([n, n]),
]  # fmt: skip


@pytest.mark.parametrize("leave", LEAVES)
def test_what_leaves_is_reported(leave: Any, caplog: Any) -> None:
    p = Program()
    with sg.ad.Tape(p.loss):
        n = p.k[None]  # read here
        leave(n)
        leave(n)
        p.weighted(n)
    (text,) = _warnings(caplog)
    assert "# read here" in text and "test_numbers_of_python.py:" in text


def test_what_stays_is_silent(caplog: Any) -> None:
    p = Program()
    p.k[None] += 1.0
    with sg.ad.Tape(p.loss):
        n = p.k[None]
        assert f"{n:.2f} {n}" == "4.00 4.0" and str(n) == "4.0" and hash(n) == hash(4.0)
        p.weighted(sg.stop_grad(n))
        p.weighted(min(n, 2.0))
    assert p.k.grad[None] == 0
    assert float(n) == 4 and n > 3 and math.sqrt(n) == 2 and json.dumps(float(n)) == "4.0"
    with sg.ad.Tape(p.loss):
        p.weighted(n)  # of a tape that is closed: a number
    assert not _warnings(caplog)
    assert type(p.k[None]) is float


def test_functions_that_are_not_differentiated_get_plain_numbers(caplog: Any) -> None:
    p = Program()

    @sg.ad.no_grad
    def look() -> None:
        assert type(p.k[None]) is float

    with sg.ad.Tape(p.loss):
        look()
        p.squares()
    assert not _warnings(caplog)


def test_where_a_number_would_be_frozen() -> None:
    p = Program()

    @sg.kernel
    def template(a: sg.template()):
        for i in p.x:
            p.loss[None] += a * p.x[i]

    with pytest.raises(sg.SpirogradError, match=r"(?s)a constant of a kernel.*# read here"), sg.ad.Tape(p.loss):
        template(p.k[None])  # read here


def test_forward_mode_and_second_order_refuse_numbers() -> None:
    p = Program()
    dual = sg.field(sg.f32, shape=(), needs_dual=True)
    out = sg.field(sg.f32, shape=(), needs_dual=True)

    @sg.kernel
    def scaled(a: sg.f32):
        out[None] = a * 2

    with pytest.raises(sg.SpirogradError, match=r"(?s)forward mode.*# read here"), sg.ad.FwdMode(loss=out, param=dual, seed=[1.0]):
        assert f"{dual[None]:.1f}" == "0.0"
        scaled(dual[None])  # read here
    with pytest.raises(sg.SpirogradError, match=r"(?s)`hvp` does not follow.*# read here"):
        sg.ad.hvp(lambda: p.weighted(p.k[None]), p.loss, p.x, np.ones(4))  # read here


@pytest.mark.archs("cpu", "interpreter")  # the others have no f64
def test_checks_by_differences_refuse_numbers() -> None:
    p = Program(sg.f64)
    refused = pytest.raises(sg.SpirogradError, match=r"(?s)`grad_check` runs launches again.*# read here")
    with refused, sg.ad.Tape(p.loss, grad_check=[p.x]):
        p.weighted(p.k[None])  # read here


def test_in_a_function_that_runs_again() -> None:
    p = Program()

    def step() -> None:
        p.times(p.k[None])
        p.weighted(p.k[None])

    found = []
    for repeat in (lambda function: function(), sg.ad.checkpoint):
        p.k[None] = 1.1
        with sg.ad.Tape(p.loss):
            for _ in range(3):
                repeat(step)
        found.append((p.k.grad[None], *p.x.grad.to_numpy()))
    assert found[0] == found[1] and found[0][0] != 0


def test_kernels_as_graphs_refuse_numbers() -> None:
    p = Program()

    @sg.kernel(graph=True)
    def twice(a: sg.f32):
        for i in p.x:
            p.loss[None] += a * p.x[i]

    with pytest.raises(sg.SpirogradError, match=r"(?s)argument `a`.*# read here"), sg.ad.Tape(p.loss):
        twice(p.k[None])  # read here


def test_members_of_data_classes_refuse_numbers() -> None:
    p = Program()

    @dataclasses.dataclass
    class Options:
        a: sg.f32

    @sg.kernel
    def weighted(options: Options):
        for i in p.x:
            p.loss[None] += options.a * p.x[i]

    with pytest.raises(sg.SpirogradError, match=r"(?s)argument.*# read here"), sg.ad.Tape(p.loss):
        weighted(Options(p.k[None]))  # read here


def test_methods_and_arguments_by_name() -> None:
    @sg.data_oriented
    class Model:
        def __init__(self) -> None:
            self.k, self.loss = (sg.field(sg.f32, shape=(), needs_grad=True) for _ in range(2))

        @sg.kernel
        def add(self, a: sg.f32, b: sg.f32):
            self.loss[None] += a * a * b

    model = Model()
    model.k[None] = 3.0
    with sg.ad.Tape(model.loss):
        model.add(b=2.0, a=model.k[None])
        model.add(model.k[None], model.k[None] * 2)
    assert model.k.grad[None] == 12 + 6 * 9


def test_memory_without_a_gradient_breaks_the_chain() -> None:
    p = Program()
    y = sg.field(sg.f32, shape=())

    @sg.kernel
    def use():
        p.loss[None] += y[None] * p.x[0]

    with pytest.raises(sg.SpirogradError, match="gradients end at `y`"), sg.ad.Tape(p.loss):
        y[None] = p.k[None] * 2
        use()


def test_torch_numbers_get_gradients() -> None:
    torch = needs.package("torch")
    array = sg.types.ndarray(sg.f32, 1)

    @sg.kernel
    def power(u: array, a: sg.f32, y: array, b: sg.f32):
        for i in u:
            y[i] = a * u[i] ** 2 + b

    f = sg.ad.torch_function(power, {"y": "u"})
    u = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    a, b = torch.tensor(0.5, requires_grad=True), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (f(u, a, b=b) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert np.allclose(u.grad.numpy(), [1, 4, 9]) and a.grad.item() == 36 and b.grad.item() == 6
    assert a.grad.shape == a.shape
    assert np.allclose(f(u, 2.0, 1.0).detach().numpy(), [3, 9, 19])


def test_numbers_while_another_thread_runs():
    """The memory that hands a number to a kernel is written by the thread of the tape."""
    p = Program()
    p.x.fill(1.0)
    p.k[None] = 3.0
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with sg.ad.Tape(p.loss):
            p.weighted(p.k[None])
            p.weighted(2.0 * p.k[None])
    finally:
        done.set()
        other.join()
    assert p.k.grad[None] == 12.0
