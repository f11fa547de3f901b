"""Second derivatives of `sg.ad.torch_function`, compared with those of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

torch = needs.package("torch")

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]

N = 5
ARRAY = sg.types.ndarray()


def leaf(seed: int, *shape: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(*(shape or (N,)), generator=generator) + 0.3).requires_grad_()


def second(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    """The gradient of a scalar that gradients of ``function`` make up."""
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = sum((torch.sin(o) * o).sum() for o in outputs)
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    weights = [torch.linspace(0.5, 1.5, g.numel(), dtype=g.dtype).reshape(g.shape) for g in first]
    return list(torch.autograd.grad(loss + sum((g**2 * w).sum() for g, w in zip(first, weights)), inputs))


def compare(function: Callable[..., Any], reference: Callable[..., Any], *inputs: Any, rtol: float = 2e-4) -> None:
    wanted = second(reference, *(t.detach().double().requires_grad_() for t in inputs))
    for found, right in zip(second(function, *inputs), wanted):
        torch.testing.assert_close(found.double(), right, rtol=rtol, atol=1e-4)


@sg.kernel
def cubes(x: ARRAY, y: ARRAY):
    for i in x:
        y[i] = x[i] ** 3


@sg.kernel
def product(x: ARRAY, w: ARRAY, y: ARRAY, a: sg.f32):
    for i in x:
        y[i] = sg.sin(x[i] * w[i]) * w[i] * a


@sg.kernel
def matmul(a: ARRAY, b: ARRAY, c: ARRAY):
    for i, j in c:
        for k in range(a.shape[1]):
            c[i, j] += a[i, k] * b[k, j]


@sg.kernel
def moments(x: ARRAY, mean: ARRAY, squares: ARRAY):
    for i, j in x:
        mean[i] += x[i, j] ** 3 / x.shape[1]
        squares[None] += x[i, j] ** 2 * x[i, 0]


@sg.kernel
def powers(x: ARRAY, n: ARRAY, y: ARRAY):
    for i in x:
        v = x[i]
        for k in range(n[i]):
            v = sg.sin(v) * x[i] + 0.1 * k
        if v > 0.5:
            v = v * v
        y[i] = v


def powers_of_torch(x: Any) -> Any:
    rows = []
    for i in range(N):
        v = x[i]
        for k in range(i):
            v = torch.sin(v) * x[i] + 0.1 * k
        rows.append(v * v if v > 0.5 else v)
    return torch.stack(rows)


def test_cubes() -> None:
    f = sg.ad.torch_function(cubes, {"y": "x"})
    x = leaf(1)
    (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    torch.testing.assert_close(g, 3 * x**2)
    torch.testing.assert_close(torch.autograd.grad((g**2).sum(), x)[0], 36 * x.detach() ** 3)
    compare(f, lambda x: x**3, x)
    torch.testing.assert_close(torch.autograd.functional.hessian(lambda x: (f(x) * x).sum(), x), torch.diag(12 * x.detach() ** 2))


def test_two_inputs() -> None:
    f = sg.ad.torch_function(product, {"y": "x"})
    compare(lambda x, w: f(x, w, 1.5), lambda x, w: torch.sin(x * w) * w * 1.5, leaf(1), leaf(2))
    w = leaf(2).detach()
    compare(lambda x: f(x, w, 1.5), lambda x: torch.sin(x * w) * w * 1.5, leaf(1))
    compare(lambda x: f(x, x, 0.5), lambda x: torch.sin(x * x) * x * 0.5, leaf(3))


def test_between_operations_of_torch() -> None:
    f, g = sg.ad.torch_function(product, {"y": "x"}), sg.ad.torch_function(cubes, {"y": "x"})
    compare(
        lambda x, w: f(g(x * 2.0), torch.exp(w), a=0.7) * x,
        lambda x, w: torch.sin((x * 2.0) ** 3 * torch.exp(w)) * torch.exp(w) * 0.7 * x,
        0.5 * leaf(1).detach().requires_grad_(),
        leaf(2),
        rtol=2e-3,
    )


def test_matrices() -> None:
    f = sg.ad.torch_function(matmul, {"c": lambda a, b: (a.shape[0], b.shape[1])})
    compare(f, lambda a, b: a @ b, leaf(1, 3, 4), leaf(2, 4, 2))
    compare(lambda a: f(a[:, ::2].t(), a), lambda a: a[:, ::2].t() @ a, leaf(3, 3, 4))


def test_two_outputs() -> None:
    f = sg.ad.torch_function(moments, {"mean": lambda x: x.shape[:1], "squares": ()})
    compare(f, lambda x: ((x**3).mean(1), (x**2 * x[:, :1]).sum()), leaf(3, 3, 4))
    compare(lambda x: f(x)[1], lambda x: (x**2 * x[:, :1]).sum(), leaf(4, 3, 4))


def test_loops() -> None:
    f = sg.ad.torch_function(powers, {"y": "x"})
    n = torch.arange(N, dtype=torch.int32)
    compare(lambda x: f(x, n), powers_of_torch, leaf(5))


def test_outputs_that_are_passed() -> None:
    @sg.kernel
    def add(x: ARRAY, y: ARRAY):
        for i in x:
            y[i] += x[i] ** 3

    @sg.kernel
    def store(x: ARRAY, y: ARRAY):
        for i in x:
            y[i] = x[i] ** 3

    compare(lambda x, z: sg.ad.torch_function(add, ["y"])(x, y=z * z), lambda x, z: z * z + x**3, leaf(5), leaf(6))
    compare(lambda x: sg.ad.torch_function(store, ["y"])(x, y=torch.ones(N)), lambda x: x**3, leaf(5))


def test_outputs_that_are_read() -> None:
    """The kernel adds to an output and reads it: that works from zero, not from what torch has replaced."""

    @sg.kernel
    def chain(x: ARRAY, y: ARRAY, z: ARRAY):
        for i in x:
            y[i] += x[i] ** 2
        for i in x:
            z[i] = y[i] ** 2 * x[i]

    compare(sg.ad.torch_function(chain, {"y": "x", "z": (N,)}), lambda x: (x**2, x**5), leaf(7))
    x = leaf(7)
    (g,) = torch.autograd.grad(sg.ad.torch_function(chain, {"y": None, "z": "x"})(x, y=torch.ones(N))[1].sum(), x, create_graph=True)
    torch.testing.assert_close(g.detach(), ((1 + x**2) ** 2 + 4 * x**2 * (1 + x**2)).detach())
    with pytest.raises(sg.SpirogradRuntimeError, match="need `y` as it was before the kernel, which torch does not keep"):
        torch.autograd.grad(g.sum(), x)


def test_returned_numbers() -> None:
    @sg.kernel
    def total(x: ARRAY, w: ARRAY) -> sg.f32:
        s = 0.0
        for i in range(x.shape[0]):
            s += sg.sin(x[i]) * w[i] * x[i]
        return s

    f = sg.ad.torch_function(total)
    compare(f, lambda x, w: (torch.sin(x) * w * x).sum(), leaf(7), leaf(8))
    compare(lambda x, w: f(x, w) * 0.0, lambda x, w: (torch.sin(x) * w * x).sum() * 0.0, leaf(7), leaf(8))


def test_vectors_as_elements() -> None:
    @sg.kernel
    def lengths(x: sg.types.ndarray(dtype=sg.types.vector(3, sg.f32), ndim=1), y: ARRAY):
        for i in x:
            y[i] = x[i].norm() ** 3

    f = sg.ad.torch_function(lengths, {"y": lambda x: x.shape[:1]})
    compare(f, lambda x: x.norm(dim=1) ** 3, leaf(9, N, 3))


def test_random_numbers_are_those_of_the_call() -> None:
    @sg.kernel
    def noisy(x: ARRAY, y: ARRAY):
        for i in x:
            y[i] = x[i] ** 2 * sg.random()

    x = leaf(1)
    y = sg.ad.torch_function(noisy, {"y": "x"})(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(h, (2 * y / x**2).detach())


def test_fields_and_ndarrays() -> None:
    """Read, written in between, and changed before the gradients: all that torch does not know is as it was, afterwards."""
    a, middle, count = sg.field(sg.f32, (), needs_grad=True), sg.field(sg.f32, N, needs_grad=True), sg.field(sg.i32, ())
    b = sg.ndarray(sg.f32, N, needs_grad=True)

    @sg.kernel
    def staged(x: ARRAY, b: ARRAY, y: ARRAY):
        count[None] += 1
        for i in x:
            middle[i] = x[i] ** 2 * a[None]
        for i in x:
            y[i] = middle[i] * x[i] * b[i]

    a[None] = 2.0
    b.fill(3.0)
    x = leaf(1)
    f = sg.ad.torch_function(staged, {"y": "x"})
    y = f(x, b)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    a[None] = 5.0
    b.fill(7.0)
    middle.fill(9.0)
    before = [m.to_numpy() for m in (a, b, middle, count, a.grad, b.grad, middle.grad)]
    (h,) = torch.autograd.grad(g.sum(), x, retain_graph=True)
    torch.testing.assert_close(h, 36 * x.detach())
    torch.testing.assert_close(torch.autograd.grad(g.sum(), x)[0], 36 * x.detach())
    for memory, contents in zip((a, b, middle, count, a.grad, b.grad, middle.grad), before):
        np.testing.assert_array_equal(memory.to_numpy(), contents)
    middle.grad[1] = 1.0
    with pytest.raises(sg.SpirogradRuntimeError, match=r"the gradient of `.*middle` is not zero"):
        torch.autograd.grad(f(x, b).sum(), x, create_graph=True)


def test_arrays_of_numpy_that_change() -> None:
    """Before the first gradient, and between it and the second."""
    f = sg.ad.torch_function(product, {"y": "x"})
    x, w = leaf(1), np.full(N, 0.5, np.float32)
    y = f(x, w, 1.0)
    w[:] = 100.0
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(g.detach(), torch.cos(x.detach() * 0.5) * 0.25)
    w[:] = 10.0
    torch.testing.assert_close(torch.autograd.grad(g.sum(), x)[0], -torch.sin(x.detach() * 0.5) * 0.125)


def test_penalty_of_gradients() -> None:
    """Trains until the gradient of the output by the input has the wanted size."""
    f = sg.ad.torch_function(product, {"y": "x"})
    x = torch.full((N,), 0.2, requires_grad=True)
    w = leaf(3).detach().requires_grad_()
    optimizer = torch.optim.Adam([w], lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        (g,) = torch.autograd.grad(f(x, w, 1.0).sum(), x, create_graph=True)
        ((g - 0.5) ** 2).sum().backward()
        optimizer.step()
    torch.testing.assert_close(torch.cos(x * w) * w**2, torch.full((N,), 0.5), rtol=0, atol=0.02)


ROUNDED = 1e-12  # threads add in any order


@pytest.mark.archs("interpreter", "cpu")  # f64
def test_finite_differences_of_torch() -> None:
    f = sg.ad.torch_function(cubes, {"y": "x"})
    assert torch.autograd.gradgradcheck(f, (leaf(10).detach().double().requires_grad_(),), nondet_tol=ROUNDED)
    g = sg.ad.torch_function(matmul, {"c": lambda a, b: (a.shape[0], b.shape[1])})
    inputs = [leaf(k, 3, 3).detach().double().requires_grad_() for k in (1, 2)]
    assert torch.autograd.gradgradcheck(lambda a, b: g(a, b) ** 2, inputs, nondet_tol=ROUNDED)


@pytest.mark.archs("interpreter")
def test_what_there_is_not() -> None:
    f = sg.ad.torch_function(cubes, {"y": "x"})
    x = leaf(1)
    (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    with pytest.raises(sg.SpirogradRuntimeError, match="kernel `cubes` has first and second derivatives, no third ones"):
        torch.autograd.grad(g.sum(), x, create_graph=True)
    with torch.no_grad():
        x += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(g.sum(), x)
