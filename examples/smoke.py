"""Blow smoke into the shape of a flower: control of a fluid by winds, whose gradient needs little memory because of checkpoints.

Stable fluids (J. Stam, 1999) on a periodic grid: smoke and velocities are carried along, winds are added, and the pressure that keeps the
fluid incompressible comes from Jacobi's iteration. Winds on a coarse grid change with time; all of them are learned at once. A tape that
saves each step and one with checkpoints give the same bits.
"""

import numpy as np
from common import descend, finish, start
from matplotlib import pyplot

import spirograd as sg

SWEEPS, COARSE, PERIOD = 20, 8, 10  # iterations for the pressure, size of the grid of winds, steps for which a wind blows


@sg.data_oriented
class Smoke:
    """Smoke on ``n`` x ``n`` cells in numbers of type ``t``, which is to have the shape ``target`` after ``steps`` steps."""

    def __init__(self, n, steps, begin, target, t=sg.f32):
        self.n, self.steps, self.t = n, steps, t
        self.wind = sg.Vector.field(2, t, (-(-steps // PERIOD), COARSE, COARSE), needs_grad=True)
        self.v, self.carried_v = (sg.Vector.field(2, t, (n, n), needs_grad=True) for _ in range(2))
        self.smoke, self.carried, self.p, self.new_p, self.source = (sg.field(t, (n, n), needs_grad=True) for _ in range(5))
        self.begin, self.target = sg.field(t, (n, n)), sg.field(t, (n, n))
        self.loss = sg.field(t, (), needs_grad=True)
        self.begin.from_numpy(begin)
        self.target.from_numpy(target)

    @sg.func
    def sample(self, values, place):
        """Values between the points of a periodic grid, by linear interpolation."""
        low = sg.floor(place)
        f, a = place - low, sg.cast(low, sg.i32) % values.shape[0]
        b = (a + 1) % values.shape[0]
        left = values[a.x, a.y] * (1.0 - f.y) + values[a.x, b.y] * f.y
        right = values[b.x, a.y] * (1.0 - f.y) + values[b.x, b.y] * f.y
        return left * (1.0 - f.x) + right * f.x

    @sg.kernel
    def start(self):
        for i, j in self.v:
            self.v[i, j] = [0.0, 0.0]
            self.smoke[i, j] = self.begin[i, j]

    @sg.kernel
    def carry(self, period: sg.i32):
        for i, j in self.v:
            here = sg.cast(sg.Vector([i, j]), self.t)
            origin = here - self.v[i, j]
            wind = self.sample(self.wind[period, :, :], here * (COARSE / self.n))
            self.carried_v[i, j] = self.sample(self.v, origin) + wind
            self.carried[i, j] = self.sample(self.smoke, origin)
            self.p[i, j] = 0.0

    @sg.func
    def around(self, i, j):
        """The neighbours of a cell in x and in y."""
        return (i + 1) % self.n, (i - 1) % self.n, (j + 1) % self.n, (j - 1) % self.n

    @sg.kernel
    def relax(self, old: sg.Template, new: sg.Template):
        for i, j in old:
            e, w, n, s = self.around(i, j)
            v = self.carried_v
            divergence = v[e, j].x - v[w, j].x + v[i, n].y - v[i, s].y
            new[i, j] = 0.25 * (old[e, j] + old[w, j] + old[i, n] + old[i, s] - 0.5 * divergence)

    @sg.kernel
    def project(self):
        for i, j in self.v:
            e, w, n, s = self.around(i, j)
            self.v[i, j] = self.carried_v[i, j] - 0.5 * sg.Vector([self.p[e, j] - self.p[w, j], self.p[i, n] - self.p[i, s]])
            self.smoke[i, j] = self.carried[i, j]

    @sg.kernel
    def measure(self):
        for i, j in self.smoke:
            self.loss[None] += (self.smoke[i, j] - self.target[i, j]) ** 2 / self.n**2

    def run(self, watch=lambda step: None):
        self.start()
        for step in range(self.steps):
            watch(step)
            self.carry(step // PERIOD)
            for _ in range(SWEEPS // 2):
                self.relax(self.p, self.new_p)
                self.relax(self.new_p, self.p)
            self.project()
        self.measure()

    def evaluate(self, **limits):
        """Compute the gradient of the loss, and return the tape. ``limits``: of its memory."""
        with sg.ad.Tape(self.loss, **limits) as tape:
            self.run()
        return tape


def shape(n, petals, radius):
    """Return a disc, or a flower with ``petals``, of about the same area: 1 inside, 0 outside, soft in between."""
    x, y = np.mgrid[:n, :n] / n - 0.5
    edge = radius * (1 + (0.35 * np.cos(petals * np.arctan2(y, x)) if petals else 0))
    return 1 / (1 + np.exp((np.hypot(x, y) - edge) * 60))


def main():
    args = start(__doc__, iterations=(50, 10))
    n, steps, memory_GB = (24, 20, 5e-5) if args.quick else (48, 40, 4e-4)
    smoke = Smoke(n, steps, shape(n, 0, 0.25), shape(n, 5, 0.24))
    plain = smoke.evaluate().memory_report()
    gradient = smoke.wind.grad.to_numpy()
    repetitions = smoke.evaluate(memory_GB=memory_GB).memory_report().repetitions
    assert repetitions is not None, "the tape fits into the memory without checkpoints"
    same = "the same" if np.array_equal(smoke.wind.grad.to_numpy(), gradient) else "other"
    print(f"a tape saves {plain.total:,} bytes, one with checkpoints {repetitions.peak:,} at most: {same} gradients")

    def evaluate():
        smoke.evaluate(memory_GB=memory_GB)
        return smoke.loss[None]

    losses = descend(args.iterations, evaluate, [smoke.wind], 0.02)
    seen = []
    smoke.run(lambda step: seen.append(smoke.smoke.to_numpy()) if step % (steps // 3 + 1) == 0 else None)
    draw([*seen, smoke.smoke.to_numpy()], smoke.target.to_numpy(), losses, args.save or args.out / "smoke.png")


def draw(seen, target, losses, path):
    figure, axes = pyplot.subplots(1, len(seen) + 2, figsize=(12, 2.4), layout="constrained")
    titles = [*(f"at {k}/{len(seen) - 1}" for k in range(len(seen))), "target"]
    for axis, picture, title in zip(axes, [*seen, target], titles):
        axis.imshow(picture.T, origin="lower", cmap="bone", vmin=0, vmax=1)
        axis.set(title=title, xticks=[], yticks=[])
    axes[-1].semilogy(losses)
    axes[-1].set(title="loss", xlabel="iteration")
    figure.savefig(path, dpi=80, bbox_inches="tight")
    finish(path)


if __name__ == "__main__":
    main()
