"""What a back end or a peer gives for a row of the table. Imports nothing but NumPy, since every peer's process imports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

SAMPLES = 1000  # of the elements of a result, at most, are compared with NumPy
# Eight loops that go there and back, of which JAX's compiler and spirograd make one.
THERE, BACK = (1.01, 0.1), (0.99, -0.1)


@dataclass
class Program:
    """``run`` is timed; ``result`` starts afresh, runs once and gives what is compared with NumPy. ``label`` tells ways to do it apart."""

    run: Callable[[], object]
    result: Callable[[], np.ndarray]
    label: str = ""


def samples(n: int) -> np.ndarray:
    """Indices of the elements that are compared, of ``n``."""
    return np.unique(np.linspace(0, n - 1, SAMPLES).astype(np.int64))


def directions(n: int) -> np.ndarray:
    """Directions in which the gradient of mpm88 is compared: all particles to one side, and in waves."""
    waves = np.cos(np.arange(2 * n).reshape(n, 2) * 0.01)
    return np.stack([np.tile([1.0, 0.0], (n, 1)), np.tile([0.0, 1.0], (n, 1)), waves])


def bodies(n: int) -> np.ndarray:
    return np.random.default_rng(0).random((n, 3), np.float32)


def inactive(n: int) -> np.ndarray:
    """0 for one element in twenty, which is active."""
    return np.random.default_rng(0).integers(0, 20, n).astype(np.int32)


def image(n: int) -> np.ndarray:
    """What the stencil is applied to."""
    return (np.arange(n * n, dtype=np.int32) % 1000).reshape(n, n).astype(np.float32) * np.float32(0.001)


def systems(count: int, n: int) -> np.ndarray:
    """Positive definite matrices, in 64 bits. Seven differ: all of them would take long to make."""
    m = np.random.default_rng(0).uniform(-1, 1, (7, n, n))
    return (m @ m.transpose(0, 2, 1) + np.eye(n))[np.arange(count) % 7]


def factor(n: int, number: int) -> np.ndarray:
    """A factor of a product of matrices: eighths, so that all products and their sums are exact in f32."""
    k = np.arange(n * n, dtype=np.int64)
    return ((k * (7919 + 2 * number) + k // n * 31) % 17 - 8).reshape(n, n) / 8
