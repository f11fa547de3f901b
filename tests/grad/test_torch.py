"""`sg.ad.torch_function`: kernels that torch differentiates."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import needs
import pytest

import spirograd as sg

torch = needs.package("torch")

N = 6


def leaf(seed: int, *shape: int, dtype: Any = None) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(*(shape or (N,)), generator=generator, dtype=torch.float64) + 0.2).to(dtype or torch.float32).requires_grad_()


def gradients(function: Any, *inputs: Any) -> list[Any]:
    copies = [t.detach().double().requires_grad_() for t in inputs]
    function(*copies).backward()
    return [t.grad for t in copies]


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), rtol=3e-5, atol=1e-6)


@sg.kernel
def product(x: sg.types.ndarray(), w: sg.types.ndarray(), y: sg.types.ndarray(), a: sg.f32):
    for i in x:
        y[i] = sg.sin(x[i]) * w[i] * a


def test_between_operations_of_torch(session: Any) -> None:
    f = sg.ad.torch_function(product, {"y": "x"})
    x, w = leaf(1), leaf(2)

    def whole(g: Any) -> Any:
        return lambda x, w: (g(x * 2.0, w) ** 2).sum() + g(w, x).sum()

    whole(lambda x, w: f(x, w, a=1.5))(x, w).backward()
    for found, wanted in zip((x, w), gradients(whole(lambda x, w: torch.sin(x) * w * 1.5), x, w)):
        close(found.grad, wanted)


def test_some_inputs_need_no_gradient(session: Any) -> None:
    f = sg.ad.torch_function(product, {"y": "x"})
    x, w = leaf(1), leaf(2).detach()
    f(x, w, 1.5).sum().backward()
    close(x.grad, torch.cos(x.detach()) * w * 1.5)
    assert w.grad is None
    assert not f(w, w, 1.0).requires_grad
    with torch.no_grad():
        assert not f(x, w, 1.0).requires_grad


def test_two_outputs_of_other_shapes(session: Any) -> None:
    @sg.kernel
    def moments(x: sg.types.ndarray(), mean: sg.types.ndarray(), squares: sg.types.ndarray()):
        for i, j in x:
            mean[i] += x[i, j] / x.shape[1]
            squares[None] += x[i, j] ** 2

    f = sg.ad.torch_function(moments, {"mean": lambda x: x.shape[:1], "squares": ()})
    x = leaf(3, 3, 4)
    mean, squares = f(x)
    assert mean.shape == (3,)
    close(mean, x.detach().mean(1))
    (mean.prod() * squares).backward()
    close(x.grad, gradients(lambda x: x.mean(1).prod() * (x**2).sum(), x)[0])


def test_unused_outputs_have_no_part(session: Any) -> None:
    @sg.kernel
    def two(x: sg.types.ndarray(), y: sg.types.ndarray(), z: sg.types.ndarray()):
        for i in x:
            y[i] = x[i] * 2.0
            z[i] = x[i] * 5.0

    x = leaf(4)
    y, _ = sg.ad.torch_function(two, {"y": "x", "z": "x"})(x)
    y.sum().backward()
    close(x.grad, torch.full((N,), 2.0))


def test_outputs_that_are_passed(session: Any) -> None:
    @sg.kernel
    def add(x: sg.types.ndarray(), y: sg.types.ndarray()):
        for i in x:
            y[i] += x[i] * x[i]

    f = sg.ad.torch_function(add, ["y"])
    x, z = leaf(5), leaf(6)
    y = z * 3.0
    out = f(x, y=y)
    assert out.data_ptr() == y.data_ptr()
    (out**2).sum().backward()
    for found, wanted in zip((x, z), gradients(lambda x, z: ((z * 3.0 + x * x) ** 2).sum(), x, z)):
        close(found.grad, wanted)
    with pytest.raises(sg.SpirogradRuntimeError, match="output `y` of `add` is neither passed nor described"):
        f(x)


def test_returned_numbers(session: Any) -> None:
    @sg.kernel
    def mean(x: sg.types.ndarray()) -> sg.f32:
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i] ** 2
        return s / x.shape[0]

    x = leaf(7)
    loss = sg.ad.torch_function(mean)(x)
    (loss * 3.0).backward()
    close(x.grad, 6.0 * x.detach() / N)


def test_random_numbers_are_those_of_the_call(session: Any) -> None:
    @sg.kernel
    def noisy(x: sg.types.ndarray(), y: sg.types.ndarray()):
        for i in x:
            y[i] = x[i] * sg.random()

    f = sg.ad.torch_function(noisy, {"y": "x"})
    x = torch.ones(N, requires_grad=True)
    first, second = f(x), f(x)
    assert not torch.equal(first, second)
    first.sum().backward()
    close(x.grad, first.detach())


def test_methods_and_fields(session: Any) -> None:
    @sg.data_oriented
    class Scaled:
        def __init__(self, a: float) -> None:
            self.a = sg.field(sg.f32, ())
            self.a[None] = a

        @sg.kernel
        def run(self, x: sg.types.ndarray(), y: sg.types.ndarray()):
            for i in x:
                y[i] = x[i] * self.a[None]

    x = leaf(8)
    total = sum(sg.ad.torch_function(Scaled(a).run, {"y": "x"})(x).sum() for a in (2.0, 3.0))
    total.backward()
    close(x.grad, torch.full((N,), 5.0))


def test_strided_tensors(session: Any) -> None:
    f = sg.ad.torch_function(product, {"y": "x"})
    base = leaf(9, N, 2)
    f(base[:, 0], base[:, 1], 1.0).sum().backward()
    close(base.grad, gradients(lambda b: (torch.sin(b[:, 0]) * b[:, 1]).sum(), base)[0])


def test_finite_differences_of_torch(session: Any) -> None:
    needs.of_type(sg.f64)

    @sg.kernel
    def cubes(x: sg.types.ndarray(), y: sg.types.ndarray()):
        for i in x:
            y[i] = x[i] ** 3 + sg.exp(x[i])

    f = sg.ad.torch_function(cubes, {"y": "x"})
    assert torch.autograd.gradcheck(f, (leaf(10, dtype=torch.float64),))


def test_training(session: Any) -> None:
    """A parameter of torch's own optimiser reaches the value that it should."""
    f = sg.ad.torch_function(product, {"y": "x"})
    x, wanted = leaf(11).detach(), torch.linspace(-1, 1, N)
    w = torch.zeros(N, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        ((f(x, w, 1.0) - torch.sin(x) * wanted) ** 2).sum().backward()
        optimizer.step()
    torch.testing.assert_close(w.detach(), wanted, rtol=0, atol=0.05)


@pytest.mark.archs("interpreter")
def test_mistakes(session: Any) -> None:
    with pytest.raises(sg.SpirogradTypeError, match="takes a kernel"):
        sg.ad.torch_function(lambda x: x)
    with pytest.raises(sg.SpirogradTypeError, match="no parameter `z`"):
        sg.ad.torch_function(product, {"z": "x"})
    with pytest.raises(sg.SpirogradTypeError, match="takes 3 arguments, got 4"):
        sg.ad.torch_function(product, {"y": "x"})(1, 2, 3, 4)
    with pytest.raises(sg.SpirogradRuntimeError, match="writes to `y`, which is not among the outputs"):
        sg.ad.torch_function(product)(leaf(1), leaf(2), torch.zeros(N), 1.0)
    with pytest.raises(sg.SpirogradRuntimeError, match="`a` is a tensor that requires a gradient, but not an array"):
        sg.ad.torch_function(product, {"y": "x"})(leaf(1), leaf(2), torch.ones(2, requires_grad=True))
    with sg.ad.Tape(), pytest.raises(sg.SpirogradRuntimeError, match="call it outside of tapes"):
        sg.ad.torch_function(product, {"y": "x"})(leaf(1), leaf(2), 1.0)
    f = sg.ad.torch_function(product, {"y": "x"})
    x = leaf(1)
    y = f(x, leaf(2), 1.0)
    with torch.no_grad():
        x += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_overwritten_inputs(session: Any) -> None:
    @sg.kernel
    def squared(x: sg.types.ndarray()):
        for i in x:
            x[i] = x[i] * x[i]

    y = sg.ad.torch_function(squared, ["x"])(x=leaf(1) * 1.0)
    with pytest.raises(sg.SpirogradCompilationError, match="needs `x` as it was before the kernel") as error:
        y.sum().backward()
    assert "another array than it reads" in str(error.value)
    assert "Tape" not in str(error.value)


def test_torch_is_imported_when_used() -> None:
    code = "import sys, spirograd as sg; sg.ad.torch_function; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_stay(session: Any) -> None:
    assert sg.ad.torch_function(product, {"y": "x"}).__name__ == "product"


@sg.kernel
def scaled(u: sg.types.ndarray(), n: sg.types.ndarray(), w: sg.template(), o: sg.types.ndarray()):
    for i in u:
        o[i] = u[i] * w[None] * n[0]


def test_memory_that_changes_before_the_gradient(session: Any) -> None:
    w = sg.field(sg.f32, (), needs_grad=True)
    n = sg.ndarray(sg.f32, 1, needs_grad=True)
    w[None], n[0] = 2.0, 3.0
    u = torch.ones(3, requires_grad=True)
    out = sg.ad.torch_function(scaled, {"o": "u"})(u, n, w)
    w[None], n[0] = 5.0, 7.0
    out.sum().backward()
    torch.testing.assert_close(u.grad, torch.full((3,), 6.0))
    assert (w[None], n[0]) == (5.0, 7.0)
