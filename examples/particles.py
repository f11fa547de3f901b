"""Particles in a flow, stored as struct of arrays and as array of structs: one kernel, two placements.

The flow is the double gyre of Shadden, Lekien and Marsden, "Definition and properties of Lagrangian coherent structures", Physica D
212 (2005): two vortices side by side whose border swings, so that they mix.
"""

import math
import time

import numpy as np
from common import finish, start
from matplotlib import pyplot

import spirograd as sg


def place(n, layout):
    """Return the fields position, age and home of ``n`` particles: each in an array of its own (SOA), or adjacent per particle (AOS)."""
    position, age, home = sg.Vector.field(2, sg.f32), sg.field(sg.f32), sg.field(sg.i32)
    if layout == "SOA":
        sg.root.dense(sg.i, n).place(position)
        sg.root.dense(sg.i, n).place(age)
        sg.root.dense(sg.i, n).place(home)
    else:
        sg.root.dense(sg.i, n).place(position, age, home)
    return position, age, home


@sg.func
def flow(x, t):
    """Return the velocity at ``x`` in [0, 2] x [0, 1] at time ``t``."""
    swing = 0.25 * sg.sin(2.0 * math.pi * t / 10.0)
    f = swing * x[0] ** 2 + (1.0 - 2.0 * swing) * x[0]
    slope = 2.0 * swing * x[0] + 1.0 - 2.0 * swing
    along, across = math.pi * f, math.pi * x[1]
    return 0.1 * math.pi * sg.Vector([-sg.sin(along) * sg.cos(across), sg.cos(along) * sg.sin(across) * slope])


@sg.kernel
def scatter(position: sg.Template, age: sg.Template, home: sg.Template):
    for p in position:
        position[p] = [2.0 * sg.random(), sg.random()]
        age[p] = 0.0
        home[p] = 0 if position[p][0] < 1.0 else 1


@sg.kernel
def advance(position: sg.Template, age: sg.Template, t: sg.f32, dt: sg.f32):
    for p in position:
        middle = position[p] + 0.5 * dt * flow(position[p], t)  # the midpoint method
        position[p] += dt * flow(middle, t + 0.5 * dt)
        age[p] += dt


def main():
    args = start(__doc__)
    n = 2000 if args.quick else 200_000
    steps = 5 if args.quick else 400
    dt = 0.05
    for layout in ("AOS", "SOA"):
        position, age, home = place(n, layout)
        scatter(position, age, home)
        advance(position, age, 0.0, 0.0)  # compile the kernel
        sg.sync()
        begin = time.perf_counter()
        for k in range(steps):
            advance(position, age, k * dt, dt)
        sg.sync()
        print(f"{layout}: {(time.perf_counter() - begin) / steps * 1e3:.3f} ms per step for {n:,} particles")
    assert np.allclose(age.to_numpy(), steps * dt, rtol=1e-4)
    places, homes = position.to_numpy(), home.to_numpy()
    figure, axis = pyplot.subplots(figsize=(10, 5.2), layout="constrained")
    axis.scatter(places[:, 0], places[:, 1], c=homes, s=0.2, cmap="coolwarm", linewidths=0)
    axis.set(xlim=(0, 2), ylim=(0, 1), aspect="equal", title=f"double gyre after {steps * dt:g} s; colour: where a particle came from")
    path = args.out / "particles.png"
    figure.savefig(path, dpi=100)
    finish(path)


main()
