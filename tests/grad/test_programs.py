"""Programs as functions of arrays (`sg.ad.program`), against f64 in NumPy, torch and JAX."""

from __future__ import annotations

import needs
import numpy as np
import pytest

import spirograd as sg

torch = needs.package("torch")
jax = needs.package("jax")
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
N = 5
X, RATE = np.linspace(0.1, 1.2, N, dtype=np.float32), np.float32(0.3)


class Pendulums:
    """Steps that overwrite their state, and a loss: in a field, an ndarray of vectors, and numbers."""

    def __init__(self):
        self.start, self.rate, self.loss = (sg.field(sg.f32, shape, needs_grad=True) for shape in (N, (), ()))
        self.state = sg.Vector.ndarray(2, sg.f32, N, needs_grad=True)
        start, rate, loss = self.start, self.rate, self.loss

        @sg.kernel
        def begin(state: sg.types.NDArray):
            for i in state:
                state[i] = sg.Vector([start[i], 0.0])

        @sg.kernel
        def step(state: sg.types.NDArray):
            for i in state:
                speed = state[i][1] - rate[None] * sg.sin(state[i][0])
                state[i] = sg.Vector([state[i][0] + rate[None] * speed, speed])

        @sg.kernel
        def measure(state: sg.types.NDArray):
            for i in state:
                loss[None] += state[i][0] ** 2 + 0.5 * state[i][1] ** 2

        self.begin, self.step, self.measure = begin, step, measure

    def simulate(self, steps=6):
        self.begin(self.state)
        for _ in range(steps):
            self.step(self.state)
        self.measure(self.state)

    def program(self, **options):
        return sg.ad.program(self.simulate, [self.start, self.rate], self.loss, **options)


def reference(start, rate, steps=6, m=np):
    angle, speed = start, 0.0 * start
    for _ in range(steps):
        speed = speed - rate * m.sin(angle)
        angle = angle + rate * speed
    return (angle**2 + 0.5 * speed**2).sum()


def slopes(function, values, step=1e-5):
    """The gradients of a function of arrays, by central differences in f64."""
    values = [np.asarray(v, np.float64) for v in values]
    found = []
    for k, value in enumerate(values):
        gradient = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            ends = []
            for sign in (step, -step):
                moved = [v.copy() for v in values]
                moved[k][index] += sign
                ends.append(function(*moved))
            gradient[index] = (ends[0] - ends[1]) / (2 * step)
        found.append(gradient)
    return found


def close(found, wanted, rtol=2e-4):
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=rtol, atol=2e-5)


# --- alone -------------------------------------------------------------------------------------------------------------


def test_values_and_gradients():
    p = Pendulums().program()
    for values, steps in (((X, RATE), 6), ((X * 0.5, RATE), 0), ((X, RATE * 2), 1)):
        close(p(*values, steps=steps), reference(*map(np.float64, values), steps))
        value, gradients = p.value_and_grad(*values, steps=steps)
        close(value, reference(*map(np.float64, values), steps))
        for found, wanted in zip(gradients, slopes(lambda *v, n=steps: reference(*v, n), values)):
            close(found, wanted)


def test_gradients_of_calls_in_any_order():
    p = Pendulums().program()
    x = X.copy()
    calls = [p.vjp(x, RATE), p.vjp(x, RATE * 2), p.vjp(x, RATE, steps=2)]
    x[:] = 7.0  # the caller's array is its own
    for k in (2, 0, 1, 0):
        rate, steps = (RATE, RATE * 2, RATE)[k], (6, 6, 2)[k]
        wanted = slopes(lambda *v, n=steps: reference(*v, n), (X, rate))
        for found, one in zip(calls[k][1](2.0), wanted):
            close(found, 2.0 * one)


def test_tangents_and_hessians():
    p = Pendulums().program()
    v = [np.linspace(1.0, -1.0, N, dtype=np.float32), np.float32(0.5)]
    value, slope = p.jvp([X, RATE], v)
    close(value, reference(np.float64(X), np.float64(RATE)))
    gradients = slopes(reference, (X, RATE))
    close(slope, sum((g * d).sum() for g, d in zip(gradients, v)))

    def along(*values):
        return sum((g * d).sum() for g, d in zip(slopes(reference, values, 1e-4), v))

    for found, wanted in zip(p.hvp([X, RATE], v), slopes(along, (X, RATE), 1e-4)):
        close(found, wanted, 2e-3)


def test_tangents_leave_other_memory_as_it_is():
    """`jvp` writes to no gradient, and `hvp` to those of the program only; tangents of other memory stay, too."""
    pendulums = Pendulums()
    p, other = pendulums.program(), sg.field(sg.f32, N, needs_grad=True, needs_dual=True)
    for shadow in (other.grad, other.dual, pendulums.rate.grad, pendulums.state.grad):
        shadow.fill(3.0)
    v = [np.linspace(1.0, -1.0, N, dtype=np.float32), np.float32(0.5)]
    _, slope = p.jvp([X, RATE], v)
    _, again = p.jvp([X, RATE], v)  # the tangents of the first call are gone
    close(again, slope)
    for shadow in (other.grad, other.dual, pendulums.rate.grad, pendulums.state.grad):
        assert (shadow.to_numpy() == 3.0).all()
    hessian = p.hvp([X, RATE], v)
    for found, wanted in zip(p.hvp([X, RATE], v), hessian):
        close(found, wanted)
    assert (other.grad.to_numpy() == 3.0).all() and (other.dual.to_numpy() == 3.0).all()


def test_trees_and_several_outputs():
    a, b, total = (sg.field(sg.f32, shape, needs_grad=True) for shape in (3, 3, ()))
    product = sg.ndarray(sg.f32, 3, needs_grad=True)

    @sg.kernel
    def multiply(out: sg.types.NDArray):
        for i in a:
            out[i] = a[i] * b[i]
            total[None] += a[i]

    p = sg.ad.program(lambda: multiply(product), {"a": a, "pair": (b,)}, {"total": total, "others": [product]})
    given = {"a": [1.0, 2.0, 3.0], "pair": ([4.0, 5.0, 6.0],)}
    out, pullback = p.vjp(**given)
    assert out["total"] == 6.0 and out["others"][0].tolist() == [4.0, 10.0, 18.0]
    gradients = pullback({"total": 10.0, "others": [[1.0, 0.0, 2.0]]})
    assert gradients["a"].tolist() == [14.0, 10.0, 22.0] and gradients["pair"][0].tolist() == [1.0, 0.0, 6.0]
    assert p([1.0, 1.0, 1.0], ([2.0, 2.0, 2.0],))["total"] == 3.0


def test_what_is_input_and_output():
    x = sg.field(sg.f32, 3, needs_grad=True)

    @sg.kernel
    def double():
        for i in x:
            x[i] = 2.0 * x[i] + 1.0

    p = sg.ad.program(double, x, x)
    out, pullback = p.vjp([1.0, 2.0, 3.0])
    assert out.tolist() == [3.0, 5.0, 7.0] and p([0.0, 0.0, 1.0]).tolist() == [1.0, 1.0, 3.0]
    assert pullback([1.0, 0.0, -1.0])[0].tolist() == [2.0, 0.0, -2.0]


def test_random_numbers_repeat():
    x, out = sg.field(sg.f32, 4, needs_grad=True), sg.field(sg.f32, 4, needs_grad=True)

    @sg.kernel
    def scale():
        for i in x:
            out[i] = x[i] * sg.random()

    p = sg.ad.program(lambda: (scale(), scale()), x, out)
    first, pullback = p.vjp(np.ones(4))
    assert (p(np.full(4, 2.0)) == 2.0 * first).all() and (p(np.ones(4)) == first).all()
    assert (pullback(np.ones(4))[0] == first).all()
    assert (p.jvp([np.ones(4)], [np.ones(4)])[1] == first).all()


def test_later_calls_follow_the_launches_of_the_first(arch, monkeypatch):
    monkeypatch.setenv("SG_CHECK_TAPES", "0")  # checked tapes follow none
    p, values = Pendulums().program(), [(X * k, RATE) for k in (1.0, 0.5, 0.3, 0.7, 0.9)]
    for k, given in enumerate(values):
        value, pullback = p.vjp(*given)
        assert (p.runs._last.tape._following is not None) is (arch == "cpu" and k >= 2)
        close(value, reference(*map(np.float64, given)))
        wanted = slopes(reference, given)
        for adjoint in (1.0, 2.0):  # twice: the copies stay
            for found, one in zip(pullback(adjoint), wanted):
                close(found, adjoint * one)
    for found, one in zip(p.value_and_grad(X, RATE, steps=3)[1], slopes(lambda *v: reference(*v, 3), (X, RATE))):
        close(found, one)  # other launches: it records again
    first, second = p.vjp(X, RATE)[1], p.vjp(X * 0.5, RATE)[1]
    for pullback, start in ((first, X), (second, X * 0.5), (first, X)):
        for found, one in zip(pullback(1.0), slopes(reference, (start, RATE))):
            close(found, one)


def test_random_numbers_are_followed(arch, monkeypatch):
    monkeypatch.setenv("SG_CHECK_TAPES", "0")  # checked tapes follow none
    x, y, out = (sg.field(sg.f32, 4, needs_grad=True) for _ in range(3))

    @sg.kernel
    def scale():
        for i in x:
            y[i] = x[i] * sg.random()

    @sg.kernel
    def square(k: sg.i32):
        for i in x:
            out[i] += y[i] ** 2 * (1.0 + sg.random() * k)

    def simulate(again=False):
        for k in range(3):
            scale()
            square(k)
        if again:
            scale()

    p, found = sg.ad.program(simulate, x, out), []
    for k in range(6):
        values, pullback = p.vjp(np.full(4, 1.0 + k))
        assert (p.runs._last.tape._following is not None) is (arch == "cpu" and k >= 2)
        gradients = [pullback(np.ones(4))[0] for _ in range(2)]
        assert (gradients[0] == gradients[1]).all()
        found.append((values / (1.0 + k) ** 2, gradients[0] / (2.0 + 2.0 * k)))
    assert len(set(found[0][0].tolist())) == 4
    for rates, half in found:  # out = rate * x ** 2
        np.testing.assert_allclose(rates, found[0][0], rtol=1e-6)
        np.testing.assert_allclose(half, found[0][0], rtol=1e-6)
    values, pullback = p.vjp(np.ones(4), again=True)  # another sequence, with the same numbers
    np.testing.assert_allclose(values, found[0][0], rtol=1e-6)
    np.testing.assert_allclose(pullback(np.ones(4))[0], 2 * found[0][0], rtol=1e-6)


def test_gradients_have_the_form_of_the_inputs():
    x, y = sg.field(sg.f32, (), needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def square():
        y[None] = x[None] ** 2

    forms = {"alone": x, "list": [x], "tuple": (x,), "dict": {"x": x}}
    found = {name: sg.ad.program(square, form, y).value_and_grad(3.0)[1] for name, form in forms.items()}
    assert found == {"alone": 6.0, "list": [6.0], "tuple": (6.0,), "dict": {"x": 6.0}}


def test_checkpoints_give_the_same_bits():
    pendulums = Pendulums()
    plain, few = pendulums.program(), pendulums.program(checkpoints=2)
    assert all((a == b).all() for a, b in zip(plain.value_and_grad(X, RATE)[1], few.value_and_grad(X, RATE)[1]))


def test_copies_and_fills(arch, monkeypatch):
    monkeypatch.setenv("SG_CHECK_TAPES", "0")  # checked tapes follow none
    x, y, loss = (sg.field(sg.f32, shape, needs_grad=True) for shape in (N, N, ()))

    @sg.kernel
    def add():
        for i in y:
            y[i] += x[i] ** 2

    @sg.kernel
    def measure():
        for i in y:
            loss[None] += y[i] ** 2

    def simulate(times):
        y.copy_from(x)
        for _ in range(times):
            add()
        measure()
        y.fill(3.0)

    p = sg.ad.program(simulate, x, loss)
    for k, times in enumerate((3, 3, 3, 3, 0, 1)):
        value, gradient = p.value_and_grad(X, times=times)
        assert (p.runs._last.tape._following is not None) is (arch == "cpu" and k in (2, 3))  # from the second of two equal calls on
        close(value, ((X + times * X**2) ** 2).sum())
        close(gradient, 2 * (X + times * X**2) * (1 + 2 * times * X))


# --- what a program depends on -----------------------------------------------------------------------------------------


def accumulating():
    x, out = (sg.field(sg.f32, 3, needs_grad=True) for _ in range(2))
    kept, count = sg.field(sg.f32, 3), sg.field(sg.i32, 3)

    @sg.kernel
    def run():
        for i in x:
            kept[i] += 1.0
            count[i] += 1
            out[i] = x[i] * kept[i] * count[i]

    return x, kept, count, out, run


def test_hidden_state_is_an_error():
    x, kept, count, out, run = accumulating()
    kept.fill(1.0)
    p = sg.ad.program(run, x, out)
    for _ in range(2):
        with pytest.raises(sg.SpirogradRuntimeError, match=r"depend on what `kept`, `count` held before the call"):
            p(np.ones(3))
    assert kept.to_numpy().tolist() == [1.0] * 3 and count.to_numpy().tolist() == [0] * 3
    with pytest.raises(sg.SpirogradRuntimeError, match=r"depend on what `count` held"):
        sg.ad.program(run, x, out, state=[kept])(np.ones(3))


def test_other_arguments_may_reveal_hidden_state():
    x, _, _, out, run = accumulating()

    @sg.kernel
    def copy():
        for i in x:
            out[i] = x[i]

    p = sg.ad.program(lambda counts: run() if counts else copy(), x, out)
    assert p(np.ones(3), counts=False).tolist() == [1.0] * 3
    with pytest.raises(sg.SpirogradRuntimeError, match=r"depend on what `kept`, `count`"):
        p(np.ones(3), counts=True)


def test_state_is_as_in_the_first_call():
    x, kept, count, out, run = accumulating()
    kept.fill(1.0)
    count.fill(2)
    p = sg.ad.program(run, x, out, state=[kept, count])
    for _ in range(3):
        assert p(np.ones(3)).tolist() == [6.0] * 3
    assert p.vjp(np.ones(3))[1](np.ones(3))[0].tolist() == [6.0] * 3


def test_constants_may_change_between_calls_but_not_before_the_gradient():
    x, factor, out = sg.field(sg.f32, 3, needs_grad=True), sg.field(sg.f32, ()), sg.field(sg.f32, 3, needs_grad=True)

    @sg.kernel
    def scale():
        for i in x:
            out[i] = x[i] * factor[None]

    p = sg.ad.program(scale, x, out)
    for value in (2.0, 3.0):
        factor[None] = value
        result, pullback = p.vjp(np.ones(3))
        assert result.tolist() == [value] * 3 and pullback(np.ones(3))[0].tolist() == [value] * 3
    x.fill(9.0)
    out.fill(9.0)
    assert pullback(np.ones(3))[0].tolist() == [3.0] * 3
    factor[None] = 4.0
    with pytest.raises(sg.SpirogradRuntimeError, match=r"`factor` was written after the call"):
        pullback(np.ones(3))


def test_mistakes():
    pendulums = Pendulums()
    p = pendulums.program()
    plain = sg.field(sg.f32, 3)
    make = sg.ad.program
    for call, error, pattern in (
        (lambda: p(X), sg.SpirogradTypeError, "takes 2 inputs, got 1"),
        (lambda: p([X], RATE), Exception, "shape"),
        (lambda: make(3, plain, plain), sg.SpirogradTypeError, "a function that launches kernels"),
        (lambda: make(pendulums.simulate, [3.0], pendulums.loss), sg.SpirogradTypeError, r"`inputs\[0\]` is the number 3.0"),
        (lambda: make(pendulums.simulate, plain, pendulums.loss), sg.SpirogradRuntimeError, "`inputs`: .*has no gradient"),
        (lambda: make(pendulums.simulate, [pendulums.rate] * 2, pendulums.loss), sg.SpirogradTypeError, "twice"),
        (lambda: make(pendulums.simulate, pendulums.rate, pendulums.start).hvp([RATE], [1.0]), sg.SpirogradTypeError, "one number"),
        (lambda: make(pendulums.simulate, {"r": pendulums.rate}, pendulums.loss)(), sg.SpirogradTypeError, "needs its input `r`"),
    ):
        with pytest.raises(error, match=pattern):
            call()
    with sg.ad.Tape(pendulums.loss), pytest.raises(sg.SpirogradRuntimeError, match="inside of a tape"):
        p(X, RATE)


def test_arguments_that_are_equal_but_differ():
    """1, 1.0 and True, and 0.0 and -0.0, are different arguments: for torch each has an operator of its own."""
    x, out = (sg.field(sg.f32, (), needs_grad=True) for _ in range(2))

    @sg.kernel
    def scale(factor: sg.f32):
        for _ in range(1):
            out[None] = x[None] * factor

    p = sg.ad.program(lambda factor: scale(2.0 if isinstance(factor, bool) else factor), x, out)
    for value, wanted in ((1, 1.0), (True, 2.0), (1.0, 1.0), (0.0, 0.0), (-0.0, -0.0)):
        for given in (1.0, torch.tensor(1.0)):
            found = float(p(given, factor=value))
            assert found == wanted and np.signbit(found) == np.signbit(wanted)


# --- torch and JAX -----------------------------------------------------------------------------------------------------


def test_torch():
    values = [torch.tensor(v, requires_grad=True) for v in (X, RATE)]
    p = Pendulums().program()
    weigh = lambda f, x, r: f(x, r) + f(2.0 * x, r, steps=3) ** 2  # noqa: E731
    wanted = torch.autograd.grad(weigh(lambda *v, **k: reference(*v, **k, m=torch), *values), values)
    for found, one in zip(torch.autograd.grad(weigh(p, *values), values), wanted):
        close(found, one, 1e-3)
    with torch.no_grad():
        assert not p(*values).requires_grad
    double = values[1].detach().double().reshape(1).requires_grad_()  # another shape and type than that of its memory
    p(values[0], double).backward()
    close(double.grad, torch.autograd.grad(p(*values), values)[1].reshape(1))
    assert double.grad.dtype is torch.float64 and double.grad.shape == (1,)
    slope = torch.func.jvp(lambda r: p(values[0].detach(), r), (values[1].detach(),), (torch.tensor(1.0),))[1]
    close(slope, torch.autograd.grad(p(*values), values)[1])
    batch = torch.func.vmap(lambda r: p(values[0].detach(), r))(torch.tensor([0.1, 0.2, 0.3]))
    close(batch, [reference(np.float64(X), r) for r in (0.1, 0.2, 0.3)])


def test_torch_compiles_one_graph():
    values = [torch.tensor(v, requires_grad=True) for v in (X, RATE)]
    f = Pendulums().program().torch_op(steps=2)
    compiled = torch.compile(lambda x, r: 3.0 * f(torch.cos(x), r), fullgraph=True, backend="aot_eager")
    wanted = torch.autograd.grad(3.0 * reference(torch.cos(values[0]), values[1], 2, torch), values)
    for found, one in zip(torch.autograd.grad(compiled(*values), values), wanted):
        close(found, one)


@pytest.mark.archs("interpreter", "cpu")  # what the gradients of torch check is the same on all back ends
def test_torch_gradcheck():
    a, total = sg.field(sg.f64, 3, needs_grad=True), sg.field(sg.f64, (), needs_grad=True)

    @sg.kernel
    def add():
        for i in a:
            total[None] += sg.exp(a[i]) * a[(i + 1) % 3]

    p = sg.ad.program(add, a, total)
    x = torch.tensor([0.3, -0.2, 0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(p, (x,)) and torch.autograd.gradgradcheck(p, (x,))


def test_jax():
    p = Pendulums().program()
    weigh = lambda f, x, r: f(x, r) + f(2.0 * x, r, steps=3) ** 2  # noqa: E731
    plain = lambda *v, **k: reference(*v, **k, m=jax.numpy)  # noqa: E731
    values = (jax.numpy.asarray(X), jax.numpy.float32(RATE))
    wanted = jax.grad(lambda *v: weigh(plain, *v), (0, 1))(*values)
    for found, one in zip(jax.jit(jax.grad(lambda *v: weigh(p, *v), (0, 1)))(*values), wanted):
        close(found, one, 1e-3)
    close(jax.jvp(lambda r: p(values[0], r), values[1:], (jax.numpy.float32(1),))[1], jax.grad(plain, 1)(*values))
    close(jax.hessian(p, 1)(*values), jax.hessian(plain, 1)(*values), 2e-3)
    close(jax.vmap(lambda r: p(values[0], r))(jax.numpy.array([0.1, 0.2])), [reference(np.float64(X), r) for r in (0.1, 0.2)])


def test_jax_gradients_use_the_tape_of_the_call():
    pendulums, runs = Pendulums(), []

    def simulate():
        runs.append(1)
        pendulums.simulate()

    p = sg.ad.program(simulate, [pendulums.start, pendulums.rate], pendulums.loss)
    both, value = jax.jit(jax.value_and_grad(p, (0, 1))), jax.jit(p)
    counts = []
    for k in range(4):
        x, before = X * np.float32(1 - 0.1 * k), len(runs)
        found, gradients = jax.block_until_ready(both(x, RATE))
        counts.append(len(runs) - before)
        close(found, reference(np.float64(x), np.float64(RATE)))
        for gradient, wanted in zip(gradients, slopes(reference, (x, RATE))):
            close(gradient, wanted)
    compares = sg.cfg.arch not in (sg.cuda, sg.amdgpu)  # where values lie in memory of the host
    assert counts[1:] == ([1, 1, 1] if compares else [2, 2, 2])
    for k in range(3):  # calls without gradients, and one of other values in between
        close(jax.block_until_ready(value(X, RATE)), reference(np.float64(X), np.float64(RATE)))
        assert p._functions[0][1]._gradients_follow is (compares and k == 0)
    _, pullback = jax.vjp(p, X, RATE)
    jax.block_until_ready(value(X * 0.5, RATE))
    for gradient, wanted in zip(pullback(np.float32(1.0)), slopes(reference, (X, RATE))):
        close(gradient, wanted)


def test_fields_of_structs():
    body = sg.types.struct(place=sg.types.vector(2, sg.f32), mass=sg.f32)
    bodies, energy = body.field(shape=3, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    moved = body.field(shape=3, needs_grad=True)

    @sg.kernel
    def move():
        for i in bodies:
            moved[i].place = 2.0 * bodies[i].place
            moved[i].mass = bodies[i].mass
            energy[None] += bodies[i].mass * bodies[i].place.norm_sqr()

    places, masses = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([1.0, 2.0, 3.0], np.float32)
    p = sg.ad.program(move, [bodies], {"energy": energy, "moved": moved})
    out, pullback = p.vjp({"place": places, "mass": masses})
    close(out["energy"], (masses * (places**2).sum(1)).sum())
    assert (out["moved"]["place"] == 2 * places).all() and (out["moved"]["mass"] == masses).all()
    ones = {"energy": 1.0, "moved": {"place": np.ones((3, 2)), "mass": np.zeros(3)}}
    (gradient,) = pullback(ones)
    close(gradient["place"], 2.0 * masses[:, None] * places + 2.0)
    close(gradient["mass"], (places**2).sum(1))
    alone = sg.ad.program(move, bodies, energy)
    close(alone.value_and_grad({"place": places, "mass": masses})[1]["mass"], (places**2).sum(1))
