"""Conjugate gradients and BiCGSTAB for operators that are kernels, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg
from spirograd.linalg import LinearOperator, MatrixFreeBICGSTAB, MatrixFreeCG

pytestmark = pytest.mark.vulkan_or_wgpu

N = 6


@sg.kernel
def laplace(v: sg.template(), out: sg.template()):  # type: ignore[no-untyped-def, valid-type]
    for i, j in v:
        total = 5.0 * v[i, j]
        if i > 0:
            total -= v[i - 1, j]
        if i < N - 1:
            total -= v[i + 1, j]
        if j > 0:
            total -= v[i, j - 1]
        if j < N - 1:
            total -= v[i, j + 1]
        out[i, j] = total


@sg.kernel
def shifted(v: sg.template(), out: sg.template()):  # type: ignore[no-untyped-def, valid-type]
    for i, j in v:
        out[i, j] = 3.0 * v[i, j]
        if j > 0:
            out[i, j] -= 2.0 * v[i, j - 1]


def dense(operator) -> np.ndarray:  # type: ignore[no-untyped-def]
    """The matrix of a kernel, column by column, by what it does."""
    step = np.eye(N, k=1) + np.eye(N, k=-1)
    if operator is laplace:
        return np.kron(5 * np.eye(N), np.eye(N)) - np.kron(step, np.eye(N)) - np.kron(np.eye(N), step)
    return np.kron(np.eye(N), 3 * np.eye(N) - 2 * np.eye(N, k=-1))


@pytest.mark.parametrize(
    ("solve", "operator", "kind"),
    [(MatrixFreeCG, laplace, sg.field), (MatrixFreeCG, laplace, sg.ndarray), (MatrixFreeBICGSTAB, shifted, sg.ndarray)],
)
def test_solutions(session, solve, operator, kind) -> None:  # type: ignore[no-untyped-def]
    A = LinearOperator(operator)
    b, x = kind(sg.f32, (N, N)), kind(sg.f32, (N, N))
    for seed in (0, 1):  # the second begins at the solution of the first
        numbers = np.random.default_rng(seed).normal(size=(N, N)).astype("f4")
        b.from_numpy(numbers)
        assert solve(A, b, x, tol=1e-4, maxiter=100)
        wanted = np.linalg.solve(dense(operator), numbers.reshape(-1)).reshape(N, N)
        np.testing.assert_allclose(x.to_numpy(), wanted, atol=1e-4)
    assert solve(A, b, x, tol=1e-3)  # a solution stays as it is
    np.testing.assert_allclose(x.to_numpy(), wanted, atol=1e-4)
    x.fill(0)
    assert not solve(A, b, x, tol=1e-4, maxiter=1)
    b.fill(0)
    x.fill(0)
    assert solve(A, b, x)
    assert not x.to_numpy().any()


def test_how_often_python_looks_changes_nothing(session) -> None:  # type: ignore[no-untyped-def]
    """Iterations after the last one leave the solution alone: one that looks at each and one that looks now and then agree to the bit."""
    A = LinearOperator(laplace)
    b, quiet, loud = (sg.ndarray(sg.f32, (N, N)) for _ in range(3))
    b.from_numpy(np.random.default_rng(5).normal(size=(N, N)).astype("f4"))
    assert MatrixFreeCG(A, b, quiet, tol=1e-2)
    assert MatrixFreeCG(A, b, loud, tol=1e-2, quiet=False)
    if sg.cfg.arch in ("cpu", "interpreter"):
        assert np.array_equal(quiet.to_numpy(), loud.to_numpy())
    np.testing.assert_allclose(quiet.to_numpy(), loud.to_numpy(), atol=1e-6)  # sums of GPUs are in no order


def test_messages(capsys) -> None:  # type: ignore[no-untyped-def]
    sg.init(arch=sg.cpu)

    @sg.kernel
    def zero(v: sg.template(), out: sg.template()):  # type: ignore[no-untyped-def, valid-type]
        for i in v:
            out[i] = 0.0 * v[i]

    b, x = sg.Vector.field(2, sg.f32, 3, offset=4), sg.Vector.field(2, sg.f32, 3, offset=4)
    b.fill(1)
    assert not MatrixFreeCG(LinearOperator(zero), b, x, quiet=False)
    assert not x.to_numpy().any()
    assert capsys.readouterr().out.splitlines() == [
        "MatrixFreeCG: iteration 0, residual 2.449490e+00",
        "MatrixFreeCG: iteration 1, residual 2.449490e+00",
        "MatrixFreeCG broke down after 1 iterations",
    ]
    assert not MatrixFreeBICGSTAB(LinearOperator(zero), b, x)
    sg.reset()


def test_refusals() -> None:
    sg.init(arch=sg.cpu)
    A, b = LinearOperator(laplace), sg.field(sg.f32, (N, N))
    for message, refused in (
        ("`x` has shape", lambda: MatrixFreeCG(A, b, sg.field(sg.f32, N))),
        ("elements of different types", lambda: MatrixFreeCG(A, b, sg.field(sg.f64, (N, N)))),
        ("f32 or f64, not", lambda: MatrixFreeCG(A, np.ones((N, N), "f4"), b)),
        ("f32 or f64, not", lambda: MatrixFreeBICGSTAB(A, sg.field(sg.i32, N), sg.field(sg.i32, N))),
        ("takes a LinearOperator", lambda: MatrixFreeCG(laplace, b, sg.field(sg.f32, (N, N)))),
        ("same memory", lambda: MatrixFreeCG(A, b, b)),
        ("vectors of one shape", lambda: A.matvec(b, sg.field(sg.f32, N))),
    ):
        with pytest.raises(sg.SpirogradError, match=message):
            refused()
    sg.reset()
