"""Random kernels as functions of JAX and torch: values equal to plain launches bit for bit, derivatives to those of the same program there.

A program is written twice, from one choice: as a kernel, and as operations on whole arrays of the framework.
"""

from __future__ import annotations

import random

import needs
import numpy as np
import pytest
from cases import seeds
from fuzz.run import load

import spirograd as sg

jax = needs.package("jax")
torch = needs.package("torch")

pytestmark = pytest.mark.archs("cpu", "interpreter")  # f64
SIZES = ((1, 1), (4, 3), (7, 7))
# Of s, t and the number j of the iteration: for kernels with `m` as sg, for arrays with `m` as their framework.
VALUES = (
    "m.sin(s) * t", "m.cos(s + t)", "s * 0.5 + t * t * 0.25", "m.tanh(s * t + 0.1 * j)", "m.exp(-s * s) + t", "m.sqrt(1.0 + s * s) - t",
    "m.log(1.5 + t * t) * s", "s / (1.0 + t * t)", "s - 0.3 * j * t",
)  # fmt: skip

KERNEL = """
@sg.kernel
def k(x: sg.types.NDArray[sg.f64, 1], w: sg.types.NDArray[sg.f64, 1], n: sg.i32, c: sg.f64, y: sg.types.NDArray[sg.f64, 1],
            z: sg.types.NDArray[sg.f64, 1], near: sg.types.NDArray[sg.i32, 1]):
    for i in x:
        s = x[i]
        t = w[(i + {shift}) % w.shape[0]]
        for j in range(n):
            s, t = {first}, {second}
            if s > {edge}:
                s = {third} * c
            else:
                t = {fourth}
        y[i] = s
        z[i % w.shape[0]] += s * t
        near[i] = i - n
"""
ARRAYS = """
def program(x, w, n, c):
    i = m.arange(x.shape[0])
    s, t = x, w[(i + {shift}) % w.shape[0]]
    for j in range(n):
        s, t = {first}, {second}
        above = s > {edge}
        s, t = m.where(above, {third} * c, s), m.where(above, t, {fourth})
    return s, added(i % w.shape[0], s * t, w.shape[0]), i - n
"""


class Program:
    """A kernel, and what it computes as operations on arrays of ``framework`` (jax.numpy, torch)."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        parts = {name: f"({rng.choice(VALUES)})" for name in ("first", "second", "third", "fourth")}
        self.texts = {**parts, "shift": str(rng.randrange(5)), "edge": f"{rng.uniform(-0.5, 0.9):.3f}"}
        self.kernel = load(KERNEL.format(**self.texts).replace("m.", "sg."), {"sg": sg})
        self.n, self.c = rng.randrange(4), rng.uniform(0.5, 1.5)
        self.sizes = rng.choice(SIZES)
        numbers = np.random.default_rng(seed)
        self.x, self.w = (numbers.uniform(-1.0, 1.0, size) for size in self.sizes)
        self.v = [numbers.uniform(-1.0, 1.0, size) for size in self.sizes]
        self.outputs = {"y": "x", "z": "w", "near": "x"}

    def reference(self, framework, added):
        names = {"m": framework, "added": added}
        exec(ARRAYS.format(**self.texts), names)
        return lambda x, w: names["program"](x, w, self.n, self.c)

    def plain(self):
        """The outputs of a launch on arrays of NumPy."""
        made = [np.zeros_like(self.x), np.zeros_like(self.w), np.zeros(self.sizes[0], np.int32)]
        self.kernel(self.x, self.w, self.n, self.c, *made)
        return made


def compare(found, expected, rtol=1e-9):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=1e-10)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("seed", seeds(5, 100))
def test_programs_of_jax(session, seed):
    program = Program(seed)
    jnp = jax.numpy
    with jax.enable_x64(True):
        f = sg.ad.jax_function(program.kernel, program.outputs)
        x, w, v = jnp.asarray(program.x), jnp.asarray(program.w), tuple(map(jnp.asarray, program.v))
        reference = program.reference(jnp, lambda i, values, size: jnp.zeros(size, values.dtype).at[i].add(values))
        functions = (lambda x, w: f(x, w, program.n, program.c), reference)
        for a, b in zip(jax.jit(functions[0])(x, w), program.plain()):
            compare([a], [b], 1e-13)  # threads add in any order
        compare(functions[0](x, w)[:2], reference(x, w)[:2])
        losses = [lambda x, w, g=g: (jnp.sin(g(x, w)[0]) * 2.0).sum() + (g(x, w)[1] ** 2).sum() for g in functions]
        for transform in (
            lambda g: jax.jit(jax.grad(g, (0, 1))),
            lambda g: lambda x, w: jax.jvp(g, (x, w), v),
            lambda g: lambda x, w: jax.jvp(jax.grad(g, (0, 1)), (x, w), v)[1],  # the Hessian times v
            lambda g: jax.grad(lambda x, w: sum((d * u).sum() for d, u in zip(jax.grad(g, (0, 1))(x, w), v)), (0, 1)),  # again, in reverse
            lambda g: lambda x, w: jax.vmap(jax.grad(g), (0, None))(jnp.stack([x, -x]), w)[None],
        ):
            compare(*(transform(g)(x, w) for g in losses), 1e-7)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("seed", seeds(5, 100))
def test_programs_of_torch(session, seed):
    program = Program(seed)
    made = {"op": sg.ad.torch_op(program.kernel, program.outputs), "function": sg.ad.torch_function(program.kernel, program.outputs)}
    x, w = (torch.tensor(array, requires_grad=True) for array in (program.x, program.w))
    v = [torch.tensor(array) for array in program.v]
    reference = program.reference(torch, lambda i, values, size: torch.zeros(size, dtype=values.dtype).index_add(0, i, values))

    def derivatives(g):
        y, z = g(x, w)[:2]
        loss = (torch.sin(y) * 2.0).sum() + (z**2).sum()
        first = torch.autograd.grad(loss, (x, w), create_graph=True)
        second = torch.autograd.grad(sum((d * u).sum() for d, u in zip(first, v)), (x, w))
        return [t.detach() for t in (y, z, *first, *second)]

    expected = derivatives(reference)
    compare(derivatives(lambda x, w: made["op"](x, w, program.n, program.c)), expected, 1e-7)
    near = torch.zeros(program.sizes[0], dtype=torch.int32)  # else `torch_function` makes it like `x`; what is passed comes first
    compare(derivatives(lambda x, w: made["function"](x, w, program.n, program.c, near=near.clone())[1:]), expected, 1e-7)
    y, z, whole = made["op"](x, w, program.n, program.c)
    plain = program.plain()
    assert (y.detach().numpy() == plain[0]).all() and (whole.numpy() == plain[2]).all()
    compare([z.detach()], [plain[1]])
