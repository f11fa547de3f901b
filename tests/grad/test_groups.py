"""Derivatives of loops of thread groups: forward mode, second derivatives, tapes of several launches, checks, what is saved, PTX."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from grad.check import TOLERANCES, jacobian, put
from grad.shapes import test_grad_groups as cases

import spirograd as sg
from spirograd.compiler import compile_kernel
from spirograd.dumps import Compilation, listeners
from spirograd.lang.context import session
from spirograd.lang.language_options import options_of_device
from spirograd.simt import Tile16x16, block
from validation.profiles import PTX
from validation.tools import FAILED, assembled

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
def test_sums_in_place_need_no_old_values():
    """The sums of groups are linear: their gradients compute none of them, although partial sums read each other."""
    x = sg.field(sg.f32, 4 * SIZE, needs_grad=True)

    @sg.kernel
    def total():
        sg.loop_config(block_dim=SIZE)
        for i in x:
            x[i] = block.reduce_add(x[i])

    seed = np.random.default_rng(1).standard_normal(4 * SIZE).astype(np.float32)
    x.grad.from_numpy(seed)
    total.grad()
    first = np.arange(4 * SIZE) % SIZE == 0  # only the first thread gets the sum; the others get what they have added up
    found = x.grad.to_numpy()
    matrix = np.zeros((4 * SIZE, 4 * SIZE))
    for k in range(4 * SIZE):
        x.from_numpy(np.eye(4 * SIZE, dtype=np.float32)[k])
        total()
        matrix[:, k] = x.to_numpy()
    assert (matrix[first].sum(1) == SIZE).all()
    np.testing.assert_allclose(found, matrix.T @ seed, rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize("case", [case for case in cases.CASES if case is not cases.overwritten_between_barriers])
def test_gradients_have_no_races(case):
    sg.init(arch=sg.interpreter, detect_races=True)
    program = case(sg.f32)
    program.prepare(1)
    put(program.memories, program.values(1))
    program.kernel()
    put([memory.grad for memory in program.memories], program.values(0))
    program.kernel.grad()
    sg.sync()


def test_what_is_saved():
    """A loop that overwrites an array is explained; a product of tiles saves nothing."""
    sg.init(arch=sg.cpu)
    _, _, scan = _scan(SIZE)
    assert "`shared1`, a shared array" in scan.grad.explain(8)
    product = cases.tiled_product(sg.f32)
    assert "shared array" not in product.kernel.grad.explain()


def _gradients(name):
    """Return the compilations of a case, run on the interpreter, and of its gradient."""
    found: list[Compilation] = []
    sg.init(arch=sg.interpreter, offline_cache=False)
    listeners.append(found.append)
    try:
        program = getattr(cases, name)(sg.f32)
        program.prepare(1)
        program.kernel()
        program.kernel.grad()
    finally:
        listeners.remove(found.append)
        sg.reset()
    return [each for each in found if each.kernel.name.endswith("_grad")]


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize("name", ["tiled_product", "halving_strides", "histogram", "exchanges"])
def test_ptx(name):
    (gradient,) = _gradients(name)
    compiled = compile_kernel(gradient.kernel, PTX["cuda-sm_90"], replace(gradient.options, keep_stages=True))
    text = compiled.stages["kernel.ptx"]
    verdict = assembled(text.encode())
    assert verdict.status != FAILED, verdict.text
    assert "bar.sync" in text or "bar.warp.sync" in text
    assert re.search(r"(atom|red)\.shared(::cta)?(\.relaxed)?(\.cta)?\.add\.f32", text)


def test_products_by_instructions():
    """On devices with instructions for matrices, derivatives are those of products by rows."""
    sg.init(arch=sg.interpreter, offline_cache=False)
    opened = session()
    opened.language = replace(opened.language, **options_of_device(PTX["cuda-sm_90"]))
    n = Tile16x16.SIZE
    a, b, c = (sg.field(sg.f64, (n, n), needs_grad=True) for _ in range(3))

    @sg.kernel
    def multiply():
        sg.loop_config(block_dim=32)
        for _ in range(32):
            left, right, total = Tile16x16.zeros(sg.f64), Tile16x16.zeros(sg.f64), Tile16x16.zeros(sg.f64)
            left[:] = a[0:n, 0:n]
            right[:] = b[0:n, 0:n]
            total.add_product_(left, right)
            total.subtract_product_(right, left, transposed=True)
            c[0:n, 0:n] = total

    x, y, seed = np.random.default_rng(0).standard_normal((3, n, n))
    put([a, b], [x, y])
    multiply()
    np.testing.assert_allclose(c.to_numpy(), x @ y - y @ x.T, rtol=1e-12, atol=1e-12)
    put([c.grad], [seed])
    multiply.grad()
    np.testing.assert_allclose(a.grad.to_numpy(), seed @ y.T - (y.T @ seed).T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(b.grad.to_numpy(), x.T @ seed - seed @ x, rtol=1e-12, atol=1e-12)
