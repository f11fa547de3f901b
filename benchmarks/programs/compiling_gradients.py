"""The first call of a gradient: tracing, differentiating, compiling.

Each measurement compiles a new kernel, with a random constant, which no cache knows.
"""

import random

import spirograd as sg

x, y = sg.field(sg.f32, 64, needs_grad=True), sg.field(sg.f32, 64, needs_grad=True)
trips = sg.field(sg.i32, 3)
_random = random.Random()


def make():
    own = 1.0 + _random.random()

    @sg.kernel
    def nest():
        for i in x:
            a, b = x[i], own
            for j in range(trips[0]):
                b = b * 0.9 + a
                for k in range(trips[1]):
                    a = sg.sin(a) + 0.1 * b
                    for _ in range(trips[2]):
                        a, b = a * sg.cos(b), 0.5 * (a + b) + x[(i + j + k) % 64]
            y[i] = a * b

    return nest


trips.fill(2)
x.fill(0.1)
CASES = {
    "compile 3-deep nest": (lambda: make()(), 1),
    "compile its gradient": (lambda: make().grad(), 1),
}
