"""Two discs of stars that pass through each other: gravity between all pairs.

Leapfrog (kick, drift, kick in one, Verlet 1967) with softened gravity (Plummer 1911), in units where G and the whole mass are 1.
"""

import numpy as np
from common import finish, start
from matplotlib import pyplot

import spirograd as sg

SOFTENING = 0.15


def disc(rng, count, centre, velocity):
    """Return positions and velocities, shape (count, 3), of ``count`` stars on circles around ``centre``."""
    radius, angle = 0.1 + 0.9 * np.sqrt(rng.random(count)), 2 * np.pi * rng.random(count)
    # Half of the mass is in each disc; the mass inside of a star's circle grows with the area.
    speed = np.sqrt(0.5 * radius**2 / np.sqrt(radius**2 + SOFTENING**2))
    position = np.stack([radius * np.cos(angle), radius * np.sin(angle), 0.05 * rng.standard_normal(count)], axis=1)
    motion = np.stack([-speed * np.sin(angle), speed * np.cos(angle), np.zeros(count)], axis=1)
    return position + centre, motion + velocity


def main():
    args = start(__doc__)
    n = 128 if args.quick else 4096
    steps = 5 if args.quick else 150
    star = sg.types.struct(position=sg.types.vector(3, sg.f32), velocity=sg.types.vector(3, sg.f32))
    stars = star.field(shape=n)

    @sg.kernel
    def kick(dt: sg.f32):
        for a in range(n):
            here = stars[a].position
            force = sg.Vector([0.0, 0.0, 0.0])
            for b in range(n):
                d = stars[b].position - here
                inverse = sg.rsqrt(d.norm_sqr() + SOFTENING**2)
                force += d * (inverse * inverse * inverse / n)
            stars[a].velocity += dt * force

    @sg.kernel
    def drift(dt: sg.f32):
        for a in range(n):
            stars[a].position += dt * stars[a].velocity

    rng = np.random.default_rng(1)
    halves = [disc(rng, n // 2, [-1.2, -0.4, 0.0], [0.35, 0.0, 0.1]), disc(rng, n // 2, [1.2, 0.4, 0.2], [-0.35, 0.0, -0.1])]
    position, velocity = (np.concatenate(parts).astype(np.float32) for parts in zip(*halves))
    stars.from_numpy({"position": position, "velocity": velocity})
    dt = 0.02
    for _ in range(steps):
        kick(dt)
        drift(dt)
    after = stars.to_numpy()
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 5), layout="constrained")
    for axis, points, title in zip(axes, (position, after["position"]), ("before", f"after {steps} steps")):
        axis.set(xlim=(-3, 3), ylim=(-3, 3), aspect="equal", title=title, facecolor="black", xticks=[], yticks=[])
        axis.scatter(points[: n // 2, 0], points[: n // 2, 1], s=0.5, color="orange")
        axis.scatter(points[n // 2 :, 0], points[n // 2 :, 1], s=0.5, color="skyblue")
    path = args.out / "nbody.png"
    figure.savefig(path, dpi=100)
    finish(path)


main()
