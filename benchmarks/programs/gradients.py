"""Gradients of loops whose length is known only at run time: 1,000,000 iterations, each with an inner loop of 64 or of 512.

`gradient` does what the forward run does, and walks it backwards.
"""

import numpy as np

import spirograd as sg

N, TRIPS, MANY = 1_000_000, 64, 512
x, y = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, N, needs_grad=True)
trips, many = sg.field(sg.i32, ()), sg.field(sg.i32, ())


@sg.kernel
def chain():
    for i in x:
        v = x[i]
        for _ in range(trips[None]):
            v = sg.sin(v) * 1.1 + 0.1
        y[i] = v


@sg.kernel
def long_chain():
    for i in x:
        v = x[i]
        for _ in range(many[None]):
            v = sg.sin(v) * 1.1 + 0.1
        y[i] = v


def gradient():
    y.grad.fill(1.0)
    chain.grad()


def long_gradient():
    y.grad.fill(1.0)
    long_chain.grad()


x.from_numpy(np.linspace(0, 1, N, dtype=np.float32))
trips[None] = TRIPS
many[None] = MANY
CASES = {
    "chain 1M x 64": (chain, 1),
    "chain 1M x 64, gradient": (gradient, 1),
    "chain 1M x 512": (long_chain, 1),
    "chain 1M x 512, gradient": (long_gradient, 1),
}
RATIOS = {
    "chain, gradient / forward": ("chain 1M x 64, gradient", "chain 1M x 64"),
    "x 512, gradient / forward": ("chain 1M x 512, gradient", "chain 1M x 512"),
}
