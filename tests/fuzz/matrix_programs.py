"""Random programs with sparse matrices and with tiles, against dense matrices of NumPy."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

import spirograd as sg

from . import run


@sg.kernel
def assemble(
    A: sg.types.sparse_matrix_builder(), rows: sg.types.NDArray[sg.i32, 1], columns: sg.types.NDArray[sg.i32, 1],
    values: sg.types.NDArray[sg.f32, 1],
):  # fmt: skip
    for k in rows:
        A[rows[k], columns[k]] += values[k]


def assembled(r: np.random.Generator, n: int, m: int):
    """A matrix with some places more than once, and some empty; with its entries as NumPy has them. Small integers: sums are exact."""
    count = int(r.integers(1, 2 * n * m // 3 + 2))
    rows, columns = r.integers(0, n, count).astype(np.int32), r.integers(0, m, count).astype(np.int32)
    values = r.integers(-3, 4, count).astype(np.float32)
    builder = sg.linalg.SparseMatrixBuilder(n, m, count)
    assemble(builder, rows, columns, values)
    dense = np.zeros((n, m))
    np.add.at(dense, (rows, columns), values)
    return builder.build(), dense


def check_matrices(seed: int, archs: Sequence[str]) -> None:
    for arch in archs:
        with run.session(arch, False):
            check_session(seed)


def failure_of_matrices(seed: int, archs: Sequence[str]) -> str:
    return run.first_line_of(check_matrices, seed, archs)


def check_session(seed: int) -> None:
    """The operations of a seed, in the session that runs."""
    r = np.random.default_rng(seed)
    n = int(r.integers(1, 40))
    (A, a), (B, b) = assembled(r, n, n), assembled(r, n, n)
    for _ in range(6):
        kind = r.integers(0, 6)
        if kind == 0:
            A, a = A + B, a + b
        elif kind == 1:
            A, a = B - A, b - a
        elif kind == 2:
            A, a = A * 2.0, a * 2
        elif kind == 3:
            A, a = A.transpose(), a.T
        elif kind == 4 and abs(a).max() < 2**10:
            A, a = A @ B, a @ b
        else:
            i, j = (int(k) for k in r.integers(0, n, 2))
            A[i, j] = 5.0
            a = a.copy()
            a[i, j] = 5
        x = r.integers(-3, 4, n).astype(np.float32)
        vector = sg.ndarray(sg.f32, n)
        vector.from_numpy(x)
        assert np.array_equal(A.to_numpy(), a)
        assert np.array_equal((A @ vector).to_numpy(), a @ x)
    regular = a / max(abs(a).max(), 1) + (n + 1) * np.eye(n)
    M = sg.linalg.SparseMatrix(n, n)
    M.build_from_ndarray(_triplets(regular))
    solver = sg.linalg.SparseSolver(solver_type="LU")
    solver.compute(M)
    np.testing.assert_allclose(solver.solve(x), np.linalg.solve(regular, x), rtol=1e-4, atol=1e-5)


def _triplets(dense: np.ndarray):
    rows, columns = np.nonzero(dense)
    found = np.stack([rows, columns, dense[rows, columns]], axis=1).astype(np.float32).ravel()
    array = sg.ndarray(sg.f32, found.size)
    array.from_numpy(found)
    return array


# --- tiles -------------------------------------------------------------------------------------------------------------------

_HEAD = """import spirograd as sg
from spirograd.simt import Tile16x16 as T

@sg.kernel
def work(a: sg.types.NDArray[sg.f32, 2], out: sg.types.NDArray[sg.f32, 2]):
    sg.loop_config(block_dim=16)
    for _ in range(16):
        s, t, u = T.zeros(), T.eye(), T.zeros()
"""


class Tiles:
    """A kernel, and what NumPy makes of the same steps. Entries are small integers, which f32 has without rounding."""

    def __init__(self, seed: int) -> None:
        r = random.Random(seed)
        a = self.a = np.random.default_rng(seed).integers(-2, 3, (27, 23)).astype(np.float32)
        held = {"s": np.zeros((16, 16)), "t": np.eye(16), "u": np.zeros((16, 16))}
        lines = []
        for _ in range(8):
            v = r.choice("stu")
            w, x = (r.choice([other for other in "stu" if other != v]) for _ in range(2))
            i, j, rows, columns = r.randint(0, 20), r.randint(0, 20), r.randint(0, 18), r.randint(0, 18)
            kind = r.choice(["load", "load", "outer", "product", "eye"])
            if kind == "load":
                lines.append(f"{v}[:] = a[{i}:{i + rows}, {j}:{j + columns}]")
                part = a[i : i + min(rows, 16), j : j + min(columns, 16)]
                held[v] = held[v].copy()
                held[v][: part.shape[0], : part.shape[1]] = part
            elif kind == "outer":
                lines.append(f"{v} -= sg.outer(a[{i}:{i + rows}, {j}], a[{j}:{j + columns}, {i}])")
                left, right = np.zeros(16), np.zeros(16)
                for column, part in ((left, a[i : i + min(rows, 16), j]), (right, a[j : j + min(columns, 16), i])):
                    column[: len(part)] = part
                held[v] = held[v] - np.outer(left, right)
            elif kind == "product" and max(abs(held[w]).max(), abs(held[x]).max()) < 2**8:
                transposed = r.random() < 0.5
                lines.append(f"{v}.add_product_({w}, {x}, transposed={transposed})")
                held[v] = held[v] + held[w] @ (held[x].T if transposed else held[x])
            else:
                lines.append(f"{v}.eye_()")
                held[v] = np.eye(16)
        for k, v in enumerate("stu"):
            lines.append(f"out[{16 * k}:{16 * k + 16}, 0:16] = {v}")
        self.source = _HEAD + "\n".join("        " + line for line in lines) + "\n"
        self.wanted = np.concatenate([held[v] for v in "stu"])

    def __repr__(self) -> str:
        return self.source


def tiles(seed: int) -> Tiles:
    return Tiles(seed)


def check_tiles(program: Tiles, archs: Sequence[str]) -> None:
    for arch in archs:
        with run.session(arch, False):
            out = np.zeros((48, 16), np.float32)
            run.load(program.source, {}, "work")(program.a, out)
            if not np.array_equal(out, program.wanted):
                raise run.Difference(f"{arch}: {np.argwhere(out != program.wanted)[0].tolist()} differs\n{program.source}")


def failure_of_tiles(program: Tiles, archs: Sequence[str]) -> str:
    return run.first_line_of(check_tiles, program, archs)
