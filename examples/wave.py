"""Waves through a double slit: the wave equation on a grid, by finite differences.

Second order in time and space: u(t+1) = 2 u(t) - u(t-1) + (c dt/dx)^2 * Laplacian of u(t); stable for c dt/dx < 1/sqrt(2).
"""

import math

from common import finish, start
from matplotlib import pyplot

import spirograd as sg

COURANT = 0.5  # c dt / dx
PERIOD = 24.0  # steps in one period of the source


def main():
    args = start(__doc__)
    n = 96 if args.quick else 480
    steps = 60 if args.quick else 900
    waves = [sg.field(sg.f32, shape=(n, n)) for _ in range(3)]  # previous, current and next step
    open_ = sg.field(sg.u8, shape=(n, n))  # 0 inside of walls

    @sg.kernel
    def build():
        for i, j in open_:
            in_slit = abs(abs(j - n // 2) - n // 12) < n // 60 + 1
            open_[i, j] = sg.cast(0 if i == n // 3 and not in_slit else 1, sg.u8)

    @sg.kernel
    def step(before: sg.Template, now: sg.Template, after: sg.Template, t: sg.f32):
        for i, j in now:
            around = 0.0
            for axis in sg.static(range(2)):
                for side in sg.static((-1, 1)):
                    x = i + side if sg.static(axis == 0) else i
                    y = j + side if sg.static(axis == 1) else j
                    if 0 <= x < n and 0 <= y < n:
                        around += now[x, y]
            value = 2.0 * now[i, j] - before[i, j] + COURANT**2 * (around - 4.0 * now[i, j])
            # A band along the edges absorbs waves, to avoid reflections.
            rim = sg.min(i, j, n - 1 - i, n - 1 - j)
            if rim < 20:
                value *= 1.0 - 0.0004 * (20 - rim) ** 2
            after[i, j] = value * open_[i, j]
        for j in range(n):
            after[20, j] = sg.sin(t)

    build()
    for t in range(steps):
        before, now, after = (waves[(t + k) % 3] for k in range(3))
        step(before, now, after, 2.0 * math.pi * t / PERIOD)
    path = args.out / "wave.png"
    pyplot.imsave(path, waves[(steps + 1) % 3].to_numpy().T, cmap="RdBu", vmin=-0.4, vmax=0.4)
    finish(path)


main()
