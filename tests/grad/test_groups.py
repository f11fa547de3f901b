"""Derivatives of loops of thread groups: forward mode, second derivatives, tapes of several launches, checks, what is saved, PTX."""

from __future__ import annotations

import numpy as np
import pytest
from grad.check import TOLERANCES, jacobian, put
from grad.shapes import test_grad_groups as cases

import spirograd as sg
from spirograd.simt import block

SIZE = 4


@pytest.mark.parametrize("name", ["tiled_product", "halving_strides", "stencil_steps", "exchanges"])
@pytest.mark.usefixtures("session")
def test_forward_mode(name):
    case = getattr(cases, name)
    t = sg.f32
    program = case(t)
    values = program.values(1)
    matrix = jacobian(case, values, 1)
    program.prepare(1)
    put(program.memories, values)
    first, last = program.memories[0], program.memories[-1]
    seed = np.random.default_rng(3).standard_normal(values[0].shape)
    with sg.ad.FwdMode(loss=last, param=first, seed=seed):
        program.kernel()
    wanted = matrix[-values[-1].size :, : values[0].size] @ seed.ravel()
    np.testing.assert_allclose(last.dual.to_numpy().ravel(), wanted, rtol=10 * TOLERANCES["f32"], atol=1e-4 * np.abs(wanted).max())


@pytest.mark.usefixtures("session")
def test_second_derivatives_and_tapes():
    """A product of neighbours in shared memory, twice, then a sum of cubes by a reduction of the group."""
    n = 7
    x, y, z = (sg.field(sg.f32, n, needs_grad=True) for _ in range(3))
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def neighbours(a: sg.template(), b: sg.template()):
        sg.loop_config(block_dim=SIZE)
        for i in range(n):
            t = block.thread_idx()
            shared = block.SharedArray(SIZE, sg.f32)
            shared[t] = a[i]
            block.sync()
            b[i] = shared[t] * shared[sg.max(t - 1, 0)]

    @sg.kernel
    def total():
        sg.loop_config(block_dim=SIZE)
        for i in range(n):
            cubes = block.reduce_add(z[i] ** 3)
            if block.thread_idx() == 0:
                loss[None] += cubes

    def program():
        loss[None] = 0.0
        neighbours(x, y)
        neighbours(y, z)
        total()

    def reference(v):
        before = np.where(np.arange(n) % SIZE == 0, np.arange(n), np.arange(n) - 1)
        y = v * v[before]
        return ((y * y[before]) ** 3).sum()

    start = np.random.default_rng(0).uniform(0.7, 1.2, n).astype(np.float32)
    x.from_numpy(start)
    at, h = start.astype(np.float64), 1e-5
    slope = [(reference(at + h * e) - reference(at - h * e)) / (2 * h) for e in np.eye(n)]
    for _ in range(3):
        with sg.ad.Tape(loss):
            program()
        np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-4)
    v, h = np.random.default_rng(1).standard_normal(n), 1e-4

    def gradient(p):
        return np.array([(reference(p + h * e) - reference(p - h * e)) / (2 * h) for e in np.eye(n)])

    wanted = (gradient(at + h * v) - gradient(at - h * v)) / (2 * h)
    np.testing.assert_allclose(sg.ad.hvp(program, loss, x, v), wanted, rtol=2e-3, atol=1e-3 * np.abs(wanted).max())


def _scan(size):
    x, y = (sg.field(sg.f32, 8, needs_grad=True) for _ in range(2))

    @sg.kernel
    def scan(n: sg.i32):
        sg.loop_config(block_dim=size)
        for i in range(n):
            t = block.thread_idx()
            shared = block.SharedArray(size, sg.f32)
            shared[t] = x[i]
            block.sync()
            step = 1
            while step < size:
                before = shared[sg.max(t - step, 0)]
                block.sync()
                if t >= step:
                    shared[t] = shared[t] * before
                block.sync()
                step *= 2
            y[i] = shared[t]

    return x, y, scan


def test_checks_find_nothing(arch):
    """Indices, overflow, and on the interpreter races are checked, for any number of iterations. Products of the values so far, by Hillis
    and Steele."""
    sg.init(arch=arch, debug=True, **({"detect_races": True} if arch == "interpreter" else {}))
    x, y, scan = _scan(SIZE)
    start = np.linspace(0.8, 1.2, 8).astype(np.float32)
    x.from_numpy(start)
    for n in (0, 5, 8, 1):
        scan(n)
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        scan.grad(n)
        wanted = np.zeros(8)
        for first in range(0, n, SIZE):
            part = start[first : min(first + SIZE, n)].astype(np.float64)
            products = np.cumprod(part)
            wanted[first : first + len(part)] = [products[k:].sum() / value for k, value in enumerate(part)]
        np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=1e-5)


def test_what_is_saved():
    """A loop that overwrites an array is explained; a product of tiles saves nothing."""
    sg.init(arch=sg.cpu)
    _, _, scan = _scan(SIZE)
    scan(8)
    assert "`shared1`, a shared array" in str(scan.grad.explain())
    product = cases.tiled_product(sg.f32)
    product.kernel()
    assert "shared array" not in str(product.kernel.grad.explain())
