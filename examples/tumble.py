"""Throw chains of rods so that they tumble to a goal: learn a launch for each of many chains, through contact with friction.

Contact is compliant (K. Hunt, F. Crossley: Coefficient of Restitution Interpreted as Damping in Vibroimpact, 1975), friction is Coulomb's
with a smooth change of sign, and hinges are stiff springs, so that the motion has a gradient, which is compared with finite differences.
The kernels are those of one chain; a batch runs them for all chains, which begin at different angles.
"""

import numpy as np
from common import descend, finish, start
from matplotlib import pyplot

import spirograd as sg

RODS, LENGTH, MASS, GRAVITY, DT = 3, 0.3, 1.0, 9.8, 0.002
INERTIA = MASS * LENGTH**2 / 12
GROUND, DAMPING, FRICTION, SLIP = 2e4, 0.6, 0.5, 0.05  # of contact; friction grows with the speed up to SLIP
HINGE, HINGE_DAMPING, BEND, BEND_DAMPING = 1e4, 20.0, 2.0, 0.05


@sg.data_oriented
class Chains:
    """``count`` chains in numbers of type ``t``, thrown for ``steps`` steps of DT seconds. ``goal``: the distance to travel."""

    def __init__(self, count, steps, goal, t=sg.f32):
        self.steps, self.goal, self.t, self.batch, vector = steps, goal, t, sg.batch(count), sg.types.vector(3, t)
        # Of each rod: place and angle; their velocities; force and torque.
        self.q, self.u, self.force = (self.batch.field(vector, RODS, needs_grad=True) for _ in range(3))
        self.launch = self.batch.field(vector, needs_grad=True)  # velocity and spin
        self.tilt, self.loss = self.batch.field(t), self.batch.field(t, needs_grad=True)
        self.tilt.from_numpy(np.linspace(-0.8, 0.8, count))
        self.launch.from_numpy(np.array([1.5, 0.5, -2.0]))

    @sg.kernel
    def begin(self):
        along = sg.Vector([sg.cos(self.tilt[None]), sg.sin(self.tilt[None])])
        for b in range(RODS):
            away = (b - (RODS - 1) / 2) * LENGTH * along
            spin = self.launch[None].z
            self.q[b] = [away.x, 0.4 + away.y, self.tilt[None]]
            self.u[b] = self.launch[None] + spin * sg.Vector([-away.y, away.x, 0.0])

    @sg.func
    def end(self, b, side):
        """The place of an end of a rod relative to its middle, where it is, and its velocity."""
        q, u = self.q[b], self.u[b]
        arm = 0.5 * side * LENGTH * sg.Vector([sg.cos(q.z), sg.sin(q.z)])
        return arm, q.xy + arm, u.xy + u.z * sg.Vector([-arm.y, arm.x])

    @sg.func
    def contact(self, place, velocity):
        """The force of the ground on a point."""
        depth = sg.max(-place.y, 0.0)
        normal = sg.max(GROUND * depth * (1.0 - DAMPING * velocity.y), 0.0)
        return sg.Vector([-FRICTION * normal * velocity.x / sg.sqrt(velocity.x**2 + SLIP**2), normal])

    @sg.kernel
    def step(self):
        for b in self.q:
            total = sg.Vector.zero(self.t, 3)
            total.y = -MASS * GRAVITY
            for k in sg.static(range(2)):
                side = 2 * k - 1
                arm, place, velocity = self.end(b, side)
                push = self.contact(place, velocity)
                torque = sg.cast(0.0, self.t)
                neighbour = b + side
                if neighbour >= 0 and neighbour < RODS:
                    _, its_place, its_velocity = self.end(neighbour, -side)
                    push += HINGE * (its_place - place) + HINGE_DAMPING * (its_velocity - velocity)
                    torque = BEND * (self.q[neighbour].z - self.q[b].z) + BEND_DAMPING * (self.u[neighbour].z - self.u[b].z)
                total += sg.Vector([push.x, push.y, torque + arm.x * push.y - arm.y * push.x])
            self.force[b] = total
        for b in self.q:
            self.u[b] += DT * self.force[b] / sg.Vector([MASS, MASS, INERTIA])
            self.q[b] += DT * self.u[b]

    @sg.kernel
    def measure(self):
        middle = self.q[RODS // 2].x
        self.loss[None] = (middle - self.goal) ** 2

    def run(self, watch=lambda step: None):
        self.begin()
        for step in range(self.steps):
            watch(step)
            self.step()
        self.measure()

    def evaluate(self):
        """Compute the gradient of the loss of each chain with respect to its launch, and return the losses."""
        with sg.ad.Tape(self.loss):
            self.run()
        return self.loss.to_numpy()


def check_gradients(steps, goal):
    """Return the largest difference of gradients and finite differences in f64, relative to the largest gradient."""
    chains, h = Chains(4, steps, goal, sg.f64), 1e-7
    launch = chains.launch.to_numpy()
    chains.evaluate()
    gradient = chains.launch.grad.to_numpy()
    found = np.zeros_like(gradient)
    for k in range(3):
        losses = []
        for sign in (-1, 1):
            chains.launch.from_numpy(launch + sign * h * np.eye(3)[k])
            chains.run()
            losses.append(chains.loss.to_numpy())
        found[:, k] = (losses[1] - losses[0]) / (2 * h)
    return abs(found - gradient).max() / abs(gradient).max()


def main():
    args = start(__doc__, iterations=(40, 15))
    count, steps, goal = (8, 200, 0.8) if args.quick else (64, 450, 1.2)
    print(f"gradients differ from finite differences by {check_gradients(steps, goal):.1e}")
    chains = Chains(count, steps, goal)

    def evaluate():
        return chains.evaluate().mean()

    def film():
        seen = []
        chains.run(lambda step: seen.append(chains.q.to_numpy()) if step % (steps // 6) == 0 else None)
        return [*seen, chains.q.to_numpy()]

    before = film()
    losses = descend(args.iterations, evaluate, [chains.launch], 0.15)
    draw(goal, before, film(), losses, args.save or args.out / "tumble.png")


def draw(goal, before, after, losses, path):
    figure, (upper, lower, right) = pyplot.subplots(1, 3, figsize=(11, 2.6), layout="constrained", width_ratios=(2, 2, 1))
    for axes, snapshots, title in ((upper, before, "before"), (lower, after, "after")):
        for k, q in enumerate(snapshots):
            for chain in q[:: max(1, len(q) // 4)]:
                arms = 0.5 * LENGTH * np.stack([np.cos(chain[:, 2]), np.sin(chain[:, 2])], 1)
                for ends in zip(chain[:, :2] - arms, chain[:, :2] + arms):
                    axes.plot(*np.transpose(ends), color=pyplot.get_cmap("viridis")(k / 7), linewidth=1.5)
        axes.axhline(0, color="black")
        axes.axvline(goal, color="firebrick", linestyle=":")
        axes.set(title=title, xlim=(-0.6, 2.0), ylim=(-0.1, 1.1), aspect="equal", xticks=[], yticks=[])
    right.semilogy(losses)
    right.set(title="mean loss", xlabel="iteration")
    figure.savefig(path, dpi=80, bbox_inches="tight")
    finish(path)


main()
