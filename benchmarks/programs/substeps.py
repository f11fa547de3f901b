"""What launches cost in training: 100 substeps of 1,024 elements, forward and then backward, each with an inner loop that needs tapes."""

import numpy as np

import spirograd as sg

N, SUBSTEPS, TURNS = 1024, 100, 4
x = sg.field(sg.f32, (SUBSTEPS + 1, N), needs_grad=True)
turns = sg.field(sg.i32, ())


@sg.kernel
def by_field(t: sg.i32):
    for i in range(N):
        v = x[t, i]
        for _ in range(turns[None]):
            v = sg.sin(v) * 1.1 + 0.1
        x[t + 1, i] = v


@sg.kernel
def by_argument(t: sg.i32, n: sg.i32):
    for i in range(N):
        v = x[t, i]
        for _ in range(n):
            v = sg.sin(v) * 1.1 + 0.1
        x[t + 1, i] = v


def forward():
    for t in range(SUBSTEPS):
        by_field(t)


def both_by_field():
    for t in range(SUBSTEPS):
        by_field(t)
    for t in range(SUBSTEPS - 1, -1, -1):
        by_field.grad(t)


def both_by_argument():
    for t in range(SUBSTEPS):
        by_argument(t, TURNS)
    for t in range(SUBSTEPS - 1, -1, -1):
        by_argument.grad(t, TURNS)


turns[None] = TURNS
start = np.zeros((SUBSTEPS + 1, N), np.float32)
start[0] = np.linspace(0, 1, N)
x.from_numpy(start)
x.grad.fill(1e-3)
CASES = {
    "100 substeps": (forward, 5),
    "100 + 100 grad, field": (both_by_field, 5),
    "100 + 100 grad, argument": (both_by_argument, 5),
}
