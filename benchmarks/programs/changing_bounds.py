"""Gradients of loops whose bounds change at each launch, against the same with bounds that stay: 65,536 iterations of about 50 trips.

Eight launches lie between two waits. Bounds go up and down around what they are when they stay, so that the work is the same. They are
one number in a field, or one for each iteration; they are written by Python, or by a kernel. Where they stay, as many launches and writes
go to memory that no bound is read from.
"""

import numpy as np

import spirograd as sg

N, TRIPS, LAUNCHES = 65536, 50, 8
x, y = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, N, needs_grad=True)
trips, unrelated = sg.field(sg.i32, ()), sg.field(sg.i32, ())
lengths, others = sg.field(sg.i32, N), sg.field(sg.i32, N)


@sg.kernel
def alike():
    for i in x:
        v = x[i]
        for _ in range(trips[None]):
            v = sg.sin(v) * 1.1 + 0.1
        y[i] = v


@sg.kernel
def ragged():
    for i in x:
        v = x[i]
        for _ in range(lengths[i]):
            v = sg.sin(v) * 1.1 + 0.1
        y[i] = v


@sg.kernel
def set_one(target: sg.template(), n: sg.i32):
    target[None] = n


@sg.kernel
def set_all(target: sg.template(), n: sg.i32):
    for i in target:
        target[i] = n - 8 + i % 17


def several(kernel, write):
    """Launch the gradient some times, with ``write`` of the next bound in front."""

    def run():
        for k in range(LAUNCHES):
            write(TRIPS + (-3, 3, -1, 1)[k % 4])
            kernel.grad()
        sg.sync()

    return run


def from_python(target):
    def write(n):
        target[None] = n

    return write


x.from_numpy(np.linspace(0, 1, N, dtype=np.float32))
y.grad.fill(1e-6)
trips[None] = TRIPS
set_all(lengths, TRIPS)
FIXED = [
    (several(alike, lambda n: None), "one bound, fixed"),
    (several(alike, from_python(unrelated)), "one, fixed, Python writes"),
    (several(alike, lambda n: set_one(unrelated, n)), "one, fixed, kernel writes"),
    (several(ragged, lambda n: set_all(others, n)), "each, fixed, kernel writes"),
]
CHANGING = [
    (several(alike, from_python(trips)), "one, changed by Python"),
    (several(alike, lambda n: set_one(trips, n)), "one, changed by a kernel"),
    (several(ragged, lambda n: set_all(lengths, n)), "each, changed by a kernel"),
]
CASES = {name: (run, 1) for run, name in (*FIXED, *CHANGING)}
RATIOS = {
    "Python, changed / fixed": ("one, changed by Python", "one, fixed, Python writes"),
    "kernel, changed / fixed": ("one, changed by a kernel", "one, fixed, kernel writes"),
    "each, changed / fixed": ("each, changed by a kernel", "each, fixed, kernel writes"),
}
