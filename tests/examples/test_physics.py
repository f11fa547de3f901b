"""The examples that find parameters of simulations: values and gradients are those of an implementation in NumPy, in f64.

Derivatives of the latter are imaginary parts: f(x + ih) = f(x) + ih f'(x), which is exact to the last digits for a tiny h."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import spirograd as sg

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.needs("matplotlib", "rich")
TINY = 1e-30
# In f64; a driver that runs on a CPU takes seconds for each.
on_each = pytest.mark.parametrize("arch", ["cpu", pytest.param("vulkan", marks=pytest.mark.long)], indirect=True)


def example(name, monkeypatch):
    """The names of an example, whose `main` does not run."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py")))


def cloth_in_numpy(cloth, constants, n, frames, apart):
    """The markers of all frames, with the triangles as lists of points."""
    stiffness, viscosity, drag = constants
    at = np.arange(n * n).reshape(n, n)
    corners = [(at[:-1, :-1], at[1:, :-1], at[:-1, 1:]), (at[1:, 1:], at[:-1, 1:], at[1:, :-1])]
    triangles = np.concatenate([np.stack(c, -1).reshape(-1, 3) for c in corners])
    h = cloth.SIDE / (n - 1)
    rest = h * np.stack(np.divmod(np.arange(n * n), n), 1)
    inverse = np.linalg.inv(np.stack([rest[triangles[:, k]] - rest[triangles[:, 0]] for k in (1, 2)], 2))
    lame = stiffness / (1 - cloth.POISSON**2) * np.array([cloth.POISSON, (1 - cloth.POISSON) / 2])
    mass, dt = cloth.DENSITY * cloth.SIDE**2 / n**2, 0.006 * h
    x = np.stack([rest[:, 0], 0 * rest[:, 0], rest[:, 1]], 1) + 0j
    v, seen = np.zeros_like(x), []
    free = ~np.isin(np.arange(n * n), (at[0, 0], at[-1, 0]))[:, None]
    for step in range(frames * apart):
        F, rate = (np.stack([y[triangles[:, k]] - y[triangles[:, 0]] for k in (1, 2)], 2) @ inverse for y in (x, v))
        strain = (F.swapaxes(1, 2) @ F - np.eye(2)) / 2
        strain_rate = (F.swapaxes(1, 2) @ rate + rate.swapaxes(1, 2) @ F) / 2
        stress = lame[0] * strain.trace(axis1=1, axis2=2)[:, None, None] * np.eye(2) + 2 * lame[1] * strain + 2 * viscosity * strain_rate
        pull = -(h**2) / 2 * F @ stress @ inverse.swapaxes(1, 2)
        force = np.array([0, -cloth.GRAVITY * mass, 0]) - drag * h**2 * v
        np.add.at(force, triangles, np.stack([-pull.sum(2), pull[:, :, 0], pull[:, :, 1]], 1))
        v = v + dt / mass * force * free
        x = x + dt * v
        if step % apart == apart - 1:
            seen.append(x.reshape(n, n, 3)[::3, ::3])
    return np.array(seen)


@on_each
def test_cloth(arch, monkeypatch):
    sg.init(arch=arch, default_fp=sg.f64)
    cloth, sizes = example("cloth", monkeypatch), (4, 2, 25)
    fabric = cloth.Cloth(*sizes, sg.f64)
    at = np.array([0.3, -0.2, 0.5])
    film, pullback = fabric.simulate.vjp(at)
    weights = np.random.default_rng(0).normal(size=film.shape)
    expected = [cloth_in_numpy(cloth, cloth.GUESS * np.exp(at + TINY * 1j * along), *sizes) for along in np.eye(3)]
    np.testing.assert_allclose(film, expected[0].real, atol=1e-12)
    np.testing.assert_allclose(pullback(weights)[0], [(weights * e.imag).sum() / TINY for e in expected], rtol=1e-6)


@on_each
def test_blobs(arch, monkeypatch):
    """One ball: where a ray hits it, or how close it passes, has a formula."""
    sg.init(arch=arch, default_fp=sg.f64)
    blobs, size, place = example("blobs", monkeypatch), 6, np.array([0.05, -0.1, 0.15, 0.5])
    scene = blobs.Scene([place], 2, size, sg.f64)
    picture, pullback = sg.ad.program(scene.render, inputs=scene.balls, outputs=scene.picture).vjp([place])

    def drawn(ball):
        x, y = np.meshgrid((2 * np.arange(size) + 1) / size - 1, (2 * np.arange(size) + 1) / size - 1, indexing="ij")
        found = []
        for angle in 2.1 * np.arange(2):
            right, out = np.array([np.cos(angle), 0, -np.sin(angle)]), np.array([np.sin(angle), 0, np.cos(angle)])
            away = x[..., None] * right + y[..., None] * [0, 1, 0] - (ball[:3] - ball[:3] @ out * out)
            square = (away**2).sum(-1)
            hit = square.real < ball[3].real ** 2
            depth = np.sqrt(np.where(hit, ball[3] ** 2 - square, 1))
            normal = np.where(hit[..., None], (away + depth[..., None] * out) / ball[3], away / np.sqrt(square)[..., None])
            distance = np.where(hit, 0, np.sqrt(square) - ball[3])
            found.append((0.5 + 0.5 * normal @ np.array(blobs.LIGHT)) * np.exp(-((distance / blobs.HALO) ** 2)))
        return np.array(found)

    weights = np.random.default_rng(0).normal(size=picture.shape)
    np.testing.assert_allclose(picture, drawn(place.astype(complex)).real, atol=1e-7)
    expected = [(weights * drawn(place + TINY * 1j * along).imag).sum() / TINY for along in np.eye(4)]
    np.testing.assert_allclose(np.ravel(pullback(weights)[0]), expected, rtol=1e-5)


def smoke_in_numpy(smoke, wind, begin, steps):
    """The smoke after some steps, and velocities before the pressure of the last one: with rolled arrays instead of loops."""
    n, coarse = len(begin), smoke.COARSE

    def sample(values, x, y):
        i, j = (np.floor(a.real).astype(int) for a in (x, y))
        fx, fy = x - i, y - j
        size = len(values)
        corners = {(a, b): values[(i + a) % size, (j + b) % size] for a in (0, 1) for b in (0, 1)}
        return sum(c * (fx if a else 1 - fx) * (fy if b else 1 - fy) for (a, b), c in corners.items())

    x, y = np.mgrid[:n, :n].astype(float)
    v, dye = np.zeros((2, n, n), complex), begin.astype(complex)
    for step in range(steps):
        here = x - v[0], y - v[1]
        blown = [sample(wind[step // smoke.PERIOD, :, :, k], x * coarse / n, y * coarse / n) for k in (0, 1)]
        carried = np.array([sample(v[k], *here) + blown[k] for k in (0, 1)])
        dye, p = sample(dye, *here), np.zeros((n, n))
        divergence = sum(np.roll(carried[k], -1, k) - np.roll(carried[k], 1, k) for k in (0, 1)) / 2
        for _ in range(smoke.SWEEPS):
            p = (sum(np.roll(p, by, k) for by in (1, -1) for k in (0, 1)) - divergence) / 4
        v = carried - np.array([np.roll(p, -1, k) - np.roll(p, 1, k) for k in (0, 1)]) / 2
    return dye


@on_each
def test_smoke(arch, monkeypatch):
    """The gradient of the loss with checkpoints, along three directions."""
    sg.init(arch=arch, default_fp=sg.f64)
    smoke, (n, steps) = example("smoke", monkeypatch), (12, 12)
    rng = np.random.default_rng(0)
    begin, target, wind = smoke.shape(n, 0, 0.25), smoke.shape(n, 5, 0.24), rng.normal(0, 0.1, (2, smoke.COARSE, smoke.COARSE, 2))
    fluid = smoke.Smoke(n, steps, begin, target, sg.f64)
    fluid.wind.from_numpy(wind)
    assert fluid.evaluate(checkpoints=4).memory_report().repetitions.repeated > 0
    losses, directions = [], rng.normal(size=(3, *wind.shape))
    for along in directions:
        losses.append(((smoke_in_numpy(smoke, wind + TINY * 1j * along, begin, steps) - target) ** 2).mean())
    np.testing.assert_allclose(fluid.loss[None], losses[0].real, rtol=1e-10)
    np.testing.assert_allclose((fluid.wind.grad.to_numpy() * directions).sum((1, 2, 3, 4)), np.imag(losses) / TINY, rtol=1e-7)
