"""What other systems get wrong without a word: here the gradient is right, or the kernel is refused at the line, with a hint.

Memory that is overwritten has a file of its own: `test_overwritten_memory.py`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from grad.check import Program, check, check_replay
from grad.refusals import Refused, line_of, refused

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
N = 7


def xy(t: Any, n: int = N) -> tuple[Any, Any]:
    return sg.field(t, shape=n, needs_grad=True), sg.field(t, shape=n, needs_grad=True)


# --- atomics ------------------------------------------------------------------------------------------------------------------------


def atomic_minmax(t: Any) -> Program:
    x, y = xy(t)
    z = sg.field(t, shape=3, needs_grad=True)

    @sg.kernel
    def run():
        for i, j in sg.ndrange(N, 3):
            sg.atomic_max(y[(i * j) % 3], x[i] * x[i])
            sg.atomic_min(z[(i + j) % 3], sg.sin(x[i]) * t(0.6))

    return Program(run, [x, y, z])


def atomic_max_of_all(t: Any) -> Program:
    x, _ = xy(t)
    top = sg.field(t, shape=(), needs_grad=True)

    @sg.kernel
    def run():
        for i in x:
            sg.atomic_max(top[None], x[i] * x[(i + 1) % N])

    return Program(run, [x, top], data={1: lambda rng, shape: np.full(shape, 0.1)})


def local_max(t: Any) -> Program:
    x, _ = xy(t)
    out = sg.field(t, shape=(), needs_grad=True)

    @sg.kernel
    def run():
        top = t(-1e9)
        for i in x:
            sg.atomic_max(top, x[i])
        total = t(0.0)
        for i in x:
            total += sg.exp(x[i] - top)
        out[None] = top + sg.log(total)

    return Program(run, [x, out])


@pytest.mark.parametrize("case", [atomic_minmax, atomic_max_of_all, local_max], ids=lambda case: case.__name__)
def test_atomic_min_and_max(case: Any) -> None:
    check(case, sg.f32)


def test_a_tie_of_atomic_max_gives_the_adjoint_away_once() -> None:
    """Each unit of adjoint arrives once in all, whoever gets it."""
    x, _ = xy(sg.f32)
    top = sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def run():
        for i in x:
            sg.atomic_max(top[None], x[i])

    x.fill(2.0)
    run()
    top.grad.fill(1.0)
    run.grad()
    assert x.grad.to_numpy().sum() + top.grad[None] == pytest.approx(1.0)


def atomic_mul(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            sg.atomic_mul(y[i // 4], x[i])

    return Program(run, [x, y], tape=True)


def atomic_mul_of_own_elements(t: Any) -> Program:
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            y[i] *= sg.sin(x[i])

    return Program(run, [x, y], tape=True)


def atomic_old_value(t: Any) -> Program:
    """What an addition returns is a value like others."""
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            old = sg.atomic_add(y[i], x[i])
            x[i] = old * old

    return Program(run, [x, y], tape=True)


def product_of_sums(t: Any) -> Program:
    """Products that all iterations share, among other work."""
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            for j in range(i):
                sg.atomic_mul(y[0], sg.sin(x[i] * t(j + 1)) + t(1.5))
            y[i] += x[i]

    return Program(run, [x, y], tape=True)


@pytest.mark.parametrize("case", [atomic_mul, product_of_sums], ids=lambda case: case.__name__)
def test_atomic_products_of_several_iterations(case: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "spirograd"):
        check(case, sg.f32)
        check_replay(case, sg.f32)
    assert "iterations of a parallel loop share this product in `y`" in caplog.text


@pytest.mark.parametrize("zeros", [[], [1], [1, 2]])
@pytest.mark.parametrize("mode", ["reverse", "forward", "second"])
def test_products_in_variables(zeros: list[int], mode: str) -> None:
    """A variable of the kernel, to which each iteration of a parallel loop brings a factor."""
    x = sg.field(sg.f32, shape=N, needs_grad=True, needs_dual=True)
    loss = sg.field(sg.f32, shape=(), needs_grad=True, needs_dual=True)

    @sg.kernel
    def run():
        product = 2.0
        for i in x:
            product *= x[i]
        loss[None] += product

    values = np.linspace(0.5, 1.5, N).astype(np.float32)
    values[zeros] = 0.0
    x.from_numpy(values)
    others = np.array([2.0 * np.prod(np.delete(values, k)) for k in range(N)])
    seed = np.arange(1.0, N + 1)
    if mode == "reverse":
        with sg.ad.Tape(loss):
            run()
        np.testing.assert_allclose(x.grad.to_numpy(), others, rtol=1e-5)
    elif mode == "forward":
        with sg.ad.FwdMode(loss=loss, param=x, seed=seed.tolist()):
            run()
        np.testing.assert_allclose(loss.dual[None], others @ seed, rtol=1e-5)
    else:
        v = sg.field(sg.f32, shape=N)
        v.from_numpy(seed.astype(np.float32))
        hessian = [[2.0 * np.prod(np.delete(values, [j, k])) if j != k else 0.0 for j in range(N)] for k in range(N)]
        np.testing.assert_allclose(np.asarray(sg.ad.hvp(run, loss, x, v)), hessian @ seed, rtol=1e-4)


@pytest.mark.parametrize("zeros", [[], [1], [1, 2]])
def test_tangents_of_products(zeros: list[int], caplog: pytest.LogCaptureFixture) -> None:
    x, y = (sg.field(sg.f32, shape=N, needs_dual=True) for _ in range(2))

    @sg.kernel
    def run():
        for i in x:
            y[i % 2] *= x[i] * x[i]

    values = np.linspace(0.5, 1.5, N).astype(np.float32)
    values[zeros] = 0.0
    x.from_numpy(values)
    y.fill(2.0)
    seed = np.arange(1.0, N + 1)
    with caplog.at_level(logging.WARNING, "spirograd"), sg.ad.FwdMode(loss=y, param=x, seed=seed.tolist()):
        run()
    assert "iterations of a parallel loop share this product in `y`" in caplog.text
    for half in (0, 1):
        part = slice(half, None, 2)
        squares = values[part] ** 2
        others = [np.prod(np.delete(squares, k)) for k in range(len(squares))]
        want = 2 * (np.array(others) * 2 * values[part]) @ seed[part]
        np.testing.assert_allclose(y.dual[half], want, rtol=1e-5)
        np.testing.assert_allclose(y[half], 2 * np.prod(squares), rtol=1e-5)


@pytest.mark.parametrize("zeros", [[], [1], [1, 2]])
def test_factors_that_are_zero(zeros: list[int]) -> None:
    x, y = xy(sg.f32)

    @sg.kernel
    def run():
        for i in x:
            sg.atomic_mul(y[0], x[i])

    values = np.linspace(0.5, 1.5, N).astype(np.float32)
    values[zeros] = 0.0
    x.from_numpy(values)
    y.fill(2.0)
    with sg.ad.Tape() as tape:
        run()
    y.grad[0] = 1.0
    tape.grad()
    others = [2.0 * np.prod(np.delete(values, k)) for k in range(N)]
    np.testing.assert_allclose(x.grad.to_numpy(), others, rtol=1e-5)
    np.testing.assert_allclose(y.grad[0], np.prod(values), rtol=1e-5)


def test_products_without_gradient_stay_parallel(caplog: pytest.LogCaptureFixture) -> None:
    x, y = xy(sg.f32)
    plain = sg.field(sg.f32, ())

    @sg.kernel
    def run():
        for i in x:
            sg.atomic_mul(plain[None], 2.0)
            y[i] = x[i] * x[i]

    plain[None] = 1.0
    x.fill(3.0)
    run()
    y.grad.fill(1.0)
    with caplog.at_level(logging.WARNING, "spirograd"):
        run.grad()
    assert plain[None] == 2.0**N
    assert (x.grad.to_numpy() == 6.0).all()
    assert not caplog.text


@pytest.mark.parametrize("case", [atomic_mul_of_own_elements, atomic_old_value], ids=lambda case: case.__name__)
def test_atomics_of_own_elements(case: Any) -> None:
    check(case, sg.f32)


def test_the_result_of_an_atomic_as_an_index() -> None:
    """Compaction: which iteration gets which place is known only while it runs."""
    x, y = xy(sg.f32)
    count = sg.field(sg.i32, shape=())
    source = sg.field(sg.i32, shape=N)

    @sg.kernel
    def compact():
        for i in x:
            if x[i] > 0.5:
                at = sg.atomic_add(count[None], 1)
                y[at] = x[i] * x[i]
                source[at] = i

    values = np.array([0.9, 0.1, 0.7, 0.2, 0.3, 1.5, 0.6], np.float32)
    x.from_numpy(values)
    with sg.ad.Tape() as tape:
        compact()
    n, order = count[None], source.to_numpy()
    assert n == 4
    weights = np.arange(1, N + 1).astype(np.float32)
    y.grad.from_numpy(weights)
    tape.grad()
    wanted = np.zeros(N)
    for k in range(n):
        wanted[order[k]] = 2 * values[order[k]] * weights[k]
    np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=1e-6)
    with pytest.raises(Refused, match="Tape"):
        compact.grad()


# --- values returned ------------------------------------------------------------------------------------------------------------------


def returned_sum(x: Any) -> Any:
    @sg.kernel
    def energy() -> sg.f32:
        e = 0.0
        for i in x:
            e += x[i] * x[i] * x[i]
        return e

    return energy


def test_returned_values() -> None:
    x, y = xy(sg.f32)
    values = np.linspace(0.2, 1.4, N).astype(np.float32)
    x.from_numpy(values)
    energy = returned_sum(x)
    energy()
    energy.grad(returned=2.0)
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * values**2, rtol=1e-5)
    energy.grad()  # of a number, 1
    np.testing.assert_allclose(x.grad.to_numpy(), 9 * values**2, rtol=1e-5)

    @sg.kernel
    def two() -> sg.types.vector(2, sg.f32):
        return sg.Vector([x[0], x[1]])

    @sg.kernel
    def both() -> sg.f32:
        y[0] = x[1] * x[1]
        return x[0]

    for kernel in (two, both):
        kernel()
        with pytest.raises(sg.SpirogradRuntimeError, match="returned=1"):
            kernel.grad()
    loss = sg.field(sg.f32, shape=(), needs_grad=True)

    def recorded() -> None:
        with sg.ad.Tape(loss=loss):
            loss[None] = energy()

    with pytest.raises(Refused, match="returns a value"):
        recorded()


def test_returned_vectors() -> None:
    x, _ = xy(sg.f32)

    @sg.kernel
    def pair() -> sg.types.vector(2, sg.f32):
        return sg.Vector([x[0] * x[1], sg.sin(x[2])])

    x.fill(0.5)
    x[1] = 3.0
    pair()
    pair.grad(returned=[2.0, 10.0])
    np.testing.assert_allclose(x.grad.to_numpy()[:3], [6.0, 1.0, 10 * np.cos(0.5)], rtol=1e-5)


# --- chains that break ------------------------------------------------------------------------------------------------------------------


def test_a_field_without_gradient_in_the_middle() -> None:
    x, y = xy(sg.f32)
    middle = sg.field(sg.f32, shape=N)

    @sg.kernel
    def first():
        for i in x:
            middle[i] = x[i] * 2.0

    @sg.kernel
    def second():
        for i in x:
            y[i] = middle[i] * 3.0  # MIDDLE

    loss = sg.field(sg.f32, shape=(), needs_grad=True)

    def recorded() -> None:
        with sg.ad.Tape(loss=loss):
            first()
            second()

    refused(recorded, test_a_field_without_gradient_in_the_middle, "MIDDLE", "middle", "needs_grad=True")


def test_a_field_without_gradient_in_the_middle_of_one_kernel() -> None:
    x, y = xy(sg.f32)
    middle = sg.field(sg.f32, shape=N)

    @sg.kernel
    def both():
        for i in x:
            middle[i] = x[i] * 2.0
        for i in x:
            y[i] = middle[i] * 3.0  # MIDDLE

    def recorded() -> None:
        with sg.ad.Tape():
            both()

    here = test_a_field_without_gradient_in_the_middle_of_one_kernel
    refused(recorded, here, "MIDDLE", "middle", "needs_grad=True")
    both()
    refused(both.grad, here, "MIDDLE", "middle", "needs_grad=True")


def test_a_field_without_gradient_that_was_written_before_the_tape_is_a_constant() -> None:
    x, y = xy(sg.f32)
    weights = sg.field(sg.f32, shape=N)
    weights.fill(5.0)

    @sg.kernel
    def second():
        for i in x:
            y[i] += weights[i] * x[i]

    second()
    y.grad.fill(1.0)
    second.grad()
    np.testing.assert_array_equal(x.grad.to_numpy(), 5.0)


def test_a_kernel_that_writes_nothing_with_a_gradient() -> None:
    x = sg.field(sg.f32, shape=N, needs_grad=True)
    out = sg.field(sg.f32, shape=N)

    @sg.kernel
    def copy():
        for i in x:
            out[i] = x[i] * 2.0  # WRITE

    copy()
    refused(copy.grad, test_a_kernel_that_writes_nothing_with_a_gradient, "WRITE", "out", "needs_grad=True")


# --- integers ---------------------------------------------------------------------------------------------------------------------------


def casts(t: Any) -> Program:
    """A cast to integers has the derivative 0; what flows around it counts."""
    x, y = xy(t)

    @sg.kernel
    def run():
        for i in x:
            k = int(x[i] * t(3.3))
            y[i] = x[i] * t(k) + t(sg.i64(x[i] * t(7.1)) if False else k) * x[i]

    return Program(run, [x, y])


def test_casts_to_integers_have_no_derivative() -> None:
    check(casts, sg.f32)


def test_a_chain_that_goes_through_integers_only_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    x, y = xy(sg.f32)

    @sg.kernel
    def run():
        for i in x:
            y[i] = sg.f32(int(x[i] * 3.0))  # CAST

    x.fill(0.5)
    run()
    y.grad.fill(1.0)
    with caplog.at_level(logging.WARNING, logger="spirograd"):
        run.grad()
    assert (x.grad.to_numpy() == 0).all()
    here = f"{line_of(test_a_chain_that_goes_through_integers_only_is_warned_about, 'CAST')}"
    assert any("integer" in r.getMessage() and here in r.getMessage() for r in caplog.records), caplog.text


# --- points without derivative -----------------------------------------------------------------------------------------------------------


def test_roots_at_zero_do_not_poison_what_does_not_need_them() -> None:
    x, y = xy(sg.f32)

    @sg.kernel
    def run():
        for i in x:
            v = sg.Vector([x[i], 0.0])
            y[i] = sg.sqrt(x[i]) * 0.0 + x[i] * 2.0
            if i > 2:
                y[i] += v.norm() * 0.0

    x.fill(0.0)
    run()
    y.grad.fill(1.0)
    run.grad()
    np.testing.assert_array_equal(x.grad.to_numpy(), 2.0)


def test_abs_at_zero_has_the_derivative_zero() -> None:
    x, y = xy(sg.f32)

    @sg.kernel
    def run():
        for i in x:
            y[i] = sg.abs(x[i]) * 3.0

    x.fill(0.0)
    run()
    y.grad.fill(1.0)
    run.grad()
    np.testing.assert_array_equal(x.grad.to_numpy(), 0.0)


def test_branches_not_taken_do_not_poison() -> None:
    x, y = xy(sg.f32)

    @sg.kernel
    def run():
        for i in x:
            v = 1.0
            if x[i] > 0:
                v = sg.log(x[i]) / x[i]
            y[i] = v + x[i]

    x.from_numpy(np.array([0, 1, 0, 1, 0, 1, 0], np.float32))
    run()
    y.grad.fill(1.0)
    run.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), [1, 2, 1, 2, 1, 2, 1], rtol=1e-6)
