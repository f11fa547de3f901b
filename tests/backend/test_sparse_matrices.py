"""Sparse matrices that kernels assemble, their products and direct solvers, against NumPy."""

from __future__ import annotations

import re

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.linalg import SparseCG, SparseMatrix, SparseMatrixBuilder, SparseSolver

scipy = needs.package("scipy")
N = 37


@sg.kernel
def chain(A: sg.types.sparse_matrix_builder(), n: int, scale: sg.f32):  # type: ignore[no-untyped-def, valid-type]
    for i in range(n):
        A[i, i] += 2.0 * scale
        A[i, i] += scale
        if i > 0:
            A[i - 1, i] -= scale
            A[sg.cast(i, sg.i64), i - 1] -= scale


def made(n: int = N, scale: float = 1.0, **options) -> tuple[SparseMatrix, np.ndarray]:  # type: ignore[no-untyped-def]
    builder = SparseMatrixBuilder(n, n, 4 * n, **options)
    chain(builder, n, scale)
    return builder.build(), scale * (3 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1))


def vector(numbers: np.ndarray, kind=sg.ndarray, **options):  # type: ignore[no-untyped-def]
    x = kind(sg.f32, len(numbers), **options)
    x.from_numpy(numbers.astype("f4"))
    return x


def test_assembly_and_products(session) -> None:  # type: ignore[no-untyped-def]
    builder = SparseMatrixBuilder(N, N, 4 * N)
    x = np.random.default_rng(1).normal(size=N).astype("f4")
    for scale in (1.0, -2.0):  # a builder is empty after `build`
        chain(builder, N, scale)
        A, wanted = builder.build(), made(N, scale)[1]
        assert np.array_equal(A.to_numpy(), wanted)
        out = sg.field(sg.f32, N)
        A.spmv(vector(x, sg.field), out)
        for product in ((A @ vector(x)).to_numpy(), A @ x, A @ vector(x, sg.field), out.to_numpy()):
            np.testing.assert_allclose(product, wanted @ x, atol=1e-5)
    assert builder.num_triplets == 0
    A[3, 4] = 7.5  # memory of the device follows
    wanted[3, 4] = 7.5
    np.testing.assert_allclose((A @ vector(x)).to_numpy(), wanted @ x, atol=1e-5)


@pytest.mark.vulkan_or_wgpu
def test_solvers(session) -> None:  # type: ignore[no-untyped-def]
    A, wanted = made()
    b = np.random.default_rng(2).normal(size=N).astype("f4")
    x = np.linalg.solve(wanted, b)
    for kind in ("LLT", "LDLT", "LU"):
        solver = SparseSolver(solver_type=kind)
        solver.analyze_pattern(A)
        solver.factorize(A)
        assert solver.info()
        for found in (
            solver.solve(b),
            solver.solve(vector(b, sg.field)),
            solver.solve(vector(b)).to_numpy(),
            solver.solve(b[:, None])[:, 0],
        ):
            np.testing.assert_allclose(found, x, rtol=1e-5, atol=1e-6)
    found, converged = SparseCG(A, b, atol=1e-6).solve()
    assert converged
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-5)
    assert not SparseCG(A, b, max_iter=2, atol=1e-6).solve()[1]


def test_too_many_triplets_and_entries_outside(session) -> None:  # type: ignore[no-untyped-def]
    builder = SparseMatrixBuilder(4, 4, 5)
    chain(builder, 4, 1.0)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"14 triplets were added .* room for 5\n.*`max_num_triplets=14`"):
        builder.build()
    chain(builder, 2, 1.0)
    with pytest.raises(sg.SpirogradRuntimeError, match="6 triplets"):
        builder.print_triplets()
    builder = SparseMatrixBuilder(3, 2, 100)
    chain(builder, 3, 1.0)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"entry \[\d, 2\] of a matrix with 3 rows and 2 columns \(3 of 10 triplets"):
        builder.build()
    chain(builder, 1, 1.0)  # usable afterwards
    assert builder.build().to_numpy().sum() == 3


@pytest.fixture
def cpu():  # type: ignore[no-untyped-def]
    sg.init(arch=sg.cpu)
    yield
    sg.reset()


def test_arithmetic(cpu, tmp_path) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=(5, 5)) * (rng.random((5, 5)) < 0.5) for _ in range(2))
    for storage in ("col_major", "row_major"):
        A, B = (SparseMatrix(sm=scipy.sparse.coo_array(m), dtype=sg.f64, storage_format=storage) for m in (a, b))
        pairs = (
            (A + B, a + b), (A - B, a - b), (A * B, a * b), (A @ B, a @ b), (2 * A, 2 * a), (A * 0.5, a / 2), (A / 2, a / 2), (-A, -a),
            (A.transpose(), a.T), (SparseMatrix(sm=A, dtype=sg.f64), a),
        )  # fmt: skip
        for found, wanted in pairs:
            np.testing.assert_allclose(found.to_numpy(), wanted)
            assert (found.shape, found.dtype) == ((5, 5), sg.f64)
        A += B
        A -= B
        np.testing.assert_allclose(A.to_numpy(), a, atol=1e-15)
        np.testing.assert_allclose(A @ b, a @ b)
        assert A[1, 2] == pytest.approx(a[1, 2])
    A.mmwrite(str(tmp_path / "a.mtx"))
    np.testing.assert_allclose(scipy.io.mmread(str(tmp_path / "a.mtx")).toarray(), a)
    assert str(SparseMatrix(2, 3)) == "[0, 0, 0]\n[0, 0, 0]"
    triplets = sg.Vector.ndarray(3, sg.f32, 2)
    triplets.from_numpy(np.array([[0, 1, 5], [1, 0, -2]], "f4"))
    C = SparseMatrix(2, 2)
    C.build_from_ndarray(triplets)
    assert np.array_equal(C.to_numpy(), [[0, 5], [-2, 0]])
    for operation in (lambda: A + C, lambda: A @ C, lambda: A @ np.ones(4), lambda: A * C, lambda: SparseMatrix(0, 2)):
        with pytest.raises(sg.SpirogradValueError):
            operation()
    with pytest.raises(sg.SpirogradIndexError, match=r"\[5, 0\] is outside of a matrix with 5 rows"):
        A[5, 0]
    with pytest.raises(sg.SpirogradTypeError, match="field or ndarray of f64"):
        A @ sg.ndarray(sg.f32, 5)


@pytest.mark.parametrize(
    ("matrix", "works"),
    [
        ([[2, 1], [1, 2]], "LLT LDLT LU"),
        ([[1, 2], [2, 1]], "LDLT LU"),
        ([[0, 1], [1, 0]], "LDLT LU"),
        ([[-1, 0], [0, -1]], "LDLT LU"),
        ([[1, 1], [1, 1]], ""),
        ([[0, 0], [0, 0]], ""),
        ([[np.nan, 0], [0, 1]], ""),
        ([[2, 0], [1, 2]], "LLT LDLT"),  # the lower triangle of a symmetric matrix
    ],
)
def test_factorisations(cpu, matrix, works: str) -> None:  # type: ignore[no-untyped-def]
    a = np.array(matrix, float)
    for kind in ("LLT", "LDLT", "LU"):
        if kind == "LU" and a[0, 1] != a[1, 0]:
            continue
        solver = SparseSolver(sg.f64, kind, "COLAMD")
        solver.compute(SparseMatrix(sm=scipy.sparse.csc_array(a), dtype=sg.f64))
        assert solver.info() == (kind in works.split()), kind
        if solver.info():
            whole = np.tril(a) + np.tril(a, -1).T
            np.testing.assert_allclose(solver.solve(np.array([1.0, 2.0])), np.linalg.solve(whole, [1, 2]))
        else:
            with pytest.raises(sg.SpirogradRuntimeError, match="the factorisation failed: "):
                solver.solve(np.ones(2))


def test_refusals(cpu) -> None:  # type: ignore[no-untyped-def]
    A, _ = made(4)
    upper = SparseMatrix(sm=scipy.sparse.csc_array([[1.0, 2.0], [0.0, 1.0]]))
    for message, refused in (
        ("`num_cols` of a SparseMatrixBuilder is an integer from 1", lambda: SparseMatrixBuilder(3)),
        ("only kernels add to the builder", lambda: SparseMatrixBuilder(3, 3, 3)[0, 0]),
        ("f32 or f64, not of i32", lambda: SparseMatrixBuilder(3, 3, 3, sg.i32)),
        ("one of LLT, LDLT, LU, not 'QR'", lambda: SparseSolver(solver_type="QR")),
        ("no factors to solve with", lambda: SparseSolver().solve(np.ones(4))),
        ("LLT takes symmetric matrices: .* differ by up to 2", lambda: SparseSolver().compute(upper)),
        ("a SparseSolver of f64 got a matrix of f32", lambda: SparseSolver(sg.f64).compute(A)),
        ("`x` has 3 elements; .* needs 4", lambda: A @ sg.ndarray(sg.f32, 3)),
    ):
        with pytest.raises(sg.SpirogradError, match=message):
            refused()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("A[0, 0] = 1.0", "an entry of the builder `A` of a sparse matrix cannot be assigned"),
        ("A[0, 0] *= 2.0", "can be added to and subtracted from only"),
        ("sg.atomic_add(A[0, 0], 1.0)", "has no old value"),
        ("print(A[0, 0])", "cannot be read"),
        ("A[0] += 1.0", "`A` has 2 axes, but is indexed with 1 index"),
        ("A[0, 0] += sg.Vector([1.0, 2.0])", "is a scalar, got a vector of 2"),
    ],
)
def test_what_kernels_cannot_do_with_a_builder(cpu, tmp_path, statement: str, message: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "program.py"
    path.write_text(f"import spirograd as sg\n\n@sg.kernel\ndef k(A: sg.types.sparse_matrix_builder()):\n    {statement}\n")
    scope: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    with pytest.raises(sg.SpirogradCompilationError, match=re.escape(message)):
        scope["k"](SparseMatrixBuilder(2, 2, 4))  # type: ignore[operator]
    with pytest.raises(sg.SpirogradRuntimeTypeError, match=r"takes a `linalg\.SparseMatrixBuilder`, got the number 3"):
        scope["k"](3)  # type: ignore[operator]


def test_without_scipy(cpu, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(__import__("sys").modules, "scipy.sparse", None)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"need the package scipy[\s\S]*spirograd\[linalg\]"):
        SparseMatrix(2, 2)
