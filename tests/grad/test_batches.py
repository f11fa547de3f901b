"""Batches under `hvp`, forward mode, checkpoints and `sg.ad.program`: each environment has derivatives of its own."""

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
N = 4


class Decay:
    """Steps of ``x``, each in a slice of its own, towards ``loss``: the sum of the fourth powers of the last one."""

    def __init__(self, steps=3):
        batch = sg.batch(N)
        self.x, self.loss = batch.field(sg.f32, (steps + 1, 2), needs_grad=True), batch.field(sg.f32, needs_grad=True)
        self.rate = sg.field(sg.f32, (), needs_grad=True)
        self.rate[None] = 0.5
        self.steps, x, loss, rate = steps, self.x, self.loss, self.rate

        @sg.kernel
        def step(t: sg.i32):
            for i in range(2):
                x[t + 1, i] = x[t, i] * (1.0 - rate[None] * x[t, 1 - i])

        @sg.kernel
        def measure():
            loss[None] = 0.0
            for i in range(2):
                loss[None] += x[steps, i] ** 4

        self.kernels = step, measure

    def run(self):
        for t in range(self.steps):
            self.kernels[0](t)
        self.kernels[1]()


def value(x, rate=0.5, steps=3):
    """The loss of each row of ``x`` in f64."""
    for _ in range(steps):
        x = x * (1 - rate * x[:, ::-1])
    return (x**4).sum(1)


def along(x, direction, h=1e-6):
    """The derivatives of `value` along a direction, by central differences."""
    return (value(x + h * direction) - value(x - h * direction)) / (2 * h)


def gradient(x):
    return np.stack([along(x, np.eye(2)[k]) for k in range(2)], 1)


X = np.random.default_rng(0).random((N, 2)) * 0.5 + 0.25


def start(program):
    x = np.zeros((N, program.steps + 1, 2), np.float32)
    x[:, 0] = X
    program.x.from_numpy(x)


def test_checkpoints():
    program = Decay(steps=8)
    start(program)
    with sg.ad.Tape(program.loss, checkpoints=2):
        program.run()
    x_grad = program.x.grad.to_numpy()[:, 0]
    start(program)
    with sg.ad.Tape(program.loss):
        program.run()
    assert (program.x.grad.to_numpy()[:, 0] == x_grad).all()
    np.testing.assert_allclose(program.loss.to_numpy(), value(X, steps=8), rtol=1e-5)


def test_hvp():
    program = Decay()
    start(program)
    direction = np.zeros((N, 4, 2), np.float32)
    direction[:, 0] = np.random.default_rng(1).random((N, 2))
    found = sg.ad.hvp(program.run, program.loss, program.x, direction)[:, 0]
    h = 1e-4
    wanted = (gradient(X + h * direction[:, 0]) - gradient(X - h * direction[:, 0])) / (2 * h)
    np.testing.assert_allclose(found, wanted, rtol=1e-3)


def test_program():
    program = Decay()
    first = program.x

    @sg.kernel
    def begin():
        for i in range(2):
            first[0, i] = given[i]

    given = program.x.batch.field(sg.f32, 2, needs_grad=True)

    def simulate():
        begin()
        program.run()

    f = sg.ad.program(simulate, inputs=[given, program.rate], outputs=program.loss)
    found, (by_start, by_rate) = f.value_and_grad(X.astype(np.float32), 0.5)
    np.testing.assert_allclose(found, value(X), rtol=1e-5)
    np.testing.assert_allclose(by_start, gradient(X), rtol=1e-4)
    np.testing.assert_allclose(by_rate, ((value(X, 0.5 + 1e-6) - value(X, 0.5 - 1e-6)) / 2e-6).sum(), rtol=1e-4)
    alike = f(X[0].astype(np.float32), 0.5)  # The same for all environments.
    np.testing.assert_allclose(alike, np.full(N, value(X[:1])[0]), rtol=1e-5)
