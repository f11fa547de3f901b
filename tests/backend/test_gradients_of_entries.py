"""Tapes differentiate with respect to the entries of sparse matrices that kernels assemble: against central differences of NumPy."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest
from backend.central_differences import differences

import spirograd as sg
from spirograd.linalg import LinearOperator, MatrixFreeBICGSTAB, MatrixFreeCG, SparseMatrix, SparseMatrixBuilder, SparseSolver

scipy = needs.package("scipy")
Array = np.ndarray[Any, Any]
N = 9
WEIGHTS = np.arange(1, N + 1)
RIGHT = np.linspace(-1, 2, N)


@pytest.fixture(autouse=True)
def _session(arch: str) -> None:
    sg.init(arch=arch)


def weighted(x: Array) -> float:
    return float(np.sum(WEIGHTS * x**2))


def close(found: Any, wanted: Array, rtol: float = 2e-4) -> None:
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * (1 + np.abs(wanted).max()))


@sg.kernel
def weigh(y: sg.Template, loss: sg.Template):  # type: ignore[no-untyped-def]
    for i in range(N):
        loss[None] += (i + 1) * y[i] ** 2


class Springs:
    """A chain of springs: its matrix has several triplets an entry, and entries that cancel each other where `cut` is 1."""

    def __init__(self, dtype: Any = sg.f32, make: Any = sg.field) -> None:
        self.k = make(dtype, N, needs_grad=True)
        self.loss = sg.field(dtype, (), needs_grad=True)
        self.u, self.b = make(dtype, N, needs_grad=True), make(dtype, N, needs_grad=True)
        self.data = np.random.default_rng(3).uniform(1, 2, N)
        self.k.from_numpy(self.data.astype(self.k.dtype.np))
        self.b.from_numpy(RIGHT.astype(self.k.dtype.np))
        self.builder = SparseMatrixBuilder(N, N, 6 * N, dtype=dtype, needs_grad=True)

        @sg.kernel
        def fill(A: sg.types.sparse_matrix_builder, k: sg.Template, skew: dtype):  # type: ignore[no-untyped-def, valid-type]
            for i in range(N):
                A[i, i] += k[i] * k[i]
                if i > 0:
                    A[i - 1, i - 1] += k[i]
                    A[i, i] += k[i]
                    A[i - 1, i] -= k[i] * (1 - skew)
                    A[i, i - 1] -= k[i] * (1 + skew)

        self.fill = fill

    def assembled(self, skew: float = 0.0) -> SparseMatrix:
        self.fill(self.builder, self.k, skew)
        return self.builder.build()


def dense(k: Array, skew: float = 0.0) -> Array:
    a = np.diag(k * k)
    for i in range(1, N):
        a[i - 1, i - 1] += k[i]
        a[i, i] += k[i]
        a[i - 1, i] -= k[i] * (1 - skew)
        a[i, i - 1] -= k[i] * (1 + skew)
    return a


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("kind", ["LLT", "LDLT", "LU"])
@pytest.mark.parametrize("make", [sg.field, sg.ndarray], ids=["field", "ndarray"])
def test_direct_solves(arch: str, kind: str, make: Any) -> None:
    s, solver = Springs(make=make), SparseSolver(solver_type=kind)
    skew = 0.5 if kind == "LU" else 0.0
    for changed in (0.0, 0.25):  # the builder, its memory and the kernels are used again
        data = s.data + changed
        s.k.from_numpy(data.astype("f4"))
        with sg.ad.Tape(s.loss):
            solver.compute(s.assembled(skew))
            solver.solve(s.b, s.u)
            s.k.fill(7.0)
            weigh(s.u, s.loss)
        close(s.k.grad.to_numpy(), differences(lambda k: weighted(np.linalg.solve(dense(k, skew), RIGHT)), data))
        close(s.b.grad.to_numpy(), differences(lambda b, k=data: weighted(np.linalg.solve(dense(k, skew), b)), RIGHT))
    s.k.from_numpy(s.data.astype("f4"))
    with sg.ad.Tape(s.loss):  # a right-hand side of numbers
        solver.compute(s.assembled(skew))
        solver.solve(RIGHT.astype("f4"), s.u)
        weigh(s.u, s.loss)
    close(s.k.grad.to_numpy(), differences(lambda k: weighted(np.linalg.solve(dense(k, skew), RIGHT)), s.data))


@pytest.mark.vulkan_or_wgpu
def test_products_and_solvers_without_factors(arch: str) -> None:
    s = Springs()
    x = np.linspace(1, 2, N).astype("f4")
    v = sg.ndarray(sg.f32, N)
    v.from_numpy(x)
    with sg.ad.Tape(s.loss):
        weigh(s.assembled(0.5) @ v, s.loss)
    close(s.k.grad.to_numpy(), differences(lambda k: weighted(dense(k, 0.5) @ x), s.data))
    for solve, skew in ((MatrixFreeCG, 0.0), (MatrixFreeBICGSTAB, 0.5)):
        s.u.fill(0)
        with sg.ad.Tape(s.loss):
            assert solve(LinearOperator(s.assembled(skew).spmv), s.b, s.u, tol=1e-5)
            weigh(s.u, s.loss)
        close(s.k.grad.to_numpy(), differences(lambda k, t=skew: weighted(np.linalg.solve(dense(k, t), RIGHT)), s.data))
        close(s.b.grad.to_numpy(), differences(lambda b, t=skew: weighted(np.linalg.solve(dense(s.data, t), b)), RIGHT))


def test_two_matrices_of_one_builder_and_checkpoints(arch: str) -> None:
    s, solver, w = Springs(), SparseSolver(solver_type="LU"), sg.field(sg.f32, N, needs_grad=True)

    def run(**options: Any) -> None:
        with sg.ad.Tape(s.loss, **options):
            A = s.assembled(0.5)
            solver.compute(s.assembled(0.25))
            solver.solve(s.b, w)
            A.spmv(w, s.u)
            weigh(s.u, s.loss)

    wanted = differences(lambda k: weighted(dense(k, 0.5) @ np.linalg.solve(dense(k, 0.25), RIGHT)), s.data)
    run()
    close(s.k.grad.to_numpy(), wanted)
    run(checkpoints=2)
    close(s.k.grad.to_numpy(), wanted)


@pytest.mark.archs("cpu", "vulkan")
def test_arithmetic_of_matrices(arch: str) -> None:
    """Also of entries that are zero by chance, and of f64."""
    s = Springs(sg.f64 if arch == "cpu" else sg.f32)
    constant = np.diag(np.arange(1.0, N + 1)) + np.diag(np.ones(N - 2), k=2)
    C = SparseMatrix(sm=scipy.sparse.csr_array(constant), dtype=s.k.dtype)
    v = sg.ndarray(s.k.dtype, N)
    v.from_numpy(RIGHT.astype(v.dtype.np))

    def replaced(A: SparseMatrix) -> SparseMatrix:
        A += C
        A -= 2.0 * C
        return A

    for made, of in (
        (lambda A: A + C, lambda a: a + constant),
        (lambda A: C - A, lambda a: constant - a),
        (lambda A: A - A.transpose(), lambda a: a - a.T),
        (lambda A: -A / 2.0 + 3 * A, lambda a: 2.5 * a),
        (lambda A: A * A.transpose() * C, lambda a: a * a.T * constant),
        (lambda A: A @ C @ A, lambda a: a @ constant @ a),
        (replaced, lambda a: a - constant),
    ):
        for skew in (0.5, 1.0):
            with sg.ad.Tape(s.loss):
                weigh(made(s.assembled(skew)) @ v, s.loss)
            wanted = differences(lambda k, t=skew, of=of: weighted(of(dense(k, t)) @ RIGHT), s.data)
            close(s.k.grad.to_numpy(), wanted, 1e-6 if arch == "cpu" else 1e-3)


@pytest.mark.archs("cpu")
def test_gradients_of_a_matrix(arch: str) -> None:
    """A matrix of numbers has gradients of its own; they hold what is stored, and stay until a tape begins."""
    s = Springs()
    A = SparseMatrix(sm=scipy.sparse.csr_array(dense(s.data, 0.5)), needs_grad=True)
    solver = SparseSolver(solver_type="LU")
    for _ in range(2):
        with sg.ad.Tape(s.loss):
            solver.compute(A)
            solver.solve(s.b, s.u)
            weigh(s.u, s.loss)
        x = np.linalg.solve(dense(s.data, 0.5), RIGHT)
        wanted = -np.outer(np.linalg.solve(dense(s.data, 0.5).T, 2 * WEIGHTS * x), x) * (dense(s.data, 0.5) != 0)
        close(A.grad.to_numpy(), wanted)
    A[3, 5] = 0.25
    assert A.grad.to_numpy()[3, 5] == 0 and A.has_grad()
    with sg.ad.Tape(s.loss):
        A.spmv(s.b, s.u)
        weigh(s.u, s.loss)
    changed = dense(s.data, 0.5)
    changed[3, 5] = 0.25
    close(A.grad.to_numpy(), np.outer(2 * WEIGHTS * (changed @ RIGHT), RIGHT) * (changed != 0))
    assert SparseMatrix(3, 3).grad is None
    empty = SparseMatrixBuilder(N, N, 1, needs_grad=True)
    with sg.ad.Tape(s.loss):
        weigh(empty.build() @ s.builder.build() @ sg.ndarray(sg.f32, N), s.loss)
    assert s.loss[None] == 0
