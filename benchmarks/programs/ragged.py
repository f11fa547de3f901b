"""Nests whose inner loop runs from one bound in memory to the next, as in sparse matrices: 65,536 rows of 0 to 128 chained steps.

Bounds lie in a field, or in an array; gradients too.
"""

import numpy as np

import spirograd as sg

ROWS, MOST = 65536, 128
x, y = sg.field(sg.f32, ROWS, needs_grad=True), sg.field(sg.f32, ROWS, needs_grad=True)
starts = sg.field(sg.i32, ROWS + 1)


@sg.kernel
def by_field():
    for i in x:
        v = x[i]
        for _ in range(starts[i], starts[i + 1]):
            v = sg.sin(v) * 0.9 + 0.1
        y[i] = v


@sg.kernel
def by_array(bounds: sg.types.ndarray(sg.i32, 1)):
    for i in x:
        v = x[i]
        for _ in range(bounds[i], bounds[i + 1]):
            v = sg.sin(v) * 0.9 + 0.1
        y[i] = v


lengths = np.random.default_rng(0).integers(0, MOST + 1, ROWS)
offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
starts.from_numpy(offsets)
array = sg.ndarray(sg.i32, (ROWS + 1,))
array.from_numpy(offsets)
x.from_numpy(np.linspace(0, 1, ROWS, dtype=np.float32))
y.grad.fill(1.0)


def call(run):
    def timed():
        run()
        sg.sync()

    return timed


CASES = {
    "ragged, field": (call(by_field), 1),
    "ragged, field, gradient": (call(by_field.grad), 1),
    "ragged, array": (call(lambda: by_array(array)), 1),
    "ragged, array, gradient": (call(lambda: by_array.grad(array)), 1),
}
