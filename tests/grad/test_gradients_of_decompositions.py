"""Gradients of decompositions and solutions of small matrices against central differences of NumPy's: also of diagonal matrices, whose
rotations are constants, and where singular values meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

Array = np.ndarray[Any, Any]
STEP = 1e-5


def regular(n: int) -> list[Array]:
    """Diagonal matrices, in both orders, and others of which no two eigenvalues or singular values are near."""
    rng = np.random.default_rng(n)
    diagonal = np.arange(1.0, n + 1)
    return [np.diag(diagonal), np.diag(diagonal[::-1] - 1.4), *[np.diag(diagonal) + rng.uniform(-0.3, 0.3, (n, n)) for _ in range(2)]]


def repeated(n: int) -> list[Array]:
    """Matrices with singular values that are equal, and of positive determinant."""
    q = np.linalg.qr(np.random.default_rng(5).normal(size=(n, n)))[0]
    q *= np.sign(np.linalg.det(q))
    spread = np.diag([2.0] * (n - 1) + [1.0])
    return [np.eye(n), 2 * np.eye(n), 1.5 * q, *([spread, q @ spread @ q.T] if n == 3 else [])]


def symmetric(a: Array) -> Array:
    return (a + a.T) / 2


# --- the same functions of the results, here and there -------------------------------------------------------------------------


@sg.func
def through_svd(a):  # type: ignore[no-untyped-def]
    u, s, v = sg.svd(a)
    return u @ (s @ s @ s + s) @ v.transpose()


def numpy_svd(a: Array) -> Array:
    u, s, v = np.linalg.svd(a)
    return u @ np.diag(s**3 + s) @ v  # type: ignore[no-any-return]


@sg.func
def through_polar(a):  # type: ignore[no-untyped-def]
    r, p = sg.polar_decompose(a)
    return r + p @ p @ p


def numpy_rotation(a: Array) -> Array:
    u, _, v = np.linalg.svd(a)
    if len(a) == 3 and np.linalg.det(u @ v) < 0:
        u = u @ np.diag([1.0, 1.0, -1.0])
    return u @ v  # type: ignore[no-any-return]


def numpy_polar(a: Array) -> Array:
    r = numpy_rotation(a)
    return r + np.linalg.matrix_power(r.T @ a, 3)


@sg.func
def through_sym_eig(a):  # type: ignore[no-untyped-def]
    values, vectors = sg.sym_eig(a)
    result = 0.0 * a
    for k in sg.static(range(a.n)):
        v = sg.Vector([vectors[i, k] for i in range(a.n)])
        result += v.outer_product(v) * (values[k] ** 2 + k)
    return result


def numpy_sym_eig(a: Array) -> Array:
    values, vectors = np.linalg.eigh(symmetric(a))
    return vectors @ np.diag(values**2 + np.arange(len(a))) @ vectors.T  # type: ignore[no-any-return]


@sg.func
def through_make_spd(a):  # type: ignore[no-untyped-def]
    return sg.make_spd(a - 1.8 * sg.Matrix.identity(float, a.n))


def numpy_make_spd(a: Array) -> Array:
    values, vectors = np.linalg.eigh(symmetric(a) - 1.8 * np.eye(len(a)))
    return vectors @ np.diag(np.maximum(values, 0)) @ vectors.T  # type: ignore[no-any-return]


@sg.func
def through_solve(a):  # type: ignore[no-untyped-def]
    b = sg.Vector([a[0, i] + 1.0 for i in range(a.n)])
    return b.outer_product(sg.solve(a, b))


def numpy_solve(a: Array) -> Array:
    return np.outer(a[0] + 1.0, np.linalg.solve(a, a[0] + 1.0))


@sg.func
def through_inverse(a):  # type: ignore[no-untyped-def]
    return a.inverse() * (1.0 + 0.01 * a.determinant())


def numpy_inverse(a: Array) -> Array:
    return np.linalg.inv(a) * (1.0 + 0.01 * np.linalg.det(a))


@sg.func
def through_eig(a):  # type: ignore[no-untyped-def]
    values, v = sg.eig(a)
    products = [v[0, k] * v[2, k] + v[1, k] * v[3, k] for k in range(2)]
    return sg.Matrix([[values[0, 0] ** 2, values[1, 0]], [products[0] + values[0, 1], products[1]]])


def numpy_eig(a: Array) -> Array:
    values, vectors = np.linalg.eig(a)
    order = np.argsort(-values.real - values.imag)
    values, vectors = values[order], vectors[:, order]
    products = (vectors[0] * vectors[1].conj()).real
    return np.array([[values[0].real ** 2, values[1].real], [products[0] + values[0].imag, products[1]]])


CASES = [
    *[(through_svd, numpy_svd, regular(n)) for n in (2, 3)],
    *[(through_polar, numpy_polar, [*[m for m in regular(n) if np.linalg.det(m) > 0], *repeated(n)]) for n in (2, 3)],
    *[(through_sym_eig, numpy_sym_eig, regular(n)) for n in (1, 2, 3, 4)],
    *[(through_make_spd, numpy_make_spd, [*regular(n), np.eye(n), 3 * np.eye(n)]) for n in (2, 3)],
    *[(through_solve, numpy_solve, [m[::-1] + np.eye(n)[::-1] for m in regular(n)]) for n in (1, 3, 4)],
    *[(through_inverse, numpy_inverse, [m[::-1] + np.eye(n)[::-1] for m in regular(n)]) for n in (3, 5)],
    (through_eig, numpy_eig, [np.diag([1.0, 3.0]), np.array([[1.0, 2.0], [-3.0, 0.5]]), *regular(2)[2:]]),
]
LARGE = [
    (through_sym_eig, numpy_sym_eig, regular(6)),
    (through_solve, numpy_solve, [m[::-1] + np.eye(6)[::-1] for m in regular(6)]),
    (through_inverse, numpy_inverse, [m[::-1] + np.eye(8)[::-1] for m in regular(8)]),
]


def on(cases: list[Any], by_day: Callable[[Any], bool]) -> pytest.MarkDecorator:
    params = [
        pytest.param(*case, id=f"{case[0].function.__name__[8:]}-{len(case[2][0])}", marks=() if by_day(case) else pytest.mark.long)
        for case in cases
    ]
    return pytest.mark.parametrize("through,reference,matrices", params)


def weights(n: int) -> Array:
    return np.random.default_rng(3).uniform(-1, 1, (n, n)).astype("f4").astype("f8")


def weighted(reference: Callable[[Array], Array]) -> Callable[[Array], float]:
    return lambda a: float(np.sum(reference(a) * weights(len(a))))


def differences(f: Callable[[Array], float], a: Array) -> Array:
    units = np.eye(a.size).reshape(-1, *a.shape) * STEP
    return np.array([(f(a + h) - f(a - h)) / (2 * STEP) for h in units]).reshape(a.shape)


def program(through: Any, n: int, count: int, t: Any) -> tuple[Any, Any, Any]:
    """A kernel that adds the weighted results of all matrices, the matrices, and the sum."""
    a, loss = sg.Matrix.field(n, n, t, count, needs_grad=True), sg.field(t, (), needs_grad=True)
    w = sg.Matrix.field(n, n, t, ())
    w.from_numpy(weights(n).astype(t.np))

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        loss[None] = 0.0
        for i in a:
            loss[None] += (through(a[i]) * w[None]).sum()

    return run, a, loss


@on([*CASES, *LARGE], lambda case: len(case[2][0]) < 6)
def test_gradients(arch: str, through: Any, reference: Any, matrices: list[Array]) -> None:
    t = sg.f32 if arch == "wgpu" else sg.f64
    sg.init(arch=arch, default_fp=t)
    n = len(matrices[0])
    run, a, loss = program(through, n, len(matrices), t)
    a.from_numpy(np.stack(matrices).astype(t.np))
    with sg.ad.Tape(loss):
        run()
    wanted = np.array([differences(weighted(reference), m) for m in matrices])
    scale = np.abs(wanted).max(axis=(1, 2), keepdims=True) + 1
    np.testing.assert_allclose(a.grad.to_numpy() / scale, wanted / scale, rtol=0, atol=1e-8 if t is sg.f64 else 2e-5)


@pytest.mark.archs("cpu")
@on(CASES, lambda case: len(case[2][0]) == 2 or case[0] is through_polar)
def test_second_derivatives(arch: str, through: Any, reference: Any, matrices: list[Array]) -> None:
    sg.init(arch=arch, default_fp=sg.f64)
    n = len(matrices[0])
    run, a, loss = program(through, n, len(matrices), sg.f64)
    a.from_numpy(np.stack(matrices))
    rng = np.random.default_rng(8)
    directions = rng.uniform(-1, 1, (len(matrices), n, n))
    found = sg.ad.hvp(run, loss, a, directions)
    f, h = weighted(reference), 1e-3
    for m, d, product in zip(matrices, directions, found):
        if through is through_make_spd and not np.ptp(np.diag(m)):
            continue  # of equal eigenvalues it is NaN
        along = [differences_of(f, m + k * h * d) for k in (1, -1, 2, -2)]
        wanted = (8 * (along[0] - along[1]) - (along[2] - along[3])) / (12 * h)
        np.testing.assert_allclose(product, wanted, rtol=0, atol=2e-5 * (1 + np.abs(wanted).max()))


def differences_of(f: Callable[[Array], float], a: Array) -> Array:
    """As `differences`, of the fourth order."""
    h = 1e-3
    units = np.eye(a.size).reshape(-1, *a.shape) * h
    return np.array([(8 * (f(a + u) - f(a - u)) - f(a + 2 * u) + f(a - 2 * u)) / (12 * h) for u in units]).reshape(a.shape)


def test_forward_mode(arch: str) -> None:
    sg.init(arch=arch, default_fp=sg.f64)
    matrices = [np.eye(3), 2 * np.eye(3)[::-1] @ np.diag([1, 1, -1.0]), regular(3)[2]]
    a = sg.Matrix.field(3, 3, sg.f64, 3, needs_dual=True)
    r = sg.Matrix.field(3, 3, sg.f64, 3, needs_dual=True)
    direction = np.random.default_rng(2).uniform(-1, 1, (3, 3, 3))
    a.from_numpy(np.stack(matrices))

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        for i in a:
            r[i], _ = sg.polar_decompose(a[i])

    with sg.ad.FwdMode(loss=r, param=a, seed=direction):
        run()
    wanted = [(numpy_rotation(m + STEP * d) - numpy_rotation(m - STEP * d)) / (2 * STEP) for m, d in zip(matrices, direction)]
    np.testing.assert_allclose(r.dual.to_numpy(), wanted, atol=1e-8)


def corotated(a: Array) -> float:
    return float(np.sum((a - numpy_rotation(a)) ** 2))


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_scales_and_what_has_no_derivative(arch: str, scale: float) -> None:
    """Of the identity: energies of rotations have a gradient, and so do sums over singular values; singular vectors have none."""
    t = sg.f32
    sg.init(arch=arch)
    a, r = (sg.Matrix.field(3, 3, t, (), needs_grad=True) for _ in range(2))
    total, vector, rate = (sg.field(t, (), needs_grad=True) for _ in range(3))
    a.from_numpy(np.float32(scale) * np.eye(3, dtype="f4"))

    @sg.kernel
    def rotations():  # type: ignore[no-untyped-def]
        r[None], _ = sg.polar_decompose(a[None])
        rate[None] = r[None][0, 1] * sg.f32(scale)

    @sg.kernel
    def sums():  # type: ignore[no-untyped-def]
        _, s, _ = sg.svd(a[None])
        values, _ = sg.sym_eig(a[None])
        total[None] = s.trace() + values.sum()

    @sg.kernel
    def vectors():  # type: ignore[no-untyped-def]
        u, _, _ = sg.svd(a[None])
        vector[None] = u[0, 1]

    for kernel, loss, wanted in (
        (rotations, rate, [[0, 0.5, 0], [-0.5, 0, 0], [0, 0, 0]]),
        (sums, total, 2 * np.eye(3)),
        (vectors, vector, np.full((3, 3), np.nan)),
    ):
        with sg.ad.Tape(loss):
            kernel()
        found = a.grad.to_numpy()
        if loss is vector:
            assert np.isnan(found).any()
        else:
            np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_inverses_of_every_scale(arch: str, n: int) -> None:
    """The adjoint of an inverse X is -X^T G X^T."""
    sg.init(arch=arch)
    base = np.random.default_rng(n).uniform(-1, 1, (n, n)) + 2 * np.eye(n)
    scales = np.array([1e-15, 1.0, 1e15])
    matrices = (scales[:, None, None] * base).astype("f4")
    a, loss = sg.Matrix.field(n, n, sg.f32, len(scales), needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    unit, w = sg.field(sg.f32, len(scales)), sg.Matrix.field(n, n, sg.f32, ())
    a.from_numpy(matrices)
    unit.from_numpy(scales.astype("f4"))
    w.from_numpy(weights(n).astype("f4"))

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        for i in a:
            loss[None] += (a[i].inverse() * w[None]).sum() * unit[i]

    with sg.ad.Tape(loss):
        run()
    for found, matrix, scale in zip(a.grad.to_numpy(), matrices.astype("f8"), scales):
        x = np.linalg.inv(matrix)
        wanted = -x.T @ weights(n) @ x.T * scale
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_energy_of_elastic_bodies(arch: str) -> None:
    """The squared distance from the nearest rotation, at rest and deformed."""
    sg.init(arch=arch)
    matrices = [np.eye(3), np.diag([1.5, 1.0, 0.5]), *repeated(3), np.eye(3) + 0.3 * regular(3)[2]]
    a, energy = sg.Matrix.field(3, 3, sg.f32, len(matrices), needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    a.from_numpy(np.stack(matrices).astype("f4"))

    @sg.kernel
    def run():  # type: ignore[no-untyped-def]
        for i in a:
            r, _ = sg.polar_decompose(a[i])
            energy[None] += ((a[i] - r) ** 2).sum()

    with sg.ad.Tape(energy):
        run()
    wanted = [differences(corotated, m) for m in matrices]
    np.testing.assert_allclose(a.grad.to_numpy(), wanted, atol=2e-5)
