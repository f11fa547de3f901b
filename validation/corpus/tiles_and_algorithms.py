"""Tiles, and the library kernels of `sg.algorithms`, in the form for devices with groups."""

from __future__ import annotations

from unittest import mock

import numpy as np

import spirograd as sg
from spirograd import algorithms
from spirograd.algorithms import scan_passes, sorting
from spirograd.simt import Tile16x16
from validation.case import Results, case

TYPES = (sg.i32, sg.u32, sg.f32)


def numbers(t, n):
    return np.random.default_rng(n).integers(0, 100, n).astype(t.np)


def made(a, t):
    x = sg.ndarray(t, a.shape)
    x.from_numpy(a)
    return x


def in_groups(run) -> None:
    """Call ``run`` with the kernels for devices that run groups of threads."""
    with mock.patch.object(scan_passes, "has_groups", lambda: True), mock.patch.object(sorting, "has_groups", lambda: True):
        run()


@case(rtol=1e-4, atol=1e-5)
def factors_of_tiles() -> Results:
    """Factor tiles in two groups: a product of columns, a Cholesky factor, and a triangular system. Entries are differences of numbers up
    to 6."""
    a = np.random.default_rng(1).uniform(0.1, 1, (2, 16, 16)).astype("f4")
    m = np.eye(16, dtype="f4") + a @ a.transpose(0, 2, 1)
    lower, solved = np.zeros((2, 16, 16), "f4"), np.zeros((2, 16, 16), "f4")

    @sg.kernel
    def run(m: sg.types.ndarray(sg.f32, 3), lower: sg.types.ndarray(sg.f32, 3), solved: sg.types.ndarray(sg.f32, 3)):
        sg.loop_config(block_dim=16)
        for i in range(32):
            g = i // 16
            factor, right = Tile16x16.zeros(), Tile16x16.eye()
            factor[:] = m[g, 0:16, 0:16]
            factor += sg.outer(m[g, 0:16, 3], m[g, 0:16, 3])
            factor.cholesky_(1e-6)
            lower[g, 0:16, 0:16] = factor
            factor.solve_triangular_(right)
            solved[g, 0:16, 0:16] = right

    run(m, lower, solved)
    column = m[:, :, 3].astype("f8")
    wanted = np.linalg.cholesky(m + column[:, :, None] * column[:, None])
    return {"lower": (np.tril(lower), wanted), "solved": (solved, np.linalg.inv(wanted).transpose(0, 2, 1))}


@case([(t,) for t in TYPES])
def scans_and_reductions(t) -> Results:
    a = numbers(t, 5000)
    x, out = made(a, t), sg.ndarray(t, 5000)
    found = {}

    def run() -> None:
        algorithms.inclusive_scan(x, out)
        found["sums"] = (out.to_numpy(), np.cumsum(a, dtype=t.np))
        algorithms.exclusive_scan(x, out, "max")
        found["largest"] = (out.to_numpy()[1:], np.maximum.accumulate(a)[:-1])
        found["total"] = (np.array([algorithms.reduce(x)], t.np), a.sum(dtype=t.np, keepdims=True))

    in_groups(run)
    return found


@case([(t,) for t in TYPES])
def sorts_with_values(t) -> Results:
    a = numbers(t, 3000)
    keys, values = made(a, t), made(np.arange(3000, dtype=np.int32), sg.i32)
    in_groups(lambda: algorithms.parallel_sort(keys, values))
    order = np.argsort(a, kind="stable")
    return {"keys": (keys.to_numpy(), a[order]), "values": (values.to_numpy(), order.astype(np.int32))}


@case()
def selections_and_runs() -> Results:
    a = np.sort(numbers(sg.i32, 3000))
    x, out, counts = made(a, sg.i32), sg.ndarray(sg.i32, 3000), sg.ndarray(sg.i32, 3000)
    found = {}

    def run() -> None:
        kept = algorithms.select(x, made((a > 50).astype(np.int32), sg.i32), out)
        found["selected"] = (out.to_numpy()[:kept], a[a > 50])
        number = algorithms.run_length_encode(x, out, counts)
        found["lengths"] = (counts.to_numpy()[:number], np.unique(a, return_counts=True)[1].astype(np.int32))

    in_groups(run)
    return found
