"""Sums over the neighbours of particles: nests of serial loops with a guard, whose iterations that pass the CPU lists before they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.options import NO_LANES
from spirograd.lang import context

SIDE, CELLS, N = 0.25, 6, 300
RADIUS = 0.25


def sorted_particles(seed: int = 0, n: int = N) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Points in a box, sorted by cells, a third of which are empty; and the number of points up to each cell."""
    rng = np.random.default_rng(seed)
    x = (rng.random((n, 3)) * (CELLS - 2) * SIDE + SIDE).astype(np.float32)
    x[: n // 3, 2] = SIDE * 1.5
    cell = (x // np.float32(SIDE)).astype(int) @ [CELLS * CELLS, CELLS, 1]
    order = np.argsort(cell, kind="stable")
    counts = np.bincount(cell, minlength=CELLS**3)
    return x[order], np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def pairs(x: np.ndarray[Any, Any], radius: float = RADIUS) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Distances of all pairs, in f64, and which are neighbours; no pair is close to the limit."""
    r = np.sqrt(((x[:, None].astype(float) - x[None]) ** 2).sum(-1))
    near = (r < np.float32(radius)) & ~np.eye(len(x), dtype=bool)
    return r, near


class Cloud:
    """Fields of the particles."""

    def __init__(self, seed: int = 0, n: int = N) -> None:
        self.n = n
        x, first = sorted_particles(seed, n)
        self.x, self.first = sg.Vector.field(3, sg.f32, n), sg.field(sg.i32, len(first))
        self.kind, self.mass = sg.field(sg.i32, n), sg.field(sg.f32, n)
        self.out, self.hits = sg.Vector.field(3, sg.f32, n), sg.field(sg.i32, n)
        rng = np.random.default_rng(seed + 1)
        self.x.from_numpy(x)
        self.first.from_numpy(first)
        self.kind.from_numpy(rng.integers(0, 3, n).astype(np.int32))
        self.mass.from_numpy((rng.random(n) + 0.5).astype(np.float32))


@sg.func
def hat(r: sg.f32) -> sg.f32:
    q = r / RADIUS
    w = 0.0
    if q <= 0.5:
        w = 6.0 * (q * q * q - q * q) + 1.0
    else:
        w = 2.0 * (1.0 - q) ** 3
    return w


def np_hat(r: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    q = r / RADIUS
    return np.where(q <= 0.5, 6 * (q**3 - q**2) + 1, 2 * (1 - q) ** 3)


def sums(c: Cloud) -> Callable[[], None]:
    """Sums whose terms are products of loaded values: nothing else is carried."""

    @sg.kernel
    def kernel():
        for i in range(c.n):
            total = 0.5
            cell = sg.cast(c.x[i] / SIDE, sg.i32)
            for a, b, d in sg.ndrange((-1, 2), (-1, 2), (-1, 2)):
                k = ((cell[0] + a) * CELLS + cell[1] + b) * CELLS + cell[2] + d
                for j in range(c.first[k], c.first[k + 1]):
                    if i != j:
                        r = (c.x[i] - c.x[j]).norm()
                        if r < RADIUS:
                            total += c.mass[j] * hat(r)
            c.out[i] = [total, 0.0, 0.0]

    return kernel


def expected_sums(c: Cloud) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    r, near = pairs(c.x.to_numpy())
    total = 0.5 + np.where(near, np_hat(r) * c.mass.to_numpy()[None], 0).sum(1)
    return np.stack([total, 0 * total, 0 * total], -1), np.zeros(c.n)


def branches(c: Cloud) -> Callable[[], None]:
    """What passes is of several kinds, each with terms, counts and atomics of its own."""

    @sg.kernel
    def kernel():
        for i in range(c.n):
            force = sg.Vector([0.0, 0.0, 0.0])
            count, largest = 0, 0.0
            cell = sg.cast(c.x[i] / SIDE, sg.i32)
            for a, b, d in sg.ndrange((-1, 2), (-1, 2), (-1, 2)):
                k = ((cell[0] + a) * CELLS + cell[1] + b) * CELLS + cell[2] + d
                for j in range(c.first[k], c.first[k + 1]):
                    if i != j and (c.x[i] - c.x[j]).norm() < RADIUS:
                        e = c.x[i] - c.x[j]
                        r = e.norm()
                        if c.kind[j] == 0:
                            force += c.mass[j] * hat(r) * e
                        elif c.kind[j] == 1:
                            force -= e / (r + 1.0)
                            sg.atomic_add(c.hits[j], c.kind[i] + 1)
                            if r > 0.5 * RADIUS:
                                count += 1
                        largest = sg.max(largest, c.mass[j] * r)
            c.out[i] = force + sg.Vector([1.0, 0.0, 0.0]) * count + sg.Vector([0.0, 1.0, 0.0]) * largest

    return kernel


def expected_branches(c: Cloud) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x, mass, kind = c.x.to_numpy().astype(float), c.mass.to_numpy(), c.kind.to_numpy()
    r, near = pairs(c.x.to_numpy())
    e = x[:, None] - x[None]
    drawn, pushed = near & (kind[None] == 0), near & (kind[None] == 1)
    force = (np.where(drawn, mass[None] * np_hat(r), 0)[..., None] * e).sum(1) - (np.where(pushed, 1 / (r + 1), 0)[..., None] * e).sum(1)
    force[:, 0] += (pushed & (r > 0.5 * RADIUS)).sum(1)
    force[:, 1] += np.where(near, mass[None] * r, 0).max(1)
    return force, (pushed * (kind[:, None] + 1)).sum(0)


def many(c: Cloud) -> Callable[[], None]:
    """More iterations pass than a list holds; one loop, and the number that passed is carried."""

    @sg.kernel
    def kernel():
        for i in range(c.n):
            total, passed = 0.0, 0
            for j in range(c.first[CELLS]):
                total -= 1.0 * c.n
            for j in range(c.first[0], c.first[CELLS * CELLS * CELLS]):
                r = (c.x[i] - c.x[j]).norm_sqr()
                if r < 4.0 * SIDE:
                    total += c.mass[j] / (1.0 + r) + r * r * r * c.mass[i]
                    passed += 1
            c.out[i] = [total, 0.0, 1.0 * passed]
            c.hits[i] = passed

    return kernel


def expected_many(c: Cloud) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    r, _ = pairs(c.x.to_numpy())
    r, mass = r**2, c.mass.to_numpy()
    near = r < 4 * SIDE
    total = np.where(near, mass[None] / (1 + r) + r**3 * mass[:, None], 0).sum(1) - c.n * int(c.first[CELLS])
    return np.stack([total, 0 * total, near.sum(1)], -1), near.sum(1)


def walls(c: Cloud) -> Callable[[], None]:
    """Levels with conditions between them, terms that use the cell, and a loop behind the guard that changes what is carried."""

    @sg.kernel
    def kernel():
        for i in range(c.n):
            total = sg.Vector([0.0, 0.0, 0.0])
            cell = sg.cast(c.x[i] / SIDE, sg.i32)
            for a in range(-2, 3):
                if cell[0] + a >= 0 and cell[0] + a < CELLS:
                    for b, d in sg.ndrange((-2, 3), (-2, 3)):
                        if cell[1] + b >= 0 and cell[1] + b < CELLS and cell[2] + d >= 0 and cell[2] + d < CELLS:
                            k = ((cell[0] + a) * CELLS + cell[1] + b) * CELLS + cell[2] + d
                            for j in range(c.first[k], c.first[k + 1]):
                                r = (c.x[i] - c.x[j]).norm()
                                if r < RADIUS:
                                    for m in range(3):
                                        total[m] = total[m] * 0.5 + hat(r) * c.x[j][m] * (a + 3)
            c.out[i] = total

    return kernel


def expected_walls(c: Cloud) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = c.x.to_numpy().astype(float)
    r, near = pairs(c.x.to_numpy())
    cell = (c.x.to_numpy() / np.float32(SIDE)).astype(int)
    out = np.zeros((c.n, 3))
    for i in range(c.n):
        for j in np.flatnonzero(near[i] | (np.arange(c.n) == i)):  # the particles are sorted as cells are visited
            out[i] = out[i] * 0.5 + np_hat(r[i, j]) * x[j] * (cell[j, 0] - cell[i, 0] + 3)
    return out, np.zeros(c.n)


def pushes(c: Cloud) -> Callable[[], None]:
    """Little but updates: one thread runs a variant of the loop without atomics."""

    @sg.kernel
    def kernel():
        for i in range(c.n):
            cell = sg.cast(c.x[i] / SIDE, sg.i32)
            passed = 0
            for a, b, d in sg.ndrange((-1, 2), (-1, 2), (-1, 2)):
                k = ((cell[0] + a) * CELLS + cell[1] + b) * CELLS + cell[2] + d
                for j in range(c.first[k], c.first[k + 1]):
                    if (c.x[i] - c.x[j]).norm() < RADIUS and i != j:
                        c.out[j] += (c.x[i] - c.x[j]) * c.mass[i]
                        passed += 1
            c.hits[i] = passed

    return kernel


def expected_pushes(c: Cloud) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x, mass = c.x.to_numpy().astype(float), c.mass.to_numpy()
    _, near = pairs(c.x.to_numpy())
    return (near[..., None] * (x[:, None] - x[None]) * mass[:, None, None]).sum(0), near.sum(1)


CASES = {
    "sums": (sums, expected_sums),
    "branches": (branches, expected_branches),
    "many": (many, expected_many),
    "walls": (walls, expected_walls),
    "pushes": (pushes, expected_pushes),
}


@pytest.mark.parametrize("name", CASES)
def test_neighbours(session: str, name: str) -> None:
    build, expected = CASES[name]
    c = Cloud(n=700 if name == "many" else N)
    build(c)()
    out, hits = expected(c)
    np.testing.assert_allclose(c.out.to_numpy(), out, rtol=2e-5, atol=2e-4)
    np.testing.assert_array_equal(c.hits.to_numpy(), hits)


@pytest.mark.optimized
@pytest.mark.archs("cpu")  # compares code of the CPU
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_loop(arch: str, name: str) -> None:
    """Without lists, as at level 1, the sums have the same bits."""
    results = []
    for level in (1, 3):
        sg.init(arch=arch, opt_level=level, offline_cache=False, cpu_max_num_threads=1)  # atomics of floats in order
        c = Cloud(n=700 if name == "many" else N)
        kernel = CASES[name][0](c)
        kernel()
        assert ("store_compressed" in kernel.stages()["loops.ir"]) is (level == 3)
        results.append(c.out.to_numpy().tobytes())
    assert results[0] == results[1]


@pytest.mark.optimized
@pytest.mark.archs("cpu")  # chooses code of the CPU
@pytest.mark.parametrize("name", sorted(set(CASES) - {"many"}))  # fast math leaves the order of its sum free
def test_measurements_may_choose_the_loop(arch: str, name: str) -> None:
    """Whether lists pay depends on the data. The loop has the same bits, also where it updates floats by atomics."""
    results = []
    for alternative in ("", NO_LANES):
        sg.init(arch=arch, offline_cache=False, cpu_max_num_threads=1, tune=False)
        running: Any = context.session()
        running.compile_options = replace(running.compile_options, alternative=alternative)
        c = Cloud(n=700 if name == "many" else N)
        kernel: Any = CASES[name][0](c)
        kernel()
        assert ("store_compressed" in kernel.stages()["loops.ir"]) is not bool(alternative)
        results.append((c.out.to_numpy().tobytes(), c.hits.to_numpy().tobytes()))
    assert results[0] == results[1]


def outside_of_the_guard(c: Cloud) -> Callable[[], None]:
    @sg.kernel
    def kernel():
        for i in range(c.n):
            total, tested = 0.0, 0
            for j in range(c.first[0], c.first[CELLS * CELLS * CELLS]):
                r = (c.x[i] - c.x[j]).norm()
                tested += 1
                if r < RADIUS:
                    total += c.mass[j] * hat(r)
            c.out[i] = [total, 1.0 * tested, 0.0]

    return kernel


def guards_of_sums(c: Cloud) -> Callable[[], None]:
    @sg.kernel
    def kernel():
        for i in range(c.n):
            total = 0.0
            for j in range(c.first[0], c.first[CELLS * CELLS * CELLS]):
                r = (c.x[i] - c.x[j]).norm()
                if r + total < 4.0:
                    total += c.mass[j] * hat(r)
            c.out[i] = [total, 0.0, 0.0]

    return kernel


def writes_what_it_reads(c: Cloud) -> Callable[[], None]:
    @sg.kernel
    def kernel():
        for i in range(1):
            total = 0.0
            for j in range(c.first[0], c.first[CELLS * CELLS * CELLS]):
                r = c.mass[j]
                if r < 1.0:
                    total += hat(r)
                    c.mass[(j + 1) % c.n] = r + 0.25
            c.out[i] = [total, 0.0, 0.0]

    return kernel


@pytest.mark.archs("cpu")  # looks at code of the CPU
@pytest.mark.parametrize("build", (outside_of_the_guard, guards_of_sums, writes_what_it_reads))
def test_dependent_guards_are_not_listed(arch: str, build: Callable[[Cloud], Callable[[], None]]) -> None:
    results = []
    for level in (1, 3):
        sg.init(arch=arch, opt_level=level, offline_cache=False)
        c = Cloud()
        kernel: Any = build(c)
        kernel()
        assert "store_compressed" not in kernel.stages()["loops.ir"]
        results.append((c.out.to_numpy(), c.mass.to_numpy()))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6)
    np.testing.assert_array_equal(results[0][1], results[1][1])


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("dtype", [sg.f64, sg.i64, sg.f32, sg.i32, sg.i16, sg.u8])
def test_types_of_listed_values(session: Any, dtype: Any) -> None:
    """The value of the guard is listed, in registers of any number of lanes; some, all or none of the iterations pass."""
    most = 131
    weight = sg.field(dtype, (most, most))
    x, out = sg.Vector.field(2, sg.f64, most), sg.Vector.field(2, sg.f64, most)

    @sg.func
    def force(i: sg.i32, j: sg.i32):
        d = x[i] - x[j]
        length = d.norm() + 0.5
        return -3.0 * (length - weight[i, j]) * d / length

    @sg.kernel
    def attract(n: sg.i32):
        for i in range(n):
            out[i] = x[i] * -0.5
            for j in range(n):
                if weight[i, j] != 0:
                    out[i] += force(i, j)

    points = np.random.default_rng(1).normal(size=(most, 2))
    x.from_numpy(points)
    d = points[:, None] - points[None]
    length = np.sqrt((d**2).sum(-1)) + 0.5
    for n in (0, 1, 5, 16, 17, most):
        for share in (0.0, 0.3, 1.0):
            values = np.random.default_rng(n).integers(1, 9, (most, most)) * (np.random.default_rng(2).random((most, most)) < share)
            weight.from_numpy(values.astype(dtype.np))
            attract(n)
            forces = np.where((values != 0)[..., None], (-3 * (length - values) / length)[..., None] * d, 0.0)
            np.testing.assert_allclose(out.to_numpy()[:n], points[:n] * -0.5 + forces[:n, :n].sum(1), rtol=1e-9, atol=1e-9)
    assert "store_compressed" in attract.stages()["loops.ir"]
