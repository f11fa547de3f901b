"""Find how stiff a cloth is from a film of it: system identification, by least squares over the whole motion.

The cloth hangs at two corners and swings down. Its triangles are of St. Venant and Kirchhoff's material with viscosity, and air slows them
down. A camera sees a few markers, with noise. The simulation is one function from three unknown constants to the distances between markers
in the film and in the simulation, which the method of Levenberg and Marquardt makes small.
"""

import numpy as np
from common import finish, start
from matplotlib import pyplot

import spirograd as sg

SIDE, DENSITY, GRAVITY, POISSON = 1.0, 0.2, 9.8, 0.3
NAMES = "stiffness (N/m)", "viscosity (Ns/m)", "drag (Ns/m^3)"
GUESS, TRUTH = (60.0, 0.05, 0.05), (150.0, 0.2, 0.3)


@sg.data_oriented
class Cloth:
    """A square cloth of ``n`` x ``n`` points in numbers of type ``t``, filmed in ``frames`` frames that are ``apart`` steps apart."""

    def __init__(self, n, frames, apart, t=sg.f32):
        self.n, self.frames, self.apart, self.t, self.h = n, frames, apart, t, SIDE / (n - 1)
        self.mass, self.dt = DENSITY * SIDE**2 / n**2, 0.006 * self.h
        self.x, self.v, self.force = (sg.Vector.field(3, t, (n, n), needs_grad=True) for _ in range(3))
        self.unknown = sg.field(t, 3, needs_grad=True)  # logarithms of the constants, relative to the guess
        markers = (frames, (n + 2) // 3, (n + 2) // 3)
        self.film = sg.Vector.field(3, t, markers)
        self.miss = sg.Vector.field(3, t, markers, needs_grad=True)
        self.simulate = sg.ad.program(self.run, inputs=self.unknown, outputs=self.miss)

    @sg.func
    def constant(self, k: sg.Template):
        return GUESS[k] * sg.exp(self.unknown[k])

    @sg.kernel
    def begin(self):
        for i, j in self.x:
            self.x[i, j] = self.h * sg.Vector([i, 0.0, j])
            self.v[i, j] = [0.0, 0.0, 0.0]

    @sg.kernel
    def step(self):
        for i, j in self.force:
            self.force[i, j] = sg.Vector([0.0, -GRAVITY * self.mass, 0.0]) - self.constant(2) * self.h**2 * self.v[i, j]
        for i, j in sg.ndrange(self.n - 1, self.n - 1):
            for side in sg.static((1, -1)):  # a square is two triangles: at its first corner, and at the one opposite
                a = sg.Vector([i, j]) + sg.static((1 - side) // 2)
                b, c = a + sg.Vector([side, 0]), a + sg.Vector([0, side])
                F = sg.Matrix.cols([self.x[b] - self.x[a], self.x[c] - self.x[a]]) * (side / self.h)
                rate = sg.Matrix.cols([self.v[b] - self.v[a], self.v[c] - self.v[a]]) * (side / self.h)
                strain = 0.5 * (F.transpose() @ F - sg.Matrix.identity(self.t, 2))
                product = F.transpose() @ rate
                stress = (1 - POISSON) * strain + POISSON * strain.trace() * sg.Matrix.identity(self.t, 2)
                stress *= self.constant(0) / (1 - POISSON**2)
                stress += self.constant(1) * (product + product.transpose())
                pull = F @ stress * (0.5 * side * self.h)
                self.force[b] -= pull @ sg.Vector([1.0, 0.0])
                self.force[c] -= pull @ sg.Vector([0.0, 1.0])
                self.force[a] += pull @ sg.Vector([1.0, 1.0])
        for i, j in self.x:
            if j > 0 or (i > 0 and i < self.n - 1):
                self.v[i, j] += self.dt / self.mass * self.force[i, j]
                self.x[i, j] += self.dt * self.v[i, j]

    @sg.kernel
    def compare(self, frame: sg.i32):
        for i, j in sg.ndrange(*self.film.shape[1:]):
            self.miss[frame, i, j] = self.x[3 * i, 3 * j] - self.film[frame, i, j]

    def run(self):
        self.begin()
        for frame in range(self.frames):
            for _ in range(self.apart):
                self.step()
            self.compare(frame)

    def shoot(self, noise):
        """Film the true cloth with an error of ``noise`` meters."""
        self.film.fill(0)
        film = self.simulate(np.log(np.divide(TRUTH, GUESS)))
        self.film.from_numpy(film + np.random.default_rng(0).normal(0, noise, film.shape).astype(film.dtype))

    def identify(self):
        """Return the constants of each iteration, from the guess on, and the losses."""
        self.unknown.fill(0)
        fit, losses, found = sg.optim.LevenbergMarquardt(self.simulate, max_iter=1), [], [np.array(GUESS)]
        while len(losses) < 2 or losses[-1] < 0.999 * losses[-2]:
            losses.append(fit.step())
            found.append(np.multiply(GUESS, np.exp(self.unknown.to_numpy())))
        return np.array(found), [*losses, fit.loss]


def main():
    args = start(__doc__)
    cloth = Cloth(7, 10, 40) if args.quick else Cloth(13, 20, 80)
    cloth.shoot(noise=1e-4 if args.quick else 1e-3)
    found, losses = cloth.identify()
    for name, value, true in zip(NAMES, found[-1], TRUTH):
        print(f"{name}: found {value:.4g}, true {true:.4g}")
    print(f"loss {losses[0]:.4g} -> {losses[-1]:.4g}")
    draw(cloth, found, args.out / "cloth.png")


def draw(cloth, found, path):
    figure = pyplot.figure(figsize=(10, 3.2), layout="constrained")
    film = cloth.film.to_numpy()[-1].reshape(-1, 3)
    for k, (constants, title) in enumerate(((found[0], "guess"), (found[-1], "found"))):
        cloth.simulate(np.log(constants / GUESS))
        axes = figure.add_subplot(1, 3, k + 1, projection="3d")
        x, y, z = np.moveaxis(cloth.x.to_numpy(), 2, 0)
        axes.plot_surface(x, z, y, color="skyblue", edgecolor="steelblue", linewidth=0.4, alpha=0.8)
        axes.scatter(film[:, 0], film[:, 2], film[:, 1], color="firebrick", s=12, depthshade=False)
        axes.set(title=title, xlim=(0, 1), ylim=(-0.2, 0.8), zlim=(-1, 0), xticklabels=[], yticklabels=[], zticklabels=[])
        axes.view_init(15, -60)
    axes = figure.add_subplot(1, 3, 3)
    axes.plot(found / TRUTH, ".-", label=NAMES)
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set(title="constants, relative to the truth", xlabel="iteration")
    axes.legend()
    figure.savefig(path, dpi=80, bbox_inches="tight")
    finish(path)


if __name__ == "__main__":
    main()
