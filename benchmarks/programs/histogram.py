"""Histograms of 16 million numbers with 65,536 bins, and with 256, in fields and in ndarrays."""

import numpy as np

import spirograd as sg

N, BINS, FEW = 1 << 24, 65536, 256
numbers, counts, few = sg.field(sg.i32, N), sg.field(sg.i32, BINS), sg.field(sg.i32, FEW)
random = np.random.default_rng(0).integers(0, BINS, N).astype(np.int32)
numbers.from_numpy(random)
array, counts_array = sg.ndarray(sg.i32, (N,)), sg.ndarray(sg.i32, (BINS,))
array.from_numpy(random)


@sg.kernel
def count():
    for i in numbers:
        counts[numbers[i]] += 1


@sg.kernel
def count_few():
    for i in numbers:
        few[numbers[i] & (FEW - 1)] += 1


@sg.kernel
def count_array(x: sg.types.ndarray(sg.i32, 1), into: sg.types.ndarray(sg.i32, 1)):
    for i in range(x.shape[0]):
        into[x[i]] += 1


CASES = {
    "histogram, 65536 bins": (count, 1),
    "histogram, 256 bins": (count_few, 1),
    "histogram, ndarrays": (lambda: count_array(array, counts_array), 1),
}
