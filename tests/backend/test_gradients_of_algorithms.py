"""Tapes differentiate sorting, sums, scans and selections as a whole: against NumPy and central differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend.central_differences import differences

import spirograd as sg
from spirograd import algorithms

pytestmark = pytest.mark.vulkan_or_wgpu

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _session(arch: str) -> None:
    sg.init(arch=arch)


def numbers(n: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).permutation(n).astype("f8") / 4 - 1


def vector(n: int, make: Any, t: Any = sg.f32) -> Any:
    return make(t, n, needs_grad=True)


@sg.kernel
def double(x: sg.Template, y: sg.Template, n: int):  # type: ignore[no-untyped-def]
    for i in range(n):
        y[i] = 2.0 * x[i]


@sg.kernel
def weigh(y: sg.Template, loss: sg.Template, n: int):  # type: ignore[no-untyped-def]
    for i in range(n):
        loss[None] += (i + 1) * y[i] ** 2


def weighted(y: Array) -> float:
    return float(np.sum(np.arange(1, len(y) + 1) * y**2))


def close(found: Any, wanted: Array) -> None:
    np.testing.assert_allclose(found.to_numpy(), wanted, rtol=2e-5, atol=2e-5 * (1 + np.abs(wanted).max()))


@pytest.mark.parametrize("make", [sg.field, sg.ndarray], ids=["field", "ndarray"])
@pytest.mark.parametrize("n", [1, 2, 41])
def test_scans(arch: str, n: int, make: Any) -> None:
    x, y, loss = vector(n, make), vector(n + 3, make), sg.field(sg.f32, (), needs_grad=True)
    data = numbers(n)
    x.from_numpy(data.astype("f4"))
    y.fill(5)  # what is behind the end stays

    def before(x: Array) -> Array:
        return np.concatenate([[0], np.cumsum(x)[:-1]])

    for run, of in (
        (lambda: algorithms.inclusive_scan(x, y), np.cumsum),
        (lambda: algorithms.exclusive_scan(x, y), before),
        (lambda: (double(x, y, n), algorithms.inclusive_scan(y)), lambda x: 2 * np.cumsum(np.concatenate([x, [5, 5, 5]]))[:n]),
        (lambda: (double(x, y, n), algorithms.PrefixSumExecutor(n).run(y), algorithms.exclusive_scan(y)), None),
    ):
        for _ in range(2):  # the second time from scratch memory that is there
            with sg.ad.Tape(loss):
                run()
                weigh(y, loss, n)
            if of is not None:
                close(x.grad, differences(lambda x, of=of: weighted(of(x)), data))
            else:
                close(x.grad, differences(lambda x: weighted(before(np.cumsum(2 * x))), data))


ACCUMULATE = {"min": np.minimum.accumulate, "max": np.maximum.accumulate, "mul": np.multiply.accumulate}
START = {"min": np.inf, "max": -np.inf, "mul": 1.0}


def scanned(x: Array, op: str, exclusive: bool) -> Array:
    return np.concatenate([[START[op]], ACCUMULATE[op](x)[:-1]]) if exclusive else ACCUMULATE[op](x)


@sg.kernel
def weigh_finite(y: sg.Template, loss: sg.Template, n: int):  # type: ignore[no-untyped-def]
    for i in range(n):
        if sg.abs(y[i]) < 1e30:
            loss[None] += (i + 1) * y[i] ** 2


def weighted_finite(y: Array) -> float:
    finite = np.isfinite(y)
    return float(np.sum(np.arange(1, len(y) + 1) * np.where(finite, y, 0) ** 2))


@pytest.mark.parametrize("op", ["min", "max", "mul"])
@pytest.mark.parametrize("n", [1, 2, 67, 300])
def test_other_scans(arch: str, op: str, n: int) -> None:
    """Products with a zero, and with two; into other memory, and in place."""
    x, y, loss = vector(n, sg.ndarray), vector(n + 3, sg.field), sg.field(sg.f32, (), needs_grad=True)
    rng = np.random.default_rng(n)
    data = rng.permutation(n) / n if op != "mul" else rng.uniform(0.9, 1.1, n) * rng.choice([-1, 1], n)
    y.fill(0)
    for zeros in ([], [n // 2], [n // 3, n // 2])[: 3 if op == "mul" else 1]:
        data[zeros] = 0
        x.from_numpy(data.astype("f4"))
        for exclusive in (False, True):
            scan = algorithms.exclusive_scan if exclusive else algorithms.inclusive_scan
            for in_place in (False, True):
                with sg.ad.Tape(loss):
                    if in_place:
                        double(x, y, n)
                        scan(y, None, op)
                    else:
                        scan(x, y, op)
                    weigh_finite(y, loss, n)
                factor = 2 if in_place and op != "mul" else 1
                if in_place and op == "mul":
                    continue  # 2 ** 300
                wanted = differences(lambda x, e=exclusive, f=factor: weighted_finite(scanned(f * x, op, e)), data)
                np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=2e-3, atol=2e-4 * (1 + np.abs(wanted).max()))


@pytest.mark.parametrize("op", ["min", "max", "mul"])
@pytest.mark.parametrize("n", [1, 5, 300])
def test_other_reductions(arch: str, op: str, n: int) -> None:
    x, total = vector(n, sg.field), vector((), sg.field)
    rng = np.random.default_rng(n)
    data = rng.permutation(n) + 1.0 if op != "mul" else rng.uniform(0.9, 1.1, n)
    for zeros in ([], [n // 2], [n // 3, n // 2])[: 3 if op == "mul" else 1]:
        data[zeros] = 0
        x.from_numpy(data.astype("f4"))
        with sg.ad.Tape(total):
            algorithms.reduce(x, op, total)
        wanted = differences(lambda x: float(ACCUMULATE[op](x)[-1]), data)
        np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_of_equal_elements_the_first_gets_the_gradient(arch: str) -> None:
    n = 200
    x, y, loss, total = vector(n, sg.field), vector(n, sg.field), sg.field(sg.f32, (), needs_grad=True), vector((), sg.field)
    data = np.random.default_rng(5).integers(0, 4, n).astype("f4")
    x.from_numpy(data)

    @sg.kernel
    def add_up():  # type: ignore[no-untyped-def]
        for i in range(n):
            loss[None] += (i + 1) * y[i]

    for op in ("max", "min"):
        with sg.ad.Tape(loss):
            algorithms.inclusive_scan(x, y, op)
            add_up()
        wanted = np.zeros(n)
        for i in range(n):
            wanted[np.flatnonzero(data == ACCUMULATE[op](data[: i + 1])[-1])[0]] += i + 1
        np.testing.assert_array_equal(x.grad.to_numpy(), wanted)
        with sg.ad.Tape(total):
            algorithms.reduce(x, op, total)
        first = np.zeros(n)
        first[(data.argmax if op == "max" else data.argmin)()] = 1
        np.testing.assert_array_equal(x.grad.to_numpy(), first)


def test_long_scan(arch: str) -> None:
    n = 9000 if arch != "interpreter" else 700
    x, y, loss = vector(n, sg.ndarray), vector(n, sg.ndarray), sg.field(sg.f32, (), needs_grad=True)
    data = np.random.default_rng(2).uniform(-1, 1, n)
    x.from_numpy(data.astype("f4"))

    @sg.kernel
    def mean(y: sg.types.NDArray[sg.f32, 1]):  # type: ignore[no-untyped-def]
        for i in y:
            loss[None] += y[i] * sg.sin(0.01 * i) / n

    with sg.ad.Tape(loss):
        algorithms.inclusive_scan(x, y)
        mean(y)
    wanted = np.cumsum((np.sin(0.01 * np.arange(n)) / n)[::-1])[::-1]
    np.testing.assert_allclose(x.grad.to_numpy(), wanted, atol=2e-6)


@pytest.mark.parametrize("make", [sg.field, sg.ndarray], ids=["field", "ndarray"])
@pytest.mark.parametrize("n", [1, 2, 41])
def test_sort(arch: str, n: int, make: Any) -> None:
    x, keys, values, loss = vector(n, make), vector(n, make), vector(n, make), sg.field(sg.f32, (), needs_grad=True)
    order = make(sg.i32, n)
    for seed in (1, 2):
        data = numbers(n, seed)
        x.from_numpy(data.astype("f4"))
        with sg.ad.Tape(loss):
            double(x, keys, n)
            algorithms.argsort(keys, order)  # integers: no derivative
            algorithms.parallel_sort(keys)
            weigh(keys, loss, n)
        close(x.grad, differences(lambda x: weighted(np.sort(2 * x)), data) if n > 1 else 8 * data)
        np.testing.assert_array_equal(order.to_numpy(), np.argsort(data))

        places = np.argsort(data)
        with sg.ad.Tape(loss):
            double(x, keys, n)
            double(keys, values, n)
            algorithms.parallel_sort(keys, values)
            weigh(keys, loss, n)
            weigh(values, loss, n)
        rank = np.argsort(places) + 1
        close(x.grad, 2 * rank * data * (2**2 + 4**2))


def test_sort_by_integers(arch: str) -> None:
    n = 9
    x, loss, keys = vector(n, sg.field), sg.field(sg.f32, (), needs_grad=True), sg.field(sg.i32, n)
    y = vector(n, sg.field)
    x.from_numpy(np.arange(n, dtype="f4"))
    data = np.random.default_rng(3).permutation(n)
    keys.from_numpy(data.astype("i4"))
    with sg.ad.Tape(loss):
        double(x, y, n)
        algorithms.parallel_sort(keys, y)
        weigh(y, loss, n)
    close(x.grad, 8.0 * (data + 1) * np.arange(n))


@pytest.mark.parametrize("n", [0, 1, 41])
@pytest.mark.parametrize("shape", [(), 1], ids=str)
def test_reduce(arch: str, n: int, shape: Any) -> None:
    x, total, loss = vector(max(n, 1), sg.ndarray), vector(shape, sg.field), sg.field(sg.f32, (), needs_grad=True)
    data = numbers(max(n, 1))
    x.from_numpy(data.astype("f4"))

    @sg.kernel
    def square():  # type: ignore[no-untyped-def]
        for at in sg.grouped(total):
            loss[None] += total[at] ** 2

    with sg.ad.Tape(loss):
        assert algorithms.reduce(x, out=total) is None
        square()
    close(x.grad, np.full(len(data), 2 * data.sum()))
    assert algorithms.reduce(x) == pytest.approx(data.sum())


def test_select_and_unique(arch: str) -> None:
    n = 41
    x, y, loss, flags = vector(n, sg.field), vector(n, sg.field), sg.field(sg.f32, (), needs_grad=True), sg.field(sg.i32, n)
    data, chosen = numbers(n), np.random.default_rng(4).random(n) < 0.4
    x.from_numpy(data.astype("f4"))
    flags.from_numpy(chosen.astype("i4"))
    y.fill(0)
    with sg.ad.Tape(loss):
        count = algorithms.select(x, flags, y)
        weigh(y, loss, n)
    assert count == chosen.sum()
    wanted = np.zeros(n)
    wanted[chosen] = 2 * data[chosen] * np.arange(1, count + 1)
    close(x.grad, wanted)
    with sg.ad.Tape(loss):
        assert algorithms.unique(x, y) == n
        weigh(y, loss, n)
    close(x.grad, 2 * data * np.arange(1, n + 1))


@sg.func
def larger(a, b):  # type: ignore[no-untyped-def]
    return sg.max(a, b)


@pytest.mark.archs("cpu")
def test_refusals(arch: str) -> None:
    x, y, loss = vector(5, sg.field), sg.field(sg.f32, 5), sg.field(sg.f32, (), needs_grad=True)
    for message, run in (
        (r"`exclusive_scan` by a function has no derivative", lambda: algorithms.exclusive_scan(x, x, larger, 0.0)),
        (r"`inclusive_scan` by a function has no derivative", lambda: algorithms.inclusive_scan(x, x, larger)),
        (r"`reduce` by a function has no derivative", lambda: algorithms.reduce(x, larger, loss)),
        (r"gradients end at `out` of `inclusive_scan`", lambda: algorithms.inclusive_scan(x, y)),
        (r"gradients end at `out` of `reduce`", lambda: algorithms.reduce(x, out=sg.field(sg.f32, ()))),
        (r"`out`: expected a field or ndarray of one f32", lambda: algorithms.reduce(x, out=y)),
        (r"gradients end at .*: an algorithm reads it, and kernel `double`", lambda: (double(x, y, 5), algorithms.parallel_sort(y, x))),
    ):
        with pytest.raises(sg.SpirogradError, match=message), sg.ad.Tape(loss):
            run()
    algorithms.inclusive_scan(x, y, "mul")  # outside of tapes
    with sg.ad.Tape(loss):
        assert algorithms.reduce(x, "max") == 0  # a number


def test_memory_without_gradients(arch: str) -> None:
    """Tapes take algorithms of integers, and of floats that no gradient flows to; what they overwrite gets none."""
    n = 9
    x, y, loss, keys = sg.field(sg.f32, n), vector(n, sg.field), sg.field(sg.f32, (), needs_grad=True), sg.field(sg.i32, n)
    z = vector(n, sg.field)
    x.from_numpy(np.arange(n, dtype="f4"))
    keys.from_numpy(np.arange(n, dtype="i4")[::-1].copy())
    z.fill(1)
    with sg.ad.Tape(loss):
        double(z, y, n)
        algorithms.parallel_sort(keys)
        algorithms.inclusive_scan(keys)
        algorithms.parallel_sort(x)
        algorithms.inclusive_scan(x, y)
        weigh(y, loss, n)
    assert loss[None] == weighted(np.cumsum(np.arange(n)))
    np.testing.assert_array_equal(keys.to_numpy(), np.cumsum(np.arange(n)))
    np.testing.assert_array_equal(z.grad.to_numpy(), np.zeros(n))
