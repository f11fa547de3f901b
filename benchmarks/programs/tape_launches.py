"""A call of the gradient of a loop whose length is in memory, so that it needs a tape, and which does next to nothing."""

import spirograd as sg

x, y = sg.field(sg.f32, 16, needs_grad=True), sg.field(sg.f32, 16, needs_grad=True)
trips = sg.field(sg.i32, ())


@sg.kernel
def chain():
    for i in x:
        v = x[i]
        for _ in range(trips[None]):
            v = sg.sin(v) * 1.1 + 0.1
        y[i] = v


trips[None] = 4
CASES = {"launch: gradient with a tape": (chain.grad, 2000)}
