"""The Mandelbrot set, 1,024 x 1,024 pixels, at most 500 steps: `while` loops that end at different times for neighbours."""

import spirograd as sg

N, MOST = 1024, 500
steps = sg.field(sg.i32, (N, N))


@sg.kernel
def mandelbrot():
    for i, j in steps:
        cx, cy = -2.0 + 3.0 * j / N, -1.5 + 3.0 * i / N
        x, y = 0.0, 0.0
        n = 0
        while n < MOST and x * x + y * y < 4.0:
            x, y = x * x - y * y + cx, 2.0 * x * y + cy
            n += 1
        steps[i, j] = n


CASES = {"mandelbrot 1024^2 x 500": (mandelbrot, 1)}
