"""Shared arrays in functions that an outermost loop calls: as in the body of the loop, whatever is passed to the functions."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg
from spirograd.simt import block

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session")]
ROWS, SIZE = 4, 16


@sg.func
def mirrored(scale: sg.template(), i, j):
    shared = block.SharedArray((SIZE,), sg.f32)
    shared[j] = scale * (i * 100 + j)
    block.sync()
    return shared[SIZE - 1 - j]


@sg.func
def handed_on(scale: sg.template(), i, j):
    return mirrored(scale, i, j)


@sg.func
def updated(total: sg.template(), i, j):
    shared = block.SharedArray((SIZE,), sg.f32)
    shared[j] = i * 100 + j
    block.sync()
    total += shared[SIZE - 1 - j]


@sg.func
def over_rows(scale, out: sg.template()):
    sg.loop_config(block_dim=SIZE)
    for i, j in sg.ndrange(ROWS, SIZE):
        out[i, j] = handed_on(scale, i, j)


@sg.func
def loaded(shared: sg.template(), i, j):
    shared[j] = i * 100 + j
    block.sync()
    return shared[SIZE - 1 - j]


@sg.func
def declared():
    return block.SharedArray((SIZE,), sg.f32), block.SharedArray((SIZE,), sg.i32)


WANTED = (np.arange(ROWS)[:, None] * 100 + np.arange(SIZE)[::-1]).astype(np.float32)


@pytest.mark.parametrize("called", ["argument", "variable", "vector", "handed on", "own variable", "in a function", "passed", "returned"])
def test_functions(called: str) -> None:
    out = sg.field(sg.f32, shape=(ROWS, SIZE))

    @sg.kernel
    def work(n: sg.i32):
        scale = n * 2
        pair = sg.Vector([n, n])
        if sg.static(called == "in a function"):
            over_rows(scale, out)
        sg.loop_config(block_dim=SIZE)
        for i, j in sg.ndrange(ROWS, SIZE):
            if sg.static(called == "argument"):
                out[i, j] = mirrored(n, i, j) * 2
            elif sg.static(called == "variable"):
                out[i, j] = mirrored(scale, i, j)
            elif sg.static(called == "vector"):
                out[i, j] = mirrored(pair.sum(), i, j) + pair.norm() * 0
            elif sg.static(called == "handed on"):
                out[i, j] = handed_on(scale, i, j)
            elif sg.static(called == "own variable"):
                total = 0.0
                updated(total, i, j)
                out[i, j] = total * scale
            elif sg.static(called == "passed"):
                shared = block.SharedArray((SIZE,), sg.f32)
                out[i, j] = loaded(shared, i, j) * scale
            elif sg.static(called == "returned"):
                first, _ = declared()
                out[i, j] = loaded(first, i, j) * scale

    work(3)
    np.testing.assert_array_equal(out.to_numpy(), WANTED * 6)


def test_loops_whose_functions_read_a_variable_are_parallel() -> None:
    """What is passed by `template()` counts as changed only if the function may change it."""
    x = sg.field(sg.f32, shape=8)

    @sg.dataclass
    class Pair:
        a: sg.f32
        b: sg.f32

        @sg.func
        def total(self):
            return self.a + self.b

    @sg.func
    def read(v: sg.template(), w: sg.template()):
        return v.norm_sqr() + w.a + w.b

    @sg.func
    def grow(v: sg.template()):
        v += 1.0

    @sg.func
    def passes_on(v: sg.template()):
        grow(v)

    @sg.kernel
    def reads(n: sg.f32):
        v = sg.Vector([n, n])
        w = Pair(n, n)
        for i in x:
            x[i] = read(v, w) + w.total()

    @sg.kernel
    def changes(n: sg.f32):
        v = n
        for i in x:
            passes_on(v)
            x[i] = v

    reads(2.0)
    assert (x.to_numpy() == 16).all()
    assert "parallel=True" in reads.ir("kernel")
    changes(2.0)
    np.testing.assert_array_equal(x.to_numpy(), np.arange(8) + 3)
    assert "parallel=True" not in changes.ir("kernel")
