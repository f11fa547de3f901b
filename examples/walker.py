"""A body of masses and springs learns to crawl: some springs are muscles, driven by a small network with sine waves as input.

The network (waves -> hidden -> muscles) is learned through the simulation: contact with the ground, friction, and air drag.
"""

import numpy as np
from common import descend, finish, start
from matplotlib import pyplot

import spirograd as sg

DT, STIFFNESS, DAMPING, GRAVITY, STRENGTH = 0.004, 1500.0, 1.5, 9.8, 0.25
WAVES, HIDDEN = 4, 16


def body(boxes):
    """Return boxes in a row with legs below them: positions, and springs as (first, second, whether it is a muscle)."""
    points, springs = {}, {}

    def at(x, y):
        return points.setdefault((x, y), len(points))

    for k in range(boxes):
        legs = k in (0, boxes - 1)
        for y in (0, 1) if legs else (1,):
            a, b, c, d = at(k, y), at(k + 1, y), at(k, y + 1), at(k + 1, y + 1)
            for pair in ((a, b), (c, d), (a, d), (b, c)):
                springs.setdefault(pair, False)
            for pair in ((a, c), (b, d)):
                springs[pair] = y == 0
            if y == 0:
                springs[a, d] = springs[b, c] = True
    place = 0.12 * np.array(list(points), np.float32) + (0.1, 0.02)
    return place.astype(np.float32), np.array([(*pair, muscle) for pair, muscle in springs.items()], np.int32)


@sg.data_oriented
class Walker:
    """A walker that runs for ``steps`` steps of DT seconds. ``goal``: the distance to travel, in lengths of the picture."""

    def __init__(self, steps, goal, boxes=3):
        place, springs = body(boxes)
        self.steps, self.goal, self.masses, self.links = steps, goal, len(place), len(springs)
        self.rest = sg.field(sg.f32, self.links)
        self.spring = sg.Vector.field(3, sg.i32, self.links)
        self.x, self.v, self.force = (sg.Vector.field(2, sg.f32, self.masses, needs_grad=True) for _ in range(3))
        self.hidden = sg.field(sg.f32, HIDDEN, needs_grad=True)
        self.inner = sg.field(sg.f32, (HIDDEN, WAVES), needs_grad=True)
        self.outer = sg.field(sg.f32, (self.links, HIDDEN), needs_grad=True)
        self.loss = sg.field(sg.f32, (), needs_grad=True)
        self.place = place
        self.start = sg.Vector.field(2, sg.f32, self.masses)
        self.start.from_numpy(place)
        self.spring.from_numpy(springs)
        self.rest.from_numpy(np.linalg.norm(place[springs[:, 0]] - place[springs[:, 1]], axis=1).astype(np.float32))
        random = np.random.default_rng(0)
        self.inner.from_numpy(random.normal(0, 1, (HIDDEN, WAVES)).astype(np.float32))
        self.outer.from_numpy(random.normal(0, 0.1, (self.links, HIDDEN)).astype(np.float32))

    @sg.kernel
    def step(self, time: sg.f32):
        for h in self.hidden:
            heard = 0.0
            for w in range(WAVES):
                heard += self.inner[h, w] * sg.sin(12.0 * time + 2.0 * np.pi / WAVES * w)
            self.hidden[h] = sg.tanh(heard)
        for m in self.x:
            self.force[m] = [0.0, -GRAVITY]
        for s in self.spring:
            a, b = self.spring[s][0], self.spring[s][1]
            length = self.rest[s]
            if self.spring[s][2] == 1:
                hidden_sum = 0.0
                for h in range(HIDDEN):
                    hidden_sum += self.outer[s, h] * self.hidden[h]
                length *= 1.0 + STRENGTH * sg.tanh(hidden_sum)
            along = self.x[b] - self.x[a]
            now = along.norm()
            pull = STIFFNESS * (now / length - 1.0) * 0.12 / now * along + DAMPING * 10.0 * (self.v[b] - self.v[a])
            self.force[a] += pull
            self.force[b] -= pull
        for m in self.x:
            v = (self.v[m] + DT * self.force[m]) * (1.0 - 0.2 * DT)
            deep = -self.x[m].y
            if deep > 0.0:  # contact force of the ground, with proportional friction
                push = 4000.0 * deep
                v.y = (v.y + DT * push) / (1.0 + DT * 20.0)
                v.x = v.x / (1.0 + DT * 10.0 * push)
            self.v[m] = v
            self.x[m] += DT * v

    @sg.kernel
    def measure(self):
        for m in self.x:
            self.loss[None] += (self.x[m].x - self.start[m].x - self.goal) ** 2 / self.masses

    def run(self, watch=lambda step: None):
        for step in range(self.steps):
            watch(step)
            self.step(step * DT)
        self.measure()

    def begin(self):
        self.x.from_numpy(self.place)
        self.v.fill(0)
        self.loss[None] = 0.0


def main():
    args = start(__doc__, iterations=(40, 10))
    walker = Walker(*((200, 0.05) if args.quick else (500, 0.3)))

    def evaluate():
        walker.begin()
        with sg.ad.Tape(walker.loss):
            walker.run()
        return walker.loss[None]

    def film():
        seen = []
        walker.begin()
        walker.run(lambda step: seen.append(walker.x.to_numpy()) if step % (walker.steps // 4) == 0 else None)
        return [*seen, walker.x.to_numpy()]

    before = film()
    losses = descend(args.iterations, evaluate, [walker.inner, walker.outer], 0.1)
    draw(walker, before, film(), losses, args.save or args.out / "walker.png")


def draw(walker, before, after, losses, path):
    figure, (upper, lower, right) = pyplot.subplots(1, 3, figsize=(11, 2.4), layout="constrained", width_ratios=(2, 2, 1))
    for axes, snapshots, title in ((upper, before, "before"), (lower, after, "after")):
        for k, x in enumerate(snapshots):
            for a, b, muscle in walker.spring.to_numpy():
                axes.plot(*x[[a, b]].T, color="firebrick" if muscle else "steelblue", alpha=0.25 + 0.15 * k, linewidth=1)
        axes.axhline(0, color="black")
        axes.set(title=title, xlim=(0, 1), ylim=(-0.05, 0.4), aspect="equal", xticks=[], yticks=[])
    right.plot(losses)
    right.set(title="loss", xlabel="iteration")
    figure.savefig(path, dpi=80, bbox_inches="tight")
    finish(path)


main()
