"""Tapes differentiate direct solves and conjugate gradients by their adjoints: against central differences of NumPy's solution."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest
from backend.central_differences import differences

import spirograd as sg
from spirograd.linalg import LinearOperator, MatrixFreeBICGSTAB, MatrixFreeCG, SparseCG, SparseMatrix, SparseMatrixBuilder, SparseSolver

pytestmark = pytest.mark.vulkan_or_wgpu

Array = np.ndarray[Any, Any]
N = 11
WEIGHTS = np.arange(1, N + 1)


@pytest.fixture(autouse=True)
def _session(arch: str) -> None:
    sg.init(arch=arch)


def weighted(x: Array) -> float:
    return float(np.sum(WEIGHTS * x**2))


def chain(c: float = 3.0) -> Array:
    return c * np.eye(N) - np.eye(N, k=1) - np.eye(N, k=-1)


def close(found: Any, wanted: Array, rtol: float = 1e-4) -> None:
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * (1 + np.abs(wanted).max()))


@sg.kernel
def double(x: sg.Template, y: sg.Template):  # type: ignore[no-untyped-def]
    for i in range(N):
        y[i] = 2.0 * x[i]


@sg.kernel
def weigh(y: sg.Template, loss: sg.Template):  # type: ignore[no-untyped-def]
    for i in range(N):
        loss[None] += (i + 1) * y[i] ** 2


def memory(make: Any) -> tuple[list[Any], Any, Array]:
    x, b, u = (make(sg.f32, N, needs_grad=True) for _ in range(3))
    data = np.random.default_rng(1).uniform(-1, 1, N)
    x.from_numpy(data.astype("f4"))
    return [x, b, u], sg.field(sg.f32, (), needs_grad=True), data


@pytest.mark.parametrize("make", [sg.field, sg.ndarray], ids=["field", "ndarray"])
def test_conjugate_gradients(arch: str, make: Any) -> None:
    """Also of what the operator reads, as it was then."""
    (x, b, u), loss, data = memory(make)
    c = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def product(v: sg.Template, out: sg.Template):  # type: ignore[no-untyped-def]
        for i in range(N):
            total = c[None] * v[i]
            if i > 0:
                total -= v[i - 1]
            if i < N - 1:
                total -= v[i + 1]
            out[i] = total

    operator = LinearOperator(product)
    for coefficient in (3.0, 2.5):
        c[None] = coefficient
        u.fill(0.5)
        with sg.ad.Tape(loss):
            double(x, b)
            assert MatrixFreeCG(operator, b, u, tol=1e-5)
            c[None] = 9.0
            weigh(u, loss)
            double(b, u)  # what u held is needed
        close(x.grad.to_numpy(), differences(lambda x, c=coefficient: weighted(np.linalg.solve(chain(c), 2 * x)), data))
        wanted = differences(lambda c: weighted(np.linalg.solve(chain(c[0]), 2 * data)), np.array([coefficient]))
        close(c.grad[None], wanted[0])


def test_two_solutions_one_after_the_other(arch: str) -> None:
    (x, b, u), loss, data = memory(sg.field)

    @sg.kernel
    def product(v: sg.Template, out: sg.Template):  # type: ignore[no-untyped-def]
        for i in range(N):
            out[i] = (2.0 + i) * v[i]

    operator = LinearOperator(product)
    with sg.ad.Tape(loss):
        double(x, b)
        MatrixFreeCG(operator, b, u, tol=1e-5)
        double(u, b)
        MatrixFreeCG(operator, b, u, tol=1e-5)
        weigh(u, loss)
    close(x.grad.to_numpy(), 2 * WEIGHTS * data * (4 / (2.0 + np.arange(N)) ** 2) ** 2)


def matrix(a: Array) -> SparseMatrix:
    return SparseMatrix(sm=needs.package("scipy").sparse.csr_array(a))


@pytest.mark.needs("scipy")
@pytest.mark.parametrize("kind", ["LLT", "LDLT", "LU"])
def test_direct_solves(arch: str, kind: str) -> None:
    a = chain() + (np.diag(np.arange(N - 1) / 9, k=1) if kind == "LU" else 0)
    solver = SparseSolver(solver_type=kind)
    solver.compute(matrix(a))
    wanted = differences(lambda x: weighted(np.linalg.solve(a, 2 * x)), memory(sg.field)[2])
    for make in (sg.field, sg.ndarray):
        (x, b, u), loss, data = memory(make)
        with sg.ad.Tape(loss):
            double(x, b)
            solver.solve(b, u)
            weigh(u, loss)
        close(x.grad.to_numpy(), wanted)
        close(u.to_numpy(), np.linalg.solve(a, 2 * data))
    with sg.ad.Tape(loss):
        double(x, b)
        solution = solver.solve(b)
        solver.compute(matrix(np.eye(N)))  # the tape has its own factors
        weigh(solution, loss)
    close(x.grad.to_numpy(), wanted)


@pytest.mark.needs("scipy")
def test_products(arch: str) -> None:
    (x, b, u), loss, data = memory(sg.ndarray)
    a = chain() + np.diag(np.arange(N - 1) / 9, k=1)
    A = matrix(a)
    with sg.ad.Tape(loss):
        double(x, b)
        A.spmv(b, u)
        weigh(A @ u, loss)
    close(x.grad.to_numpy(), differences(lambda x: weighted(a @ a @ (2 * x)), data))
    with sg.ad.Tape(loss):
        double(x, b)
        MatrixFreeCG(LinearOperator(matrix(chain()).spmv), b, u, tol=1e-5)
        weigh(u, loss)
    close(x.grad.to_numpy(), differences(lambda x: weighted(np.linalg.solve(chain(), 2 * x)), data))


@pytest.mark.needs("scipy")
@pytest.mark.archs("cpu")
def test_refusals(arch: str) -> None:
    (x, b, _), loss, _ = memory(sg.field)
    plain = sg.field(sg.f32, N)
    A = matrix(chain())
    active = SparseMatrix(sm=needs.package("scipy").sparse.csr_array(chain()), needs_grad=True)
    operator, solver = LinearOperator(A.spmv), SparseSolver()
    solver.compute(A)
    other = SparseSolver()
    other.compute(active)
    builder = SparseMatrixBuilder(N, N, N)

    def replace_entry() -> None:
        active[0, 0] = 1.0

    @sg.kernel
    def fill(A: sg.types.sparse_matrix_builder):  # type: ignore[no-untyped-def, valid-type]
        for i in range(N):
            A[i, i] += x[i]

    for message, run in (
        ("gradients end at `x` of `MatrixFreeCG`", lambda: MatrixFreeCG(operator, b, plain)),
        ("`solve` of a field gives numbers", lambda: solver.solve(b)),
        ("gradients end at `out` of `solve`", lambda: solver.solve(b, plain)),
        ("`SparseCG` takes `b` as numbers", lambda: SparseCG(A, b)),
        ("gradients end at .*: `build` reads it, and kernel `fill`", lambda: (fill(builder), builder.build())),
        (r"`out` is a field or ndarray of 11 elements", lambda: solver.solve(b, sg.field(sg.f32, N + 1))),
        ("`solve` of a NumPy array gives numbers", lambda: other.solve(np.ones(N))),
        ("`A @ x` is a NumPy array", lambda: active @ np.ones(N)),
        ("`A @ x` is a NumPy array", lambda: A @ b),
        (r"`A\[i, j\] = value` replaces an entry", replace_entry),
        (r"`SparseMatrix\(sm=A\)` copies the numbers", lambda: SparseMatrix(sm=active)),
        ("`SparseCG` takes the matrix as numbers", lambda: SparseCG(active, np.ones(N))),
        ("`build_from_ndarray` takes numbers", lambda: A.build_from_ndarray(sg.ndarray(sg.f32, 3, needs_grad=True))),
    ):
        with pytest.raises(sg.SpirogradError, match=message), sg.ad.Tape(loss):
            run()


@pytest.mark.parametrize("make", [sg.field, sg.ndarray], ids=["field", "ndarray"])
def test_bicgstab(arch: str, make: Any) -> None:
    """The transposed matrix is the derivative of the product, whatever the kernel reads at other indices."""
    (x, b, u), loss, data = memory(make)
    c = make(sg.f32, N, needs_grad=True)

    def full(c: Array) -> Array:
        return np.diag(3 + c) - 0.5 * np.eye(N, k=1) + np.diag(c[1:], k=-1)

    @sg.kernel
    def product(v: sg.Template, out: sg.Template):  # type: ignore[no-untyped-def]
        for i in range(N):
            total = (3 + c[i]) * v[i]
            if i < N - 1:
                total -= 0.5 * v[i + 1]
            if i > 0:
                total += c[i] * v[i - 1]
            out[i] = total

    operator = LinearOperator(product)
    for seed in (1, 2):
        numbers = np.random.default_rng(seed).uniform(0, 1, N)
        c.from_numpy(numbers.astype("f4"))
        u.fill(0.5)
        with sg.ad.Tape(loss):
            double(x, b)
            assert MatrixFreeBICGSTAB(operator, b, u, tol=1e-5)
            c.fill(9.0)
            weigh(u, loss)
        close(x.grad.to_numpy(), differences(lambda x, c=numbers: weighted(np.linalg.solve(full(c), 2 * x)), data))
        close(c.grad.to_numpy(), differences(lambda c: weighted(np.linalg.solve(full(c), 2 * data)), numbers))


@pytest.mark.parametrize("solver", [MatrixFreeCG, MatrixFreeBICGSTAB])
def test_an_adjoint_that_does_not_converge(arch: str, solver: Any) -> None:
    (_, b, u), loss, _ = memory(sg.field)

    @sg.kernel
    def product(v: sg.Template, out: sg.Template):  # type: ignore[no-untyped-def]
        for i in range(N):
            out[i] = (1.0 + i) * v[i]

    b.fill(0)
    b[3] = 1.0  # an eigenvector: one iteration for the solution, many for its gradient
    with pytest.raises(sg.SpirogradRuntimeError, match="above the tolerance after 2 iterations"), sg.ad.Tape(loss):
        solver(LinearOperator(product), b, u, tol=1e-5, maxiter=2)

        @sg.kernel
        def total():  # type: ignore[no-untyped-def]
            for i in range(N):
                loss[None] += u[i]

        total()
