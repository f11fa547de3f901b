"""A walker of masses and springs in many environments: as a batch, and written by hand with one more axis. `python -m benchmarks.batches`.

Both forms take turns: steps, and the gradient of each environment's loss with respect to its muscles. A time is the best of all rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import spirograd as sg

DT, STIFFNESS, GRAVITY, STRENGTH, BOXES = 0.004, 1500.0, 9.8, 0.25, 3


def body() -> tuple[np.ndarray, np.ndarray]:
    """Return the masses of a row of boxes on two legs, and its springs: first mass, second mass, whether it is a muscle."""
    points: dict[tuple[int, int], int] = {}
    springs: dict[tuple[int, int], bool] = {}
    for k in range(BOXES):
        for y in (0, 1) if k in (0, BOXES - 1) else (1,):
            a, b, c, d = (points.setdefault(p, len(points)) for p in ((k, y), (k + 1, y), (k, y + 1), (k + 1, y + 1)))
            springs |= {pair: springs.get(pair, False) for pair in ((a, b), (c, d), (a, d), (b, c))}
            springs |= dict.fromkeys(((a, c), (b, d)), y == 0)
    place = 0.12 * np.array(list(points), np.float32) + np.float32(0.02)
    return place, np.array([(*pair, muscle) for pair, muscle in springs.items()], np.int32)


class Walker:
    """What both forms share: memory, made by ``field`` and ``vectors`` of a shape, and the springs."""

    def __init__(self, field: Callable[..., Any], vectors: Callable[..., Any]) -> None:
        self.place, springs = body()
        self.masses, self.links = len(self.place), len(springs)
        self.spring, self.rest = sg.field(sg.i32, springs.shape), sg.field(sg.f32, self.links)
        self.spring.from_numpy(springs)
        self.rest.from_numpy(np.linalg.norm(self.place[springs[:, 0]] - self.place[springs[:, 1]], axis=1))
        self.x, self.v, self.force = (vectors(self.masses) for _ in range(3))
        self.phase, self.loss = field(self.links), field(())

    def start(self, environments: int, first: int) -> None:
        """Set the state, the environments being axis ``first`` of arrays."""
        random = np.random.default_rng(0)
        phase = random.uniform(0, 6, (environments, self.links)).astype(np.float32)
        place = np.repeat(self.place[None], environments, 0)
        self.phase.from_numpy(np.moveaxis(phase, 0, first))
        self.x.from_numpy(np.ascontiguousarray(np.moveaxis(place, 0, first)))
        self.v.fill(0)
        self.loss.fill(0)


@sg.data_oriented
class InBatch(Walker):
    def __init__(self, environments: int) -> None:
        batch = sg.batch(environments)
        vector = sg.types.vector(2, sg.f32)
        super().__init__(lambda shape: batch.field(sg.f32, shape, needs_grad=True), lambda n: batch.field(vector, n, needs_grad=True))

    @sg.kernel
    def step(self, now: sg.f32):
        for m in self.x:
            self.force[m] = [0.0, -GRAVITY]
        for s in self.rest:
            a, b = self.spring[s, 0], self.spring[s, 1]
            length = self.rest[s]
            if self.spring[s, 2] == 1:
                length *= 1.0 + STRENGTH * sg.sin(12.0 * now + self.phase[s])
            along = self.x[b] - self.x[a]
            distance = along.norm()
            pull = STIFFNESS * (distance / length - 1.0) * 0.12 / distance * along + 15.0 * (self.v[b] - self.v[a])
            self.force[a] += pull
            self.force[b] -= pull
        for m in self.x:
            v = (self.v[m] + DT * self.force[m]) * (1.0 - 0.2 * DT)
            deep = -self.x[m].y
            if deep > 0.0:
                push = 4000.0 * deep
                v.y = (v.y + DT * push) / (1.0 + DT * 20.0)
                v.x = v.x / (1.0 + DT * 10.0 * push)
            self.v[m] = v
            self.x[m] += DT * v

    @sg.kernel
    def measure(self):
        for m in self.x:
            self.loss[None] -= self.x[m].x / self.masses


@sg.data_oriented
class ByHand(Walker):
    def __init__(self, environments: int) -> None:
        self.environments, vector = environments, sg.Vector
        super().__init__(
            lambda shape: sg.field(sg.f32, (*([shape] if isinstance(shape, int) else shape), environments), needs_grad=True),
            lambda n: vector.field(2, sg.f32, (n, environments), needs_grad=True, layout=sg.Layout.SOA),
        )

    @sg.kernel
    def step(self, now: sg.f32):
        for m, e in self.x:
            self.force[m, e] = [0.0, -GRAVITY]
        for s, e in sg.ndrange(self.links, self.environments):
            a, b = self.spring[s, 0], self.spring[s, 1]
            length = self.rest[s]
            if self.spring[s, 2] == 1:
                length *= 1.0 + STRENGTH * sg.sin(12.0 * now + self.phase[s, e])
            along = self.x[b, e] - self.x[a, e]
            distance = along.norm()
            pull = STIFFNESS * (distance / length - 1.0) * 0.12 / distance * along + 15.0 * (self.v[b, e] - self.v[a, e])
            self.force[a, e] += pull
            self.force[b, e] -= pull
        for m, e in self.x:
            v = (self.v[m, e] + DT * self.force[m, e]) * (1.0 - 0.2 * DT)
            deep = -self.x[m, e].y
            if deep > 0.0:
                push = 4000.0 * deep
                v.y = (v.y + DT * push) / (1.0 + DT * 20.0)
                v.x = v.x / (1.0 + DT * 10.0 * push)
            self.v[m, e] = v
            self.x[m, e] += DT * v

    @sg.kernel
    def measure(self):
        for m, e in self.x:
            self.loss[e] -= self.x[m, e].x / self.masses


def seconds(run: Callable[[], None], launches: int) -> float:
    """Return the seconds of a launch: of the processor on the CPU, which others may use, else of the clock."""
    clock = time.process_time if sg.cfg.arch == sg.cpu else time.perf_counter
    sg.sync()
    start = clock()
    for _ in range(launches):
        run()
    sg.sync()
    return (clock() - start) / launches


def measure(environments: int, steps: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return the seconds of a step, and of a gradient by its steps, in a batch and by hand. Checks that both agree."""
    forms = InBatch(environments), ByHand(environments)
    axes = 0, 1
    found = [(np.empty(0), np.empty(0))] * 2
    best = {"step": [np.inf, np.inf], "gradient, a step": [np.inf, np.inf]}

    def rollout(walker: Any) -> None:
        for k in range(steps):
            walker.step(DT * k)
        walker.measure()

    for turn in range(rounds + 1):
        for k, walker in enumerate(forms):
            walker.start(environments, axes[k])
            taken = seconds(lambda walker=walker: walker.step(0.1), 4 * steps)
            walker.start(environments, axes[k])
            sg.sync()

            def gradient(walker: Any = walker) -> None:
                with sg.ad.Tape() as tape:
                    rollout(walker)
                walker.loss.grad.fill(1)
                tape.grad()

            taken_by_gradient = seconds(gradient, 1) / steps
            # Copies, because the next tape clears all gradients.
            found[k] = walker.loss.to_numpy(), np.moveaxis(walker.phase.grad.to_numpy(), axes[k], 0)
            if turn:
                best["step"][k] = min(best["step"][k], taken)
                best["gradient, a step"][k] = min(best["gradient, a step"][k], taken_by_gradient)
    (loss, slopes), (loss_by_hand, slopes_by_hand) = found
    np.testing.assert_allclose(loss, loss_by_hand, rtol=1e-4)
    np.testing.assert_allclose(slopes, slopes_by_hand, rtol=1e-3, atol=1e-6)
    return {name: (in_batch, by_hand) for name, (in_batch, by_hand) in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batches", description=__doc__)
    parser.add_argument("--arch", default="cpu", help="back end (cpu, cuda, vulkan ...)")
    parser.add_argument("--environments", type=int, default=4096, help="default: 4096")
    parser.add_argument("--steps", type=int, default=20, help="steps of a gradient (default: 20)")
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    chosen = parser.parse_args()
    sg.init(arch=chosen.arch)
    for name, (in_batch, by_hand) in measure(chosen.environments, chosen.steps, chosen.rounds).items():
        print(f"{name:<18} batch {1e6 * in_batch:9.1f} us, by hand {1e6 * by_hand:9.1f} us: {by_hand / in_batch:.2f} of its speed")


if __name__ == "__main__":
    main()
