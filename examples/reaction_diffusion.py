"""Fit the parameters of a pattern: feed, kill and diffusion of the Gray-Scott model from a picture of its state.

There are two substances: u is fed, v consumes it (u + 2v -> 3v) and decays. The four parameters are learned from the last state alone.
"""

import numpy as np
from common import descend, finish, start
from matplotlib import pyplot

import spirograd as sg

NAMES = ("feed", "kill", "diffusion of u", "diffusion of v")
TRUE = np.array([0.055, 0.062, 0.16, 0.08], np.float32)
GUESS = np.array([0.045, 0.058, 0.19, 0.095], np.float32)
UNITS = 0.25 * GUESS  # the parameters differ in size, so each is learned in units of its own


@sg.data_oriented
class GrayScott:
    """``n`` x ``n`` cells with periodic edges, run for ``steps`` steps of time 1."""

    def __init__(self, n, steps):
        self.n, self.steps = n, steps
        self.now, self.then = (sg.Vector.field(2, sg.f32, (n, n), needs_grad=True) for _ in range(2))
        self.numbers = sg.field(sg.f32, 4, needs_grad=True)
        self.picture = sg.Vector.field(2, sg.f32, (n, n))
        self.loss = sg.field(sg.f32, (), needs_grad=True)
        self.first = np.stack([np.ones((n, n)), np.zeros((n, n))], axis=-1).astype(np.float32)
        for x, y in np.random.default_rng(1).integers(0, n - 8, (max(3, n // 10), 2)):
            self.first[x : x + 6, y : y + 6] = (0.5, 0.5)

    @sg.kernel
    def react(self, now: sg.Template, then: sg.Template):
        for i, j in now:
            n = self.n
            around = now[(i + 1) % n, j] + now[(i + n - 1) % n, j] + now[i, (j + 1) % n] + now[i, (j + n - 1) % n] - 4.0 * now[i, j]
            u, v = now[i, j].x, now[i, j].y
            eaten = u * v * v
            feed, kill = self.numbers[0] * UNITS[0], self.numbers[1] * UNITS[1]
            then[i, j].x = u + self.numbers[2] * UNITS[2] * around.x - eaten + feed * (1.0 - u)
            then[i, j].y = v + self.numbers[3] * UNITS[3] * around.y + eaten - (feed + kill) * v

    @sg.kernel
    def compare(self):
        for i, j in self.picture:
            self.loss[None] += (self.now[i, j] - self.picture[i, j]).norm_sqr() / self.n**2

    def run(self):
        for _ in range(self.steps // 2):
            self.react(self.now, self.then)
            self.react(self.then, self.now)
        self.compare()

    def begin(self):
        self.now.from_numpy(self.first)
        self.loss[None] = 0.0

    def pattern(self, numbers):
        """Return the final amounts of u and v for four parameters."""
        self.numbers.from_numpy(numbers / UNITS)
        self.begin()
        self.run()
        return self.now.to_numpy()


def main():
    args = start(__doc__, iterations=(80, 25))
    model = GrayScott(*((32, 60) if args.quick else (64, 200)))
    wanted = model.pattern(TRUE)
    before = model.pattern(GUESS)
    model.picture.from_numpy(wanted)

    def evaluate():
        model.begin()
        with sg.ad.Tape(model.loss):
            model.run()
        return model.loss[None]

    losses = descend(args.iterations, evaluate, [model.numbers], 0.1)
    found = model.numbers.to_numpy() * UNITS
    for name, true, guess, value in zip(NAMES, TRUE, GUESS, found):
        print(f"{name:15} guess {guess:.4f}  found {value:.4f}  true {true:.4f}")
    draw((before, model.pattern(found), wanted), losses, args.save or args.out / "reaction_diffusion.png")


def draw(patterns, losses, path):
    figure, axes = pyplot.subplots(1, 4, figsize=(10, 2.6), layout="constrained")
    for at, image, title in zip(axes, patterns, ("guess", "found", "wanted")):
        at.imshow(image[..., 1], cmap="magma", vmin=0, vmax=0.4)
        at.set(title=title, xticks=[], yticks=[])
    axes[3].semilogy(losses)
    axes[3].set(title="loss", xlabel="iteration")
    figure.savefig(path, dpi=80, bbox_inches="tight")
    finish(path)


main()
