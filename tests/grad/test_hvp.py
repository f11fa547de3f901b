"""`sg.ad.hvp` on every back end, against torch's Hessian-vector products."""

from __future__ import annotations

import needs
import numpy as np
import pytest

import spirograd as sg

torch = needs.package("torch")
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
N = 7


def vector(seed, shape=N):
    return np.random.default_rng(seed).uniform(0.3, 1.7, shape).astype(np.float32)


def reference(function, x, v):
    """The gradient of ``function`` at ``x`` and the product of its Hessian with ``v``, in f64."""
    x, v = torch.tensor(x, dtype=torch.float64), torch.tensor(v, dtype=torch.float64)
    _, product = torch.autograd.functional.hvp(function, x, v)
    return torch.autograd.functional.jacobian(function, x).numpy(), product.numpy()


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=5e-4, atol=5e-5)


def fields(*shapes):
    return [sg.field(sg.f32, shape=shape, needs_grad=True) for shape in shapes]


def test_one_kernel():
    x, loss = fields(N, ())

    @sg.kernel
    def run():
        for i in x:
            loss[None] += sg.sin(x[i]) * x[(i + 1) % N] ** 2 / (1.0 + x[i])

    x.from_numpy(vector(1))
    product = sg.ad.hvp(run, loss, x, vector(2))
    gradient, wanted = reference(lambda x: (torch.sin(x) * torch.roll(x, -1) ** 2 / (1.0 + x)).sum(), vector(1), vector(2))
    close(product, wanted)
    close(x.grad.to_numpy(), gradient)


def test_adjoints_that_are_zero_have_tangents():
    """Rules whose partial derivatives can be infinite give nothing for an adjoint of 0; where they are finite, it may grow."""
    x, loss = fields((6, 2), ())

    @sg.kernel
    def run():
        for k in range(1):
            loss[None] += (
                sg.sqrt(x[0, 0]) * x[0, 1]
                + (x[1, 0] / 3.0) * x[1, 1]
                + (2.0 / x[2, 0]) * x[2, 1]
                + sg.log(x[3, 0]) * x[3, 1]
                + (x[4, 0] ** 2.5) * x[4, 1]
                + sg.acos(x[5, 0]) * x[5, 1]
            )

    def function(x):
        a, b = x[:, 0], x[:, 1]
        parts = torch.sqrt(a[0]), a[1] / 3.0, 2.0 / a[2], torch.log(a[3]), a[4] ** 2.5, torch.acos(a[5])
        return sum(part * factor for part, factor in zip(parts, b))

    start = np.stack([vector(3, 6), np.zeros(6, np.float32)], axis=1)
    start[5, 0] = 0.4
    x.from_numpy(start)
    direction = vector(4, (6, 2))
    close(sg.ad.hvp(run, loss, x, direction), reference(function, start, direction)[1])
    start[0, 0] = 0.0  # the derivative of the root is infinite there: nothing flows, rather than NaN
    x.from_numpy(start)
    assert sg.ad.hvp(run, loss, x, direction)[0, 0] == 0


def test_several_kernels_and_runs():
    x, y, loss = fields(N, N, ())

    @sg.kernel
    def clear():
        loss[None] = 0.0

    @sg.kernel
    def first(scale: sg.f32):
        for i in x:
            y[i] = sg.exp(x[i] * scale) * x[i]

    @sg.kernel
    def second():
        for i in y:
            if y[i] > 0.8:
                loss[None] += y[i] * y[(i + 2) % N]

    def run():
        clear()
        first(0.7)
        second()

    def function(x):
        y = torch.exp(x * float(np.float32(0.7))) * x
        return torch.where(y > 0.8, y * torch.roll(y, -2), 0.0).sum()

    for seed in range(3):
        x.from_numpy(vector(seed))
        gradient, wanted = reference(function, vector(seed), vector(seed + 5))
        close(sg.ad.hvp(run, loss, x, vector(seed + 5)), wanted)
        close(x.grad.to_numpy(), gradient)


def test_steps_in_time():
    """Each step reads what the one before wrote, at another index."""
    steps = 4
    x, loss = fields((steps + 1, N), ())

    @sg.kernel
    def step(t: sg.i32):
        for i in range(N):
            x[t + 1, i] = x[t, i] + 0.2 * sg.sin(x[t, (i + 1) % N]) * x[t, i]

    @sg.kernel
    def total():
        loss[None] = 0.0
        for i in range(N):
            loss[None] += x[steps, i] ** 2

    def run():
        for t in range(steps):
            step(t)
        total()

    def function(start):
        x = start[0]
        for _ in range(steps):
            x = x + 0.2 * torch.sin(torch.roll(x, -1)) * x
        return (x**2).sum()

    start, direction = np.zeros((2, steps + 1, N), np.float32)
    start[0], direction[0] = vector(1), vector(2)
    x.from_numpy(start)
    close(sg.ad.hvp(run, loss, x, direction)[0], reference(function, start, direction)[1][0])


def test_arrays_and_vectors():
    @sg.kernel
    def run(x: sg.types.ndarray(), w: sg.types.ndarray(), loss: sg.types.ndarray()):
        for i in range(x.shape[0]):
            loss[0] += x[i].norm() * w[i] + x[i].dot(x[(i + 1) % N]) ** 2

    x = sg.Vector.ndarray(3, sg.f32, N, needs_grad=True)
    w, loss = sg.ndarray(sg.f32, N, needs_grad=True), sg.ndarray(sg.f32, 1, needs_grad=True)
    a, v, b, u = vector(1, (N, 3)), vector(2, (N, 3)), vector(3), vector(4)
    x.from_numpy(a)
    w.from_numpy(b)
    found = sg.ad.hvp(lambda: run(x, w, loss), loss, [x, w], [v, u])

    def function(x, w):
        return (x.norm(dim=1) * w + (x * torch.roll(x, -1, 0)).sum(1) ** 2).sum()

    inputs, directions = [tuple(torch.tensor(p, dtype=torch.float64) for p in pair) for pair in ((a, b), (v, u))]
    wanted = torch.autograd.functional.hvp(function, inputs, directions)[1]
    for mine, theirs in zip(found, wanted):
        close(mine, theirs.numpy())


def test_a_whole_hessian_is_symmetric():
    x, loss = fields(N, ())

    @sg.kernel
    def run():
        loss[None] = 0.0
        for i in x:
            for j in range(N):
                loss[None] += sg.cos(x[i] * x[j]) * (i + 1)

    x.from_numpy(vector(1))
    hessian = np.stack([sg.ad.hvp(run, loss, x, row) for row in np.eye(N, dtype=np.float32)])
    close(hessian, hessian.T)
    close(hessian[2], reference(lambda x: (torch.cos(x[:, None] * x) * torch.arange(1, N + 1)[:, None]).sum(), vector(1), np.eye(N)[2])[1])


def test_loops_that_carry_values():
    x, y, loss = fields(N, N, ())

    @sg.kernel
    def run():
        for i in x:
            v, w = x[i], 0.0
            for j in range(i):
                v = sg.sin(v) * x[j] + 0.5
                if v > 0.9:
                    w += v * v
            y[i] = v * w

    @sg.kernel
    def total():
        loss[None] = 0.0
        for i in y:
            loss[None] += y[i] * sg.exp(y[i])

    def function(x):
        out = []
        for i in range(N):
            v, w = x[i], 0.0 * x[i]
            for j in range(i):
                v = torch.sin(v) * x[j] + 0.5
                w = torch.where(v > 0.9, w + v * v, w)
            out.append(v * w)
        y = torch.stack(out)
        return (y * torch.exp(y)).sum()

    x.from_numpy(vector(1))
    gradient, wanted = reference(function, vector(1), vector(2))
    close(sg.ad.hvp(lambda: (run(), total()), loss, x, vector(2)), wanted)
    close(x.grad.to_numpy(), gradient)


def test_maxima():
    x, loss = fields(N, ())

    @sg.kernel
    def run():
        loss[None] = -100.0
        for i in x:
            sg.atomic_max(loss[None], x[i] * x[(i + 1) % N] * sg.sin(x[i]))

    x.from_numpy(vector(1))
    close(sg.ad.hvp(run, loss, x, vector(2)), reference(lambda x: (x * torch.roll(x, -1) * torch.sin(x)).max(), vector(1), vector(2))[1])


def test_random_numbers_are_drawn_again():
    x, loss = fields(N, ())

    @sg.kernel
    def run():
        for i in x:
            loss[None] += x[i] ** 3 * sg.random()

    x.fill(0.0)
    x[2] = 2.0
    loss[None] = 0.0
    direction = np.zeros(N, np.float32)
    direction[2] = 1.0
    product = sg.ad.hvp(run, loss, x, direction)
    factor = loss[None] / 8.0
    close(product[2], 12.0 * factor)
    close(x.grad[2], 12.0 * factor)


def test_what_the_host_writes():
    x, y, loss = fields(N, N, ())

    @sg.kernel
    def first():
        for i in x:
            y[i] = x[i] ** 3

    @sg.kernel
    def second():
        for i in y:
            loss[None] += y[i] * x[i]

    def run():
        loss[None] = 0.0
        first()
        y[3] = 0.25
        second()

    def function(x):
        return (torch.where(torch.arange(N) == 3, 0.25, x**3) * x).sum()

    x.from_numpy(vector(1))
    for _ in range(2):
        gradient, wanted = reference(function, vector(1), vector(2))
        close(sg.ad.hvp(run, loss, x, vector(2)), wanted)
        close(x.grad.to_numpy(), gradient)


def test_what_the_host_overwrites():
    x, y, z, loss = fields(N, N, N, ())

    @sg.kernel
    def cube():
        for i in y:
            z[i] = y[i] ** 3

    @sg.kernel
    def add():
        for i in y:
            loss[None] += z[i] * y[i]

    def run():
        loss[None] = 0.0
        y.copy_from(x)
        cube()
        y.fill(2.0)  # which the gradient of `cube` needs as it was
        y[1] = 0.5
        add()
        y.copy_from(z)

    weights = torch.full((N,), 2.0, dtype=torch.float64)
    weights[1] = 0.5
    x.from_numpy(vector(1))
    for _ in range(2):
        gradient, wanted = reference(lambda x: (x**3 * weights).sum(), vector(1), vector(2))
        close(sg.ad.hvp(run, loss, x, vector(2)), wanted)
        close(x.grad.to_numpy(), gradient)
        close(y.to_numpy(), vector(1) ** 3)
    a = sg.ndarray(sg.f32, N, needs_grad=True)
    with pytest.raises(sg.SpirogradRuntimeError, match="between two parts of one array"):
        sg.ad.hvp(lambda: a[1:].copy_from(a[:-1]), loss, x, vector(2))


def test_what_kernels_overwrite():
    """In steps that overwrite their state, of a field and an ndarray, as simulations do."""
    x, y, rate, loss = fields(N, N, (), ())
    z = sg.ndarray(sg.f32, N, needs_grad=True)

    @sg.kernel
    def start():
        for i in x:
            y[i] = x[i]
            z[i] = 0.5

    @sg.kernel
    def step():
        for i in y:
            y[i] += rate[None] * sg.sin(z[i])

    @sg.kernel
    def back():
        for i in y:
            z[i] -= rate[None] * y[i] ** 2

    @sg.kernel
    def measure():
        for i in y:
            loss[None] += y[i] * z[i]

    def run():
        loss[None] = 0.0
        start()
        for _ in range(4):
            step()
            back()
        measure()

    def function(flat):
        y, z, r = flat[:N], torch.full((N,), 0.5, dtype=torch.float64), flat[N]
        for _ in range(4):
            y = y + r * torch.sin(z)
            z = z - r * y**2
        return (y * z).sum()

    x.from_numpy(vector(1))
    rate[None] = 0.1
    flat, direction = np.append(vector(1), np.float32(0.1)), np.append(vector(2), np.float32(0.7))
    gradient, wanted = reference(function, flat, direction)
    for _ in range(2):
        by_x, by_rate = sg.ad.hvp(run, loss, [x, rate], [direction[:N], direction[N]])
        close(np.append(by_x, by_rate), wanted)
        close(np.append(x.grad.to_numpy(), rate.grad[None]), gradient)
        close(loss[None], function(torch.tensor(flat)).item())


# --- what is refused ---------------------------------------------------------------------------------------------------


def test_what_is_overwritten_twice():
    x, loss = fields(N, ())

    @sg.kernel
    def inside():
        for i in x:
            x[i] = x[i] * x[i]
        for i in x:
            x[i] = x[i] * x[i]

    with pytest.raises(sg.SpirogradRuntimeError, match="overwrites `x` more than once"):
        sg.ad.hvp(inside, loss, x, vector(1))


def test_mistakes():
    x, loss = fields(N, ())
    plain = sg.field(sg.f32, shape=N)

    @sg.kernel
    def there():
        for i in x:
            plain[i] = x[i] * x[i]

    @sg.kernel
    def back():
        for i in x:
            loss[None] += plain[i]

    @sg.kernel
    def value() -> sg.f32:
        return x[0] * x[1]

    cases = (
        (lambda: (there(), back()), loss, x, vector(1), "`plain` has no gradient"),
        (value, loss, x, vector(1), "returns a value"),
        (back, loss, plain, vector(1), "has no gradient"),
        (back, loss, x, vector(1, 3), "shape"),
        (lambda: sg.ad.hvp(back, loss, x, vector(1)), loss, x, vector(1), "inside of"),
    )
    for function, to, by, v, pattern in cases:
        with pytest.raises(sg.SpirogradRuntimeError, match=pattern):
            sg.ad.hvp(function, to, by, v)
    for to, by, v in ((x, x, vector(1)), (3.0, x, vector(1)), (loss, [x], [])):
        with pytest.raises(sg.SpirogradTypeError):
            sg.ad.hvp(back, to, by, v)
    for decorate, pattern in (
        (sg.ad.no_grad, "`back`, which is left out"),
        (sg.ad.grad_replaced, "`back`, which has a gradient of its own"),
    ):

        @decorate
        def wrapped():
            back()

        wrapped.__wrapped__.__name__ = "back"
        with pytest.raises(sg.SpirogradRuntimeError, match=pattern):
            sg.ad.hvp(wrapped, loss, x, vector(1))
    assert sg.lang.context.recorder() is None
