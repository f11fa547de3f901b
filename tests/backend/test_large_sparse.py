"""Sparse trees with more than 2^31 possible cells, of which few are active, against NumPy and sets of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

EXTENT = 2**14  # along each of three axes
COUNT = 40
FEW = {"cells": 500}


def make(kind: str, **kwargs: Any) -> tuple[Any, Any]:
    """A field of 2^42 elements in 2^36 cells, and the node of these cells."""
    x = sg.field(sg.f32, **kwargs)
    outer = getattr(sg.root, kind)(sg.ijk, (256,) * 3, **FEW)
    node = getattr(outer, kind)(sg.ijk, (16,) * 3, **FEW)
    node.dense(sg.ijk, (4,) * 3).place(x)
    if kwargs:
        sg.root.lazy_grad()
    return x, node


def places() -> np.ndarray:
    """Indices in cells of their own: both ends, and others at random."""
    at = np.random.default_rng(3).choice(EXTENT // 4, (3, COUNT), replace=False).T.astype(np.int32) * 4 + 1
    at[0], at[1] = 0, EXTENT - 1
    return at


def numbered(x: Any) -> Any:
    @sg.kernel
    def write(at: sg.types.NDArray[sg.i32, 2]):
        for k in range(at.shape[0]):
            x[at[k, 0], at[k, 1], at[k, 2]] = k + 1.0

    return write


def found_in_loop(x: Any) -> np.ndarray:
    """Where a loop over ``x`` finds each number."""

    @sg.kernel
    def look(found: sg.types.NDArray[sg.i32, 2]):
        for i, j, k in x:
            if x[i, j, k] > 0.0:
                n = int(x[i, j, k]) - 1
                found[n, 0], found[n, 1], found[n, 2] = i, j, k

    found = np.full((COUNT, 3), -1, np.int32)
    look(found)
    return found


@pytest.mark.parametrize("kind", ["pointer", "hash"])
def test_writes_loops_and_deactivation(session: Any, kind: str) -> None:
    x, node = make(kind)
    write, at = numbered(x), places()
    write(at)
    np.testing.assert_array_equal(found_in_loop(x), at)

    @sg.kernel
    def end():
        for I in sg.grouped(node):
            if I[0] % 2 == 0:
                sg.deactivate(node, I)

    @sg.kernel
    def active(seen: sg.types.NDArray[sg.i32, 1], at: sg.types.NDArray[sg.i32, 2]):
        for k in range(seen.shape[0]):
            seen[k] = sg.is_active(node, [at[k, 0] // 4, at[k, 1] // 4, at[k, 2] // 4])

    end()
    stays = at[:, 0] // 4 % 2 == 1
    np.testing.assert_array_equal(found_in_loop(x), np.where(stays[:, None], at, -1))
    seen = np.full(COUNT, -1, np.int32)
    active(seen, at)
    np.testing.assert_array_equal(seen, stays)
    node.deactivate_all()
    assert (found_in_loop(x) == -1).all()
    write(at)
    np.testing.assert_array_equal(found_in_loop(x), at)


def test_elements_from_python(session: Any) -> None:
    x, _ = make("pointer")
    high = EXTENT - 2
    x[high, 5, high] = 7.0
    assert (x[high, 5, high], x[high, 5, high - 1], x[5, high, high]) == (7.0, 0.0, 0.0)
    np.testing.assert_array_equal(found_in_loop(x)[6], [high, 5, high])


def test_gradients(session: Any) -> None:
    x, _ = make("pointer", needs_grad=True)
    w, loss = sg.field(sg.f32, COUNT, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    at, index = places(), sg.field(sg.i32, (COUNT, 3))
    index.from_numpy(at)

    @sg.kernel
    def write():
        for k in range(COUNT):
            x[index[k, 0], index[k, 1], index[k, 2]] = w[k] * w[k]

    @sg.kernel
    def total():
        for i, j, k in x:
            loss[None] += x[i, j, k] * (i % 7 + 1.0)

    values = np.linspace(0.5, 2.0, COUNT).astype(np.float32)
    w.from_numpy(values)
    for _ in range(2):
        with sg.ad.Tape(loss):
            write()
            total()
        weights = at[:, 0] % 7 + 1.0
        assert loss[None] == pytest.approx((weights * values.astype(np.float64) ** 2).sum(), rel=1e-5)
        np.testing.assert_allclose(w.grad.to_numpy(), 2.0 * weights * values, rtol=1e-5)


def test_lists(session: Any) -> None:
    """One in each of 2^32 cells."""
    x = sg.field(sg.i32)
    sg.root.pointer(sg.i, 2**12, **FEW).pointer(sg.i, 2**8, **FEW).dense(sg.i, 2**10).dynamic(sg.j, 64, chunk_size=8, **FEW).place(x)
    top = 2**30 - 1

    @sg.kernel
    def fill():
        for k in range(20):
            x[top].append(k)
        x[5, 40] = 3

    @sg.kernel
    def read() -> sg.types.vector(4, sg.i32):
        total, count = 0, 0
        for i, j in x:
            total += x[i, j]
            count += i // 2**20
        return sg.Vector([x[top].length(), x[5].length(), total, count])

    fill()
    assert read().to_numpy().tolist() == [20, 41, 193, 20 * (top // 2**20)]
