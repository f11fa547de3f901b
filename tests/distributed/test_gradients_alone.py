"""Derivatives of transfers and sums on one process, on every back end: each transfer is linear, so its reverse is the transpose of its
matrix, which NumPy applies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import spirograd as sg
from spirograd import distributed


@pytest.fixture(autouse=True)
def alone(arch: str) -> Iterator[None]:
    distributed.init(arch=arch)
    yield
    distributed.end()


def matrix(move, part):
    """The matrix of what ``move`` does to all cells of the block and its halo."""
    x = part.ndarray(sg.f32)
    columns = []
    for k in range(int(np.prod(part.local_shape))):
        unit = np.zeros(part.local_shape, np.float32)
        unit.reshape(-1)[k] = 1.0
        x.from_numpy(unit)
        move(part, x)
        columns.append(x.to_numpy().reshape(-1))
    return np.stack(columns, axis=1)


def exchange_in_two_steps(part, x):
    part.start(x).finish()


MOVES = [distributed.Partition.exchange, distributed.Partition.add_halos, exchange_in_two_steps]


@pytest.mark.parametrize("options", [{}, {"checkpoints": 1}, {"checkpoints": 3}], ids=str)
@pytest.mark.parametrize("move", MOVES, ids=lambda f: f.__name__)
def test_transfers(move, options):
    part = distributed.Partition((3, 2), halo=(2, 1), periodic=(True, False))
    x, y, loss = part.field(sg.f32, True), part.field(sg.f32, True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def square():
        for i, j in x:
            y[i, j] = x[i, j] * x[i, j]

    @sg.kernel
    def weigh():
        for i, j in y:
            loss[None] += y[i, j] * y[i, j] * (1.0 + 0.25 * i + 0.5 * j)

    start = np.random.default_rng(0).integers(-3, 4, part.local_shape).astype(np.float32)
    x.from_numpy(start)
    with sg.ad.Tape(loss, **options):
        square()
        move(part, y)
        weigh()
        move(part, y)  # overwrites what the gradient of `weigh` reads
    M = matrix(move, part)
    i, j = np.indices(part.local_shape)
    weights = (1.0 + 0.25 * (i + part.origin[0]) + 0.5 * (j + part.origin[1])).reshape(-1)
    moved = M @ (start.reshape(-1) ** 2)
    assert np.isclose(loss[None], (weights * moved**2).sum())
    assert np.allclose(x.grad.to_numpy().reshape(-1), 2 * start.reshape(-1) * (M.T @ (2 * weights * moved)))


def test_sums_of_one_process():
    p, loss = sg.field(sg.f32, 3, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def cube():
        for i in p:
            loss[None] += p[i] ** 3

    p.from_numpy(np.array([1, 2, 3], np.float32))
    with sg.ad.Tape(loss):
        distributed.replicate(p)
        distributed.all_reduce(p)
        cube()
        distributed.total(loss)
    assert loss[None] == 36 and np.allclose(p.grad.to_numpy(), [3, 12, 27])


@pytest.mark.archs("cpu")
def test_what_has_no_derivative():
    part = distributed.Partition(4, periodic=True)
    x, loss = part.field(sg.f32, True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def sum_up():
        for i in x:
            loss[None] += x[i]

    with pytest.raises(sg.SpirogradUnsupportedError, match=r"`all_reduce` with 'max' has no derivative"), sg.ad.Tape(loss):
        distributed.all_reduce(x, "max")
    fine, result = part.field(sg.f64, True), sg.field(sg.f64, (), needs_grad=True)
    with pytest.raises(sg.SpirogradUnsupportedError, match="it cannot check a halo exchange"), sg.ad.Tape(result, grad_check=[fine]):
        part.exchange(fine)
    y, z = sg.field(sg.f32, (), needs_dual=True), sg.field(sg.f32, (), needs_dual=True)
    with (
        pytest.raises(sg.SpirogradUnsupportedError, match="forward mode does not reach other processes"),
        sg.ad.FwdMode(loss=z, param=y, seed=[1.0]),
    ):
        distributed.total(z)
    with pytest.raises(sg.SpirogradValueError, match="no operation 'mean'"):
        distributed.all_reduce(x, "mean")
    with pytest.raises(sg.SpirogradTypeError, match="takes f32, f64, i32, i64, not u8"):
        distributed.all_reduce(sg.field(sg.u8, 3))
    with pytest.raises(sg.SpirogradRuntimeError, match="was started in the tape and not finished there"), sg.ad.Tape(loss):
        pending = part.start(x)
        sum_up()
    with pytest.raises(sg.SpirogradRuntimeError, match="was started and finished by different tapes"):
        pending.finish()
    with pytest.raises(sg.SpirogradRuntimeError, match="was started and never finished"):
        part.exchange(fine)


@pytest.mark.archs("cpu")
def test_gradients_end_nowhere_without_a_word():
    """An exchange of memory without gradients, to which values with gradients were written."""
    part = distributed.Partition(4, periodic=True)
    x, y, loss = part.field(sg.f32, True), part.field(sg.f32), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def copy():
        for i in x:
            y[i] = 2.0 * x[i]

    with pytest.raises(sg.SpirogradCompilationError, match=r"gradients end at the field `y`.*a halo exchange reads it"), sg.ad.Tape(loss):
        copy()
        part.exchange(y)
