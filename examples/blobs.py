"""Find the shape of an object from photographs of it: inverse rendering of a signed distance field, by sphere tracing.

The object is a smooth union of balls. Rays move on by the distance to the surface (J. C. Hart: Sphere tracing, 1996). Gradients do not go
through this loop: one step of Newton's method from where it ends has the derivative of the implicit function. Where a ray hits, the
distance vanishes, and where it passes, its slope along the ray. Close misses are drawn, too, so that pictures are continuous at outlines.
"""

import numpy as np
from common import finish, start
from matplotlib import pyplot

import spirograd as sg

SMOOTH, HALO, LIGHT = 0.06, 0.05, (0.48, 0.64, 0.6)
TRUTH = [[0.0, -0.35, 0.0, 0.4], [0.0, 0.2, 0.05, 0.28], [0.35, 0.1, 0.2, 0.15], [-0.35, 0.0, 0.25, 0.15], [0.0, 0.5, -0.15, 0.15]]
GUESS = [
    [0.06, -0.28, 0.08, 0.33],
    [-0.06, 0.26, -0.02, 0.22],
    [0.27, 0.16, 0.12, 0.18],
    [-0.27, 0.06, 0.17, 0.18],
    [0.07, 0.42, -0.08, 0.18],
]


@sg.data_oriented
class Scene:
    """``balls`` (center and radius of each) in numbers of type ``t``, seen from ``views`` sides on ``size`` x ``size`` pixels."""

    def __init__(self, balls, views, size, t=sg.f32):
        self.count, self.views, self.size, self.t = len(balls), views, size, t
        self.accuracy = 1e-4 if t == sg.f32 else 1e-9
        self.balls = sg.Vector.field(4, t, self.count, needs_grad=True)
        self.picture = sg.field(t, (views, size, size), needs_grad=True)
        self.photo = sg.field(t, (views, size, size))
        self.loss = sg.field(t, (), needs_grad=True)
        self.balls.from_numpy(np.array(balls))

    @sg.func
    def surface(self, p):
        """The signed distance of a point from the surface, and its slope."""
        nearest = sg.cast(10.0, self.t)  # from it weights are computed, so that none underflows; it does not change the result
        for k in range(self.count):
            nearest = sg.min(nearest, sg.stop_grad((p - self.balls[k].xyz).norm() - self.balls[k].w))
        total, slope = sg.cast(0.0, self.t), sg.Vector.zero(self.t, 3)
        for k in range(self.count):
            away = p - self.balls[k].xyz
            weight = sg.exp((nearest + self.balls[k].w - away.norm()) / SMOOTH)
            total += weight
            slope += weight * away.normalized()
        return nearest - SMOOTH * sg.log(total), slope / total

    @sg.func
    def trace(self, eye, ray):
        """How far along a ray the surface is, or where the ray comes closest to it."""
        t = sg.cast(0.0, self.t)
        distance = self.surface(eye)[0]
        least, low, high = distance, t, t
        while distance > self.accuracy and t < 4.0:
            before = t
            t += distance
            distance = self.surface(eye + t * ray)[0]
            if distance < least:
                least, low, high = distance, before, t + distance
        if distance > self.accuracy:  # passed: bisect
            for _ in range(40):
                t = 0.5 * (low + high)
                if self.surface(eye + t * ray)[1].dot(ray) < 0.0:
                    low = t
                else:
                    high = t
        return t

    @sg.kernel
    def render(self):
        for view, i, j in self.picture:
            angle = sg.cast(2.1 * view, self.t)
            right, ray = sg.Vector([sg.cos(angle), 0.0, -sg.sin(angle)]), sg.Vector([-sg.sin(angle), 0.0, -sg.cos(angle)])
            eye = ((2 * i + 1) / self.size - 1) * right + sg.Vector([0.0, (2 * j + 1) / self.size - 1, 0.0]) - 2.0 * ray
            t = sg.stop_grad(self.trace(eye, ray))
            distance, slope = self.surface(eye + t * ray)
            h = sg.static(self.accuracy**0.5)
            if distance < 2.0 * self.accuracy:
                t -= distance / sg.stop_grad(sg.min(slope.dot(ray), -h))
            else:
                bend = (self.surface(eye + (t + h) * ray)[1] - self.surface(eye + (t - h) * ray)[1]).dot(ray) / (2.0 * h)
                t -= slope.dot(ray) / sg.stop_grad(sg.max(bend, h))
            distance, slope = self.surface(eye + t * ray)
            light = 0.5 + 0.5 * slope.normalized().dot(sg.Vector(LIGHT))
            self.picture[view, i, j] = light * sg.exp(-((distance / HALO) ** 2))

    @sg.kernel
    def compare(self):
        for pixel in sg.grouped(self.picture):
            self.loss[None] += (self.picture[pixel] - self.photo[pixel]) ** 2

    def evaluate(self):
        with sg.ad.Tape(self.loss):
            self.render()
            self.compare()
        return self.loss[None]

    def reconstruct(self):
        """Change the balls until the pictures are like the photographs, and return the losses of all evaluations."""
        losses = []

        def evaluate():
            losses.append(self.evaluate())
            return losses[-1]

        sg.optim.LBFGS(self.balls, max_iter=100).step(evaluate)
        self.render()
        return losses


def main():
    args = start(__doc__)
    scene = Scene(TRUTH, *((3, 32) if args.quick else (3, 64)))
    scene.render()
    scene.photo.copy_from(scene.picture)
    scene.balls.from_numpy(np.array(GUESS, np.float32))
    scene.render()
    before = scene.picture.to_numpy()
    losses = scene.reconstruct()
    print(f"loss {losses[0]:.4g} -> {losses[-1]:.4g} in {len(losses)} evaluations")
    error = abs(scene.balls.to_numpy() - TRUTH).max()
    print(f"centers and radii differ from the true ones by at most {error:.1e}")
    draw(before, scene.picture.to_numpy(), scene.photo.to_numpy(), losses, args.out / "blobs.png")


def draw(before, after, photo, losses, path):
    figure, axes = pyplot.subplots(1, 4, figsize=(10, 0.6 + 1.8 * len(photo)), layout="constrained")
    for axis, pictures, title in zip(axes, (before, after, photo), ("guess", "found", "photographs")):
        axis.imshow(np.concatenate([p.T[::-1] for p in pictures]), cmap="gray", vmin=0, vmax=1)
        axis.set(title=title, xticks=[], yticks=[])
    axes[3].semilogy(losses)
    axes[3].set(title="loss", xlabel="evaluation")
    figure.savefig(path, dpi=80, bbox_inches="tight")
    finish(path)


if __name__ == "__main__":
    main()
