"""What launches cost in training: 100 substeps of 1,024 elements, forward and then backward, each with an inner loop that needs tapes.

The trip count of the loops is 4, where launches are what counts, or 16. Gradients are launched one by one, or by a tape.
"""

import numpy as np

import spirograd as sg

N, SUBSTEPS, TRIPS, MANY = 1024, 100, 4, 16
x = sg.field(sg.f32, (SUBSTEPS + 1, N), needs_grad=True)
loss = sg.field(sg.f32, (), needs_grad=True)
trips, many = sg.field(sg.i32, ()), sg.field(sg.i32, ())


@sg.kernel
def by_field(t: sg.i32):
    for i in range(N):
        v = x[t, i]
        for _ in range(trips[None]):
            v = sg.sin(v) * 1.1 + 0.1
        x[t + 1, i] = v


@sg.kernel
def longer(t: sg.i32):
    for i in range(N):
        v = x[t, i]
        for _ in range(many[None]):
            v = sg.sin(v) * 1.1 + 0.1
        x[t + 1, i] = v


@sg.kernel
def by_argument(t: sg.i32, n: sg.i32):
    for i in range(N):
        v = x[t, i]
        for _ in range(n):
            v = sg.sin(v) * 1.1 + 0.1
        x[t + 1, i] = v


@sg.kernel
def measure():
    for i in range(N):
        loss[None] += x[SUBSTEPS, i]


def both(kernel, *args):
    """All substeps, and back."""

    def run():
        for t in range(SUBSTEPS):
            kernel(t, *args)
        for t in range(SUBSTEPS - 1, -1, -1):
            kernel.grad(t, *args)

    return run


def forward():
    for t in range(SUBSTEPS):
        by_field(t)


def on_a_tape():
    with sg.ad.Tape(loss):
        for t in range(SUBSTEPS):
            by_field(t)
        measure()


trips[None] = TRIPS
many[None] = MANY
start = np.zeros((SUBSTEPS + 1, N), np.float32)
start[0] = np.linspace(0, 1, N)
x.from_numpy(start)
x.grad.fill(1e-3)
CASES = {
    "100 substeps": (forward, 5),
    "100 + 100 grad, field": (both(by_field), 5),
    "100 + 100 grad, 16 trips": (both(longer), 5),
    "100 + 100 grad, argument": (both(by_argument, TRIPS), 5),
    "100 + 100 on a tape": (on_a_tape, 5),
}
