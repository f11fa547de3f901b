"""Tapes differentiate algorithms on views: slices, strides, two parts of one array; against central differences in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend.central_differences import differences

import spirograd as sg
from spirograd import algorithms

pytestmark = pytest.mark.vulkan_or_wgpu

Array = np.ndarray[Any, Any]
PARTS = {"range": slice(3, 40), "step": slice(1, 80, 3), "backwards": slice(50, 9, -1)}
LENGTH = 90


@pytest.fixture(autouse=True)
def _session(arch: str) -> None:
    sg.init(arch=arch)


@sg.kernel
def double(x: sg.Template, y: sg.Template, n: int):  # type: ignore[no-untyped-def]
    for i in range(n):
        y[i] = 2.0 * x[i]


@sg.kernel
def square(x: sg.Template, y: sg.Template, n: int):  # type: ignore[no-untyped-def]
    for i in range(n):
        y[i] = x[i] ** 2


@sg.kernel
def weigh(y: sg.Template, loss: sg.Template, n: int):  # type: ignore[no-untyped-def]
    for i in range(n):
        loss[None] += (i + 1) * y[i] ** 2


def weighted(y: Array) -> float:
    return float(np.sum(np.arange(1, len(y) + 1) * y**2))


def made(seed: int) -> tuple[Any, Array]:
    """An array of numbers whose squares differ, too."""
    a = sg.ndarray(sg.f32, LENGTH, needs_grad=True)
    data = np.random.default_rng(seed).permutation(LENGTH) / LENGTH + 0.3
    a.from_numpy(data.astype("f4"))
    return a, data


def check(run: Callable[[], object], n: int, of: Callable[[Array], float], x: Any, data: Array, part: slice) -> None:
    """``run`` ends with numbers in ``y`` that are weighed; ``of``: the loss of the whole array ``x``, which holds ``data``. What is not in
    ``part`` gets no gradient."""
    wanted = differences(of, data)
    others = np.ones(LENGTH, bool)
    others[part] = False
    for _ in range(2):
        run()
        got = x.grad.to_numpy()
        np.testing.assert_allclose(got, wanted, rtol=5e-5, atol=5e-5 * (1 + np.abs(wanted).max()))
        assert (got[others] == 0).all()


SCANS: dict[str, tuple[Callable[[Any, Any], object], Callable[[Array], Array]]] = {
    "sums": (algorithms.inclusive_scan, np.cumsum),
    "sums before": (algorithms.exclusive_scan, lambda x: np.cumsum(x) - x),
    "products": (lambda x, y: algorithms.inclusive_scan(x, y, "mul"), np.multiply.accumulate),
    "greatest": (lambda x, y: algorithms.inclusive_scan(x, y, "max"), np.maximum.accumulate),
    "least": (lambda x, y: algorithms.inclusive_scan(x, y, "min"), np.minimum.accumulate),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("scan", SCANS)
def test_scans(arch: str, scan: str, part: str) -> None:
    """From a view to a view, which has other elements than are set behind its end."""
    run, of = SCANS[scan]
    (a, data), (b, _), loss = made(1), made(2), sg.field(sg.f32, (), needs_grad=True)
    x, y = a[PARTS[part]], b[5:89:2]
    n = x.shape[0]

    def record() -> None:
        with sg.ad.Tape(loss):
            run(x, y)
            weigh(y, loss, n)

    check(record, n, lambda d: weighted(of(d[PARTS[part]])), a, data, PARTS[part])


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_in_place(arch: str, part: str, checkpointed: bool) -> None:
    """What was read before is overwritten, through a view, and needed in the reverse pass."""
    (a, data), (b, _), loss = made(3), made(4), sg.field(sg.f32, (), needs_grad=True)
    x, y = a[PARTS[part]], b[PARTS[part]]
    n = x.shape[0]

    def steps() -> None:
        square(x, y, n)
        weigh(y, loss, n)
        algorithms.parallel_sort(y)
        weigh(y, loss, n)
        algorithms.PrefixSumExecutor(n).run(y)

    def record() -> None:
        with sg.ad.Tape(loss):
            sg.ad.checkpoint(steps) if checkpointed else steps()
            weigh(y, loss, n)

    def of(d: Array) -> float:
        squares = d[PARTS[part]] ** 2
        return weighted(squares) + weighted(np.sort(squares)) + weighted(np.cumsum(np.sort(squares)))

    check(record, n, of, a, data, PARTS[part])


@pytest.mark.parametrize("part", PARTS)
def test_sorts_of_keys_and_values(arch: str, part: str) -> None:
    (a, data), (b, _), (c, _), loss = made(5), made(6), made(7), sg.field(sg.f32, (), needs_grad=True)
    x, keys, values = a[PARTS[part]], b[PARTS[part]], c[2:88:2]
    n = x.shape[0]

    def record() -> None:
        with sg.ad.Tape(loss):
            double(x, keys, n)
            square(x, values, n)
            algorithms.parallel_sort(keys, values)
            weigh(keys, loss, n)
            weigh(values, loss, n)

    def of(d: Array) -> float:
        mine = np.sort(d[PARTS[part]])
        return weighted(2 * mine) + weighted(mine**2)

    check(record, n, of, a, data, PARTS[part])


REDUCTIONS: dict[str, Callable[[Array], Any]] = {"add": np.sum, "mul": np.prod, "min": np.min, "max": np.max}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(arch: str, op: str, part: str) -> None:
    (a, data), total = made(8), sg.field(sg.f32, (), needs_grad=True)

    def record() -> None:
        with sg.ad.Tape(total):
            algorithms.reduce(a[PARTS[part]], op, total)

    check(record, 0, lambda d: float(REDUCTIONS[op](d[PARTS[part]])), a, data, PARTS[part])


@pytest.mark.parametrize("part", PARTS)
def test_selections(arch: str, part: str) -> None:
    (a, data), (b, _), loss, flags = made(9), made(10), sg.field(sg.f32, (), needs_grad=True), sg.ndarray(sg.i32, LENGTH)
    chosen = np.random.default_rng(4).random(LENGTH) < 0.4
    flags.from_numpy(chosen.astype("i4"))
    x, y = a[PARTS[part]], b[80:0:-1]
    y.fill(0)
    n = x.shape[0]

    def record() -> None:
        with sg.ad.Tape(loss):
            count = algorithms.select(x, flags[PARTS[part]], y)
            weigh(y, loss, n)
            assert count == chosen[PARTS[part]].sum()
            assert algorithms.unique(x, y) == n
            weigh(y, loss, n)

    def of(d: Array) -> float:
        return weighted(d[PARTS[part]][chosen[PARTS[part]]]) + weighted(d[PARTS[part]])

    check(record, n, of, a, data, PARTS[part])


def test_two_parts_of_one_array(arch: str) -> None:
    """Even elements are scanned into the odd ones, then a part of both is sorted, and selected into another part."""
    (a, data), (b, _), loss, flags = made(11), made(12), sg.field(sg.f32, (), needs_grad=True), sg.ndarray(sg.i32, 20)
    flags.from_numpy(np.arange(20, dtype="i4") % 3)

    def record() -> None:
        with sg.ad.Tape(loss):
            double(a, b, LENGTH)
            algorithms.inclusive_scan(b[::2], b[1::2])
            algorithms.parallel_sort(b[10:40])
            algorithms.select(b[20:40], flags, b[40:60])
            weigh(b, loss, LENGTH)

    def of(d: Array) -> float:
        y = 2 * d
        y[1::2] = np.cumsum(y[::2])
        y[10:40] = np.sort(y[10:40])
        taken = y[20:40][np.arange(20) % 3 != 0]
        y[40 : 40 + len(taken)] = taken
        return weighted(y)

    check(record, LENGTH, of, a, data, slice(None))


def test_columns_of_a_matrix(arch: str) -> None:
    a, loss = sg.ndarray(sg.f32, (7, 5), needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    data = np.random.default_rng(13).uniform(0.2, 1, (7, 5))  # no equal sums
    b = sg.ndarray(sg.f32, (7, 5), needs_grad=True)
    a.from_numpy(data.astype("f4"))
    with sg.ad.Tape(loss):
        for column in range(5):
            algorithms.inclusive_scan(a[:, column], b[:, column])
        for row in range(7):
            algorithms.parallel_sort(b[row, :])
            weigh(b[row, :], loss, 5)

    def of(flat: Array) -> float:
        return sum(weighted(np.sort(row)) for row in np.cumsum(flat.reshape(7, 5), axis=0))

    np.testing.assert_allclose(a.grad.to_numpy().ravel(), differences(of, data.ravel()), rtol=5e-5, atol=1e-4)


def test_parts_without_elements(arch: str) -> None:
    a, loss = made(14)[0], sg.field(sg.f32, (), needs_grad=True)
    b = made(15)[0]
    with sg.ad.Tape(loss):
        algorithms.inclusive_scan(a[4:4], b[9:9])
        algorithms.parallel_sort(b[0:0])
        algorithms.parallel_sort(b[7:8])
        algorithms.reduce(a[3:3], "add", loss)
    assert (a.grad.to_numpy() == 0).all() and loss[None] == 0


def test_gradients_that_end_at_a_view(arch: str) -> None:
    a, b, loss = made(16)[0], sg.ndarray(sg.f32, LENGTH), sg.field(sg.f32, (), needs_grad=True)
    for message, run in (
        (r"gradients end at `out` of `inclusive_scan`", lambda: algorithms.inclusive_scan(a[3:9], b[0:6])),
        (r"gradients end at .*: an algorithm reads it", lambda: (double(a, b, 9), algorithms.parallel_sort(b[0:9], a[0:9]))),
    ):
        with pytest.raises(sg.SpirogradError, match=message), sg.ad.Tape(loss):
            run()
