"""Eight loops over numbers, written as one loop by hand."""

import numba
import numpy as np


@numba.njit(parallel=True)
def by_hand(x, y):
    a, b, c = np.float32(1.01), np.float32(0.1), np.float32(0.99)
    for i in numba.prange(x.size):
        v = x[i]
        w = v * a + b
        v = w * c - b
        w = v * a + b
        v = w * c - b
        w = v * a + b
        v = w * c - b
        w = v * a + b
        y[i] = w
        x[i] = w * c - b


@numba.njit(parallel=True)
def apart(x, y):
    a, b, c = np.float32(1.01), np.float32(0.1), np.float32(0.99)
    for _ in range(4):
        for i in numba.prange(x.size):
            y[i] = x[i] * a + b
        for i in numba.prange(x.size):
            x[i] = y[i] * c - b


x = np.random.default_rng(0).random(1 << 24, np.float32)
y = np.zeros_like(x)
small, other = x[: 1 << 20].copy(), y[: 1 << 20].copy()
CASES = {
    "eight loops 16M": (lambda: apart(x, y), 1),
    "the same as one loop 16M": (lambda: by_hand(x, y), 1),
    "eight loops 1M, ndarrays": (lambda: apart(small, other), 10),
    "one loop 1M, ndarrays": (lambda: by_hand(small, other), 10),
}
