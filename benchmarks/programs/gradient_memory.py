"""Bytes that the gradient of a nest of two loops keeps: 100 x 100, lengths known only at run time, four carried floats."""

import spirograd as sg

N, TRIPS = 1024, 100
x, y = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, N, needs_grad=True)
trips = sg.field(sg.i32, 2)


@sg.kernel
def nest():
    for i in x:
        a, b, c, d = x[i], 0.5 * x[i], 1.0, 0.25 + x[i]
        for _j in range(trips[0]):
            for _k in range(trips[1]):
                a, b, c, d = a + 1e-4 * sg.sin(b) * c, b - 1e-4 * sg.cos(a) * d, c + 1e-4 * sg.sin(d), d - 1e-4 * sg.cos(c)
        y[i] = a + b + c + d


def gradient():
    y.grad.fill(1.0)
    nest.grad()


trips.fill(TRIPS)
nest()
x.fill(0.3)
CASES = {"nest 1k x 100 x 100": (nest, 1), "nest, gradient": (gradient, 1)}
TAPES = {"tapes of the nest": (nest, gradient)}
