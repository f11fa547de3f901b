"""`kernel.grad`: launched like the kernel, on fields, ndarrays and torch tensors."""

from __future__ import annotations

import logging
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

torch = needs.package("torch")

N = 6
START = np.linspace(0.2, 1.4, N)


def reference(function: Any, *starts: Any) -> list[np.ndarray]:
    """Gradients of the sum of what a function of torch tensors returns."""
    inputs = [torch.tensor(np.asarray(s), dtype=torch.float64, requires_grad=True) for s in starts]
    function(*inputs).sum().backward()
    return [t.grad.numpy() for t in inputs]


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=2e-5, atol=1e-6)


@sg.kernel
def wave(x: sg.types.ndarray(), y: sg.types.ndarray(), a: sg.f32):
    for i in x:
        y[i] = sg.sin(a * x[i]) * x[i]


def torch_wave(x: Any) -> Any:
    return torch.sin(1.5 * x) * x


def test_fields(session: Any) -> None:
    x = sg.field(sg.f32, N, needs_grad=True)
    y = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def total(a: sg.f32):
        for i in x:
            y[None] += sg.sin(a * x[i]) * x[i]

    x.from_numpy(START)
    total(1.5)
    y.grad[None] = 1.0
    total.grad(1.5)
    close(x.grad.to_numpy(), reference(torch_wave, START)[0])
    total.grad(a=1.5)  # adds
    close(x.grad.to_numpy(), 2 * reference(torch_wave, START)[0])
    assert y.grad[None] == 1.0


def test_ndarrays(session: Any) -> None:
    x, y = (sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(2))
    x.from_numpy(START)
    wave(x, y, 1.5)
    y.grad.fill(2.0)
    wave.grad(x, y, 1.5)
    close(x.grad.to_numpy(), 2 * reference(torch_wave, START)[0])
    assert not y.grad.to_numpy().any()  # y was overwritten: what it was before changes nothing


def test_torch_tensors_accumulate(session: Any) -> None:
    x = torch.tensor(START, dtype=torch.float32, requires_grad=True)
    y = torch.zeros(N, requires_grad=True)
    wave(x, y, 1.5)
    close(y.detach(), np.sin(1.5 * START) * START)
    for k in (1, 2):
        y.grad = torch.ones(N)
        wave.grad(x, y, 1.5)
        close(x.grad, k * reference(torch_wave, START)[0])


def test_torch_tensors_that_are_not_contiguous(session: Any) -> None:
    x = torch.tensor(np.stack([START, START], axis=1), dtype=torch.float32)[:, 0].detach().requires_grad_()
    assert not x.is_contiguous()
    x.grad = torch.zeros(N, 2)[:, 1]
    y = torch.zeros(N, requires_grad=True)
    y.grad = torch.ones(N)
    wave.grad(x, y, 1.5)
    close(x.grad, reference(torch_wave, START)[0])


def test_numpy_has_no_gradient(session: Any) -> None:
    x, y = (sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(2))
    x.from_numpy(START)
    y.grad.fill(1.0)

    @sg.kernel
    def scaled(x: sg.types.ndarray(), y: sg.types.ndarray(), w: sg.types.ndarray()):
        for i in x:
            y[i] = x[i] * x[i] * w[i]

    w = np.arange(N, dtype=np.float32)
    scaled.grad(x, y, w)
    close(x.grad.to_numpy(), 2 * START * w)
    assert (w == np.arange(N)).all()


def test_methods(session: Any) -> None:
    @sg.data_oriented
    class Model:
        def __init__(self, factor: float) -> None:
            self.factor = factor
            self.x = sg.field(sg.f32, N, needs_grad=True)
            self.y = sg.field(sg.f32, (), needs_grad=True)

        @sg.kernel
        def run(self, b: sg.f32):
            for i in self.x:
                self.y[None] += self.x[i] ** 2 * self.factor * b

    for model in (Model(2.0), Model(3.0)):  # each has fields and a constant of its own
        model.x.from_numpy(START)
        model.y.grad[None] = 1.0
        model.run.grad(0.5)
        close(model.x.grad.to_numpy(), START * model.factor)
        assert "takes the gradients of" in model.run.grad.explain(0.5)


def test_returned_values(session: Any) -> None:
    x = sg.field(sg.f32, N, needs_grad=True)
    x.from_numpy(START)

    @sg.kernel
    def pair() -> sg.types.vector(2, sg.f32):
        return sg.Vector([x[0] * x[1], x[2] * 3.0])

    assert pair()[0] == pytest.approx(START[0] * START[1])
    with pytest.raises(sg.SpirogradRuntimeError, match=r"returned=1\.0"):
        pair.grad()
    pair.grad(returned=[2.0, 5.0])
    wanted = np.zeros(N)
    wanted[:3] = 2 * START[1], 2 * START[0], 15.0
    close(x.grad.to_numpy(), wanted)
    with pytest.raises(sg.SpirogradRuntimeError, match="takes what the kernel returns"):
        pair.grad(returned=[1.0])
    a, b = (sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(2))
    with pytest.raises(sg.SpirogradRuntimeError, match="nothing that the kernel returns"):
        wave.grad(a, b, 1.0, returned=1.0)


def test_random_numbers_are_those_of_the_launch(session: Any) -> None:
    x, y = (sg.field(sg.f32, N, needs_grad=True) for _ in range(2))
    x.fill(1.0)
    y.grad.fill(1.0)

    @sg.kernel
    def noisy():
        for i in x:
            y[i] = x[i] * sg.random()

    noisy()
    noisy()
    wave(np.zeros(1, np.float32), np.zeros(1, np.float32), 1.0)
    noisy.grad()
    assert y.to_numpy().std() > 0
    close(x.grad.to_numpy(), y.to_numpy())


@pytest.mark.archs("interpreter")
def test_no_active_output(session: Any) -> None:
    x = sg.ndarray(sg.f32, N, needs_grad=True)
    y = sg.ndarray(sg.f32, N)
    with pytest.raises(sg.SpirogradCompilationError, match="it writes `y`, which has none") as caught:
        wave.grad(x, y, 1.0)
    assert "needs_grad=True" in caught.value.hint
    assert caught.value.loc.file == __file__

    @sg.kernel
    def counts(n: sg.types.ndarray(sg.i32, 1)):
        for i in n:
            n[i] = i

    with pytest.raises(sg.SpirogradCompilationError, match="writes no memory of floats"):
        counts.grad(np.zeros(3, np.int32))


@pytest.mark.archs("interpreter")
def test_overwritten(session: Any) -> None:
    x, y = (sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(2))

    @sg.kernel
    def squares(x: sg.types.ndarray(), y: sg.types.ndarray()):
        for i in x:
            y[i] = x[i] * x[i]
            x[i] = 0.0

    with pytest.raises(sg.SpirogradCompilationError, match="needs `x` as it was before the kernel, which overwrites it") as caught:
        squares.grad(x, y)
    assert "Tape" in caught.value.hint
    assert "overwritten at" in squares.grad.explain()


@pytest.mark.archs("interpreter")
def test_gaps_warn_once(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    x, y = (sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(2))
    z = sg.ndarray(sg.f32, N)

    @sg.kernel
    def both(x: sg.types.ndarray(), y: sg.types.ndarray(), z: sg.types.ndarray()):
        for i in x:
            y[i] = x[i] * 2.0
            z[i] = x[i] * 3.0

    with caplog.at_level(logging.WARNING, "spirograd"):
        both.grad(x, y, z)
        both.grad(x, y, z)
    assert [record.message.count("no gradient flows through `z`") for record in caplog.records] == [1]


@pytest.mark.archs("interpreter")
def test_explained(session: Any) -> None:
    x = sg.field(sg.f32, N, needs_grad=True, name="x")
    y = sg.field(sg.f32, (), needs_grad=True, name="y")

    @sg.kernel
    def powers():
        for i in x:
            p = 1.0
            for _ in range(i):
                p = p * sg.sin(p + x[i])
            y[None] += p

    text = powers.grad.explain()
    line = powers.function.__code__.co_firstlineno
    assert f"`y` ({__file__}:{line + 6})" in text.split("adds to")[0]
    assert f"`x` ({__file__}:{line + 5})" in text
    assert f"a loop-carried f32, of the loop at {__file__}:{line + 4}: 4 bytes an iteration" in text


@pytest.mark.archs("cpu", "interpreter")
def test_room_explained(session: Any) -> None:
    x = sg.field(sg.f32, N, needs_grad=True, name="x")
    trips = sg.field(sg.i32, N, name="trips")
    most = sg.field(sg.i32, (), name="most")
    y = sg.ndarray(sg.f32, 3, needs_grad=True)

    @sg.kernel
    def powers(n: sg.i32, y: sg.types.ndarray()):
        for i in x:
            p = 1.0
            for _ in range(n):
                p = p * sg.sin(p + x[i])
            for _ in range(y.shape[0] - 1):
                p = p * sg.sin(p + x[i])
            for _ in range(trips[i]):
                p = p * sg.sin(p + x[i])
            for _ in range(most[None]):
                p = p * sg.sin(p + x[i])
            while p < 5.0:
                p = p + sg.sin(p + x[i]) + 2.0
            y[0] += p

    text = powers.grad.explain(4, y)
    rooms = [line.split("; ")[1] for line in text.split("records:")[1].splitlines() if ";" in line]
    assert [room.split(",")[0] for room in rooms] == [
        "iterations: n",
        "iterations: y.shape[0] - 1",
        "iterations: max over i in [0",
        "iterations: most[None]",
        "iterations are counted before the launch",
    ]
    assert rooms[0].endswith("known from the arguments") and rooms[1].endswith(" - 1, known from the arguments")
    assert f"[0, {N}) of trips[i], " in rooms[2]


def test_stages(session: Any) -> None:
    x = sg.ndarray(sg.f32, N, needs_grad=True)

    @sg.kernel
    def twice(x: sg.types.ndarray(), y: sg.types.ndarray()):
        for i in x:
            y[i] = x[i] * 2.0

    with pytest.raises(sg.SpirogradRuntimeError, match="the gradient of kernel `twice` was not compiled yet"):
        twice.grad.stages()
    twice.grad(x, x.__copy__())
    assert 'kernel "twice_grad"' in twice.grad.ir()
    assert 'kernel "twice"' in twice.ir()
    if session.arch in ("vulkan", "wgpu"):
        assert twice.grad.spirv()
