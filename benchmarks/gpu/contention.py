"""More rows in the language of the family: atomics of many iterations on few elements, of which some fit into shared memory; nests."""

import importlib
import os

import numpy as np

from benchmarks.gpu.program import Program, image, samples

sg = importlib.import_module(os.environ["BENCHMARKED"])


def _updates(n, target, make):
    """A program that updates ``target`` at places that an index names; ``make`` takes the index and numbers."""
    index, x = sg.field(sg.i32, shape=n), sg.field(sg.f32, shape=n)

    @sg.kernel
    def fill():
        for i in index:
            index[i] = (i * 7919 + (i >> 5)) % 8000
            x[i] = (i % 1000) * 0.001

    kernel = make(index, x)

    def result():
        target.fill(0)
        kernel()
        return target.to_numpy()

    fill()
    return [Program(kernel, result)]


def counts_256(n):
    counts = sg.field(sg.i32, shape=256)

    def make(index, x):
        @sg.kernel
        def count():
            for i in index:
                counts[index[i] & 255] += 1

        return count

    return _updates(n, counts, make)


def counts_8000(n):
    counts = sg.field(sg.i32, shape=8000)

    def make(index, x):
        @sg.kernel
        def count():
            for i in index:
                counts[index[i]] += 1

        return count

    return _updates(n, counts, make)


def sums_f32(n):
    sums = sg.field(sg.f32, shape=256)

    def make(index, x):
        @sg.kernel
        def add():
            for i in index:
                sums[index[i] & 255] += x[i]

        return add

    return _updates(n, sums, make)


def sums_f16(n):
    sums = sg.field(sg.f16, shape=256)

    def make(index, x):
        @sg.kernel
        def add():
            for i in index:
                sums[index[i] & 255] += sg.cast(1, sg.f16)

        return add

    return _updates(n, sums, make)


def maxima(n):
    largest = sg.field(sg.f32, shape=256)

    def make(index, x):
        @sg.kernel
        def maxima():
            for i in index:
                sg.atomic_max(largest[index[i] & 255], x[i])

        return maxima

    return _updates(n, largest, make)


def look_up(n):
    """The gradient of sums over a table."""
    table, loss = sg.field(sg.f32, shape=256, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    def make(index, x):
        @sg.kernel
        def look_up():
            for i in index:
                loss[None] += table[index[i] & 255]

        return look_up.grad

    loss.grad[None] = 1.0
    return _updates(n, table.grad, make)


def copy_2d(n):
    a, b = sg.field(sg.f32, shape=(n, n)), sg.field(sg.f32, shape=(n, n))

    @sg.kernel
    def copy():
        for i, j in a:
            b[i, j] = a[i, j]

    def result():
        copy()
        return b.to_numpy().reshape(-1)[samples(n * n)]

    a.from_numpy(image(n))
    return [Program(copy, result)]


def nests(size):
    """The gradient of nests of two loops whose lengths are in a field: few iterations of the outermost loop, each of which does much."""
    n, trips = size
    x, y = sg.field(sg.f32, shape=n, needs_grad=True), sg.field(sg.f32, shape=n, needs_grad=True)
    counts = sg.field(sg.i32, shape=2)

    @sg.kernel
    def nest():
        for i in x:
            a, b = x[i], 0.5 * x[i]
            for _j in range(counts[0]):
                for _k in range(counts[1]):
                    a, b = a + 1e-4 * sg.sin(b), b - 1e-4 * sg.cos(a)
            y[i] = a + b

    def result():
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        nest.grad()
        return np.asarray(x.grad.to_numpy()[samples(n)])

    x.fill(0.3)
    y.grad.fill(1.0)
    counts.fill(trips)
    return [Program(nest.grad, result)]
