"""Histograms of 16 million numbers with 65,536 bins, and with 256: each thread counts in a copy."""

import numba
import numpy as np

N, BINS, FEW = 1 << 24, 65536, 256
numbers = np.random.default_rng(0).integers(0, BINS, N).astype(np.int32)
counts, few = np.zeros(BINS, np.int32), np.zeros(FEW, np.int32)


@numba.njit(parallel=True)
def count(x, into):
    threads = numba.get_num_threads()
    copies = np.zeros((threads, into.size), np.int32)
    for t in numba.prange(threads):
        for i in range(t * x.size // threads, (t + 1) * x.size // threads):
            copies[t, x[i] & (into.size - 1)] += 1
    for k in numba.prange(into.size):
        for t in range(threads):
            into[k] += copies[t, k]


CASES = {
    "histogram, 65536 bins": (lambda: count(numbers, counts), 1),
    "histogram, 256 bins": (lambda: count(numbers, few), 1),
    "histogram, ndarrays": (lambda: count(numbers, counts), 1),
}
