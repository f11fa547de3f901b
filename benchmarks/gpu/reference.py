"""The results of the rows in NumPy, most of them in f64: what every program is compared with. Some take seconds at full size."""

from __future__ import annotations

import numpy as np

from benchmarks.differentiable_mpm88 import BOUND, DT, DX, GRAVITY, GRID, STIFFNESS, TARGET, VOLUME, particles
from benchmarks.gpu.program import BACK, THERE, bodies, directions, factor, image, inactive, samples, systems

_PART = 1 << 22


def _ramp(n: int) -> np.ndarray:
    return ((samples(n) % 1000).astype(np.float32) * np.float32(0.001)).astype(np.float64)


def copy(n: int) -> np.ndarray:
    return _ramp(n)


def saxpy(n: int) -> np.ndarray:
    return 2 * _ramp(n) + 0.5


def triad(n: int) -> np.ndarray:
    return _ramp(n) + 2 * 0.5


def functions(n: int) -> np.ndarray:
    x = _ramp(n)
    return np.sin(x) * np.exp(x) + np.log(x + 2)


def sum(n: int) -> np.ndarray:
    """Exact in f32 in any order: the numbers are whole, of both signs, and their sums small."""
    period = np.arange(4093) * 7919 % 17 - 8
    return np.array([n // 4093 * period.sum() + period[: n % 4093].sum()], np.float64)


def maximum(n: int) -> np.ndarray:
    return np.array([11.0])


def histogram(size: tuple[int, int]) -> np.ndarray:
    n, bins = size
    counts = np.zeros(bins, np.int64)
    for start in range(0, n, _PART):
        i = np.arange(start, min(n, start + _PART), dtype=np.int32)
        with np.errstate(over="ignore"):
            counts += np.bincount((i * np.int32(7919) + (i >> 5)) & (bins - 1), minlength=bins)
    return counts


def stencil(n: int) -> np.ndarray:
    where = samples(n * n)
    i, j = where // n, where % n
    inner = (i > 0) & (j > 0) & (i < n - 1) & (j < n - 1)
    i, j, a = np.clip(i, 1, n - 2), np.clip(j, 1, n - 2), image(n)
    found = [a[i + p, j + q].astype(np.float64) for p, q in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))]
    return np.where(inner, 0.2 * np.sum(found, axis=0), 0.0)


def stencil_gradient(n: int) -> np.ndarray:
    where = samples(n * n)
    i, j = where // n, where % n
    seed = np.zeros((n + 2, n + 2))
    seed[2:-2, 2:-2] = image(n)[1:-1, 1:-1]
    found = [seed[1 + i + p, 1 + j + q] for p, q in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))]
    return 0.2 * np.sum(found, axis=0)


def nbody(n: int) -> np.ndarray:
    p = bodies(n).astype(np.float64)
    found = []
    for k in samples(n)[::20]:
        d = p - p[k]
        found.append((d * ((d * d).sum(1, keepdims=True) + 1e-3) ** -1.5).sum(0))
    return np.concatenate(found)


def gradient(size: tuple[int, int]) -> np.ndarray:
    n, steps = size
    v = _ramp(n)
    slope = np.ones_like(v)
    for _ in range(steps):
        slope *= 0.9 * np.cos(v)
        v = np.sin(v) * 0.9 + 0.1
    return slope


def gated(size: tuple[int, int]) -> np.ndarray:
    """All elements start alike, so that one slope is that of all that are active. Forward mode: values and slopes side by side."""
    n, steps = size
    scale = np.array([1.0, 0.9, 0.8, 0.7])
    v, slope = np.float64(np.float32(0.3)) * scale, scale
    for _ in range(steps):
        following, slope_after = np.roll(v, -1), np.roll(slope, -1)
        slope = np.cos(v) * slope * following + np.sin(v) * slope_after
        v = np.sin(v) * following + 0.25
    return np.where(inactive(n)[samples(n)] == 0, slope.sum(), 0.0)


def _loss_of_mpm88(x: np.ndarray, steps: int) -> float:
    n = len(x)
    v, C, J = np.ones((n, 2)), np.zeros((n, 2, 2)), np.ones(n)
    offsets = np.array([[i, j] for i in range(3) for j in range(3)])
    cells = np.stack(np.meshgrid(np.arange(GRID), np.arange(GRID), indexing="ij"), 2).reshape(-1, 2)
    for _ in range(steps):
        base = (x / DX - 0.5).astype(np.int64)
        fx = x / DX - base
        w = np.stack([0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2])
        affine = (-DT * 4 * STIFFNESS * VOLUME * (J - 1) / DX**2)[:, None, None] * np.eye(2) + VOLUME * C
        grid, gathered = np.zeros((GRID * GRID, 3)), []
        for offset in offsets:
            weight = (w[offset[0], :, 0] * w[offset[1], :, 1])[:, None]
            distance = (offset - fx) * DX
            index = (base[:, 0] + offset[0]) * GRID + base[:, 1] + offset[1]
            momentum = weight * (VOLUME * v + np.einsum("nij,nj->ni", affine, distance))
            np.add.at(grid, index, np.concatenate([momentum, weight * VOLUME], 1))
            gathered.append((weight, distance, index))
        velocity = grid[:, :2] / np.where(grid[:, 2:] > 0, grid[:, 2:], 1) - [0, DT * GRAVITY]
        velocity = np.where(((cells < BOUND) & (velocity < 0)) | ((cells > GRID - BOUND) & (velocity > 0)), 0, velocity)
        v, C = np.zeros((n, 2)), np.zeros((n, 2, 2))
        for weight, distance, index in gathered:
            g = weight * velocity[index]
            v = v + g
            C = C + 4 / DX**2 * g[:, :, None] * distance[:, None, :]
        x, J = x + DT * v, J * (1 + DT * (C[:, 0, 0] + C[:, 1, 1]))
    return float(((x - TARGET) ** 2).sum() / n)


def mpm88(size: tuple[int, int]) -> np.ndarray:
    """The loss, and its slope in some directions by central differences."""
    n, steps = size
    x, h = particles(n).astype(np.float64), 1e-6
    slopes = [(_loss_of_mpm88(x + h * d, steps) - _loss_of_mpm88(x - h * d, steps)) / (2 * h) for d in directions(n)]
    return np.array([_loss_of_mpm88(x, steps), *slopes])


def substeps(size: tuple[int, int, int]) -> np.ndarray:
    n, substeps, trips = size
    v = np.linspace(0, 1, n)[samples(n)]
    slope = np.ones_like(v)
    for _ in range(substeps * trips):
        slope *= 1 + 0.01 * np.cos(v)
        v = np.sin(v) * 0.01 + v
    return slope


def launch(n: int) -> np.ndarray:
    return np.full(n, 6.0)


launch_and_wait = launch


def eight_loops(n: int) -> np.ndarray:
    x = 0.5
    for _ in range(4):
        y = x * THERE[0] + THERE[1]
        x = y * BACK[0] + BACK[1]
    return np.repeat([x, y], len(samples(n)))


eight_apart = eight_by_hand = eight_loops


def _updates(n: int, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how many iterations update each element, the sums of their numbers, and the largest."""
    counts, sums, largest = np.zeros(bins), np.zeros(bins), np.zeros(bins)
    for start in range(0, n, _PART):
        i = np.arange(start, min(n, start + _PART), dtype=np.int32)
        index = (i * np.int32(7919) + (i >> 5)) % 8000
        index = index & 255 if bins == 256 else index
        x = (i % 1000).astype(np.float32) * np.float32(0.001)
        counts += np.bincount(index, minlength=bins)
        sums += np.bincount(index, x, minlength=bins)
        if start == 0:  # the same numbers come again
            np.maximum.at(largest, index, x)
    return counts, sums, largest


def counts_256(n: int) -> np.ndarray:
    return _updates(n, 256)[0]


def counts_8000(n: int) -> np.ndarray:
    return _updates(n, 8000)[0]


def sums_f32(n: int) -> np.ndarray:
    return _updates(n, 256)[1]


def sums_f16(n: int) -> np.ndarray:
    """Above 2,048, a sum of f16 depends on the order of its terms: it is not compared."""
    counts = counts_256(n)
    return np.where(counts <= 2048, counts, np.nan)


def maxima(n: int) -> np.ndarray:
    return _updates(n, 256)[2]


look_up = counts_256


def copy_2d(n: int) -> np.ndarray:
    return image(n).reshape(-1)[samples(n * n)].astype(np.float64)


def nests(size: tuple[int, int]) -> np.ndarray:
    n, trips = size
    a, b = 0.3, 0.15
    da, db = 1.0, 0.5
    for _ in range(trips * trips):
        da, db = da + 1e-4 * np.cos(b) * db, db + 1e-4 * np.sin(a) * da
        a, b = a + 1e-4 * np.sin(b), b - 1e-4 * np.cos(a)
    return np.full(len(samples(n)), da + db)


def factors_16(size: tuple[int, int]) -> np.ndarray:
    count, n = size
    lower = np.linalg.cholesky(systems(7, n))[np.arange(count) % 7]
    return lower.reshape(-1)[samples(lower.size)]


factors_32 = factors_16_f64 = factors_32_f64 = factors_16


def tiles_f16(n: int) -> np.ndarray:
    a, b, where = factor(n, 0), factor(n, 1), samples(n * n)
    return np.einsum("sk,ks->s", a[where // n], b[:, where % n])


tiles_f64 = tiles_f16
