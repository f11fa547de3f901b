"""Runs on any number of processes: a nonlinear program with halos and sums, whose loss and gradients are compared with those that torch
computes on the whole domain, with plain tapes and with checkpoints."""

from __future__ import annotations

import numpy as np
import torch

import spirograd as sg

dist = sg.distributed
STEPS = 6


def reference(first, push, weight):
    """The program on the whole domain, by torch: the loss, and the gradients of what it begins with."""
    x, p, w = (torch.tensor(a, requires_grad=True) for a in (first, push, weight))
    u = x
    for step in range(STEPS):
        around = sum(u.roll(s, (0, 1)) * w[k] for k, s in enumerate(((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1))))
        u = torch.sin(u + 0.3 * around) + 0.1 * p
        if step == 2:
            u = u / (1.0 + (u**2).sum())
    loss = (u**3).sum()
    loss.backward()
    return loss.item(), [g.grad.numpy() for g in (x, p, w)]


def program(part, tape_options, overlapping):
    u, v, p = part.field(sg.f64, True), part.field(sg.f64, True), part.field(sg.f64, True)
    w, norm, loss = (sg.field(sg.f64, n, needs_grad=True) for n in (6, (), ()))
    interior = (part.interior, *part.borders)

    @sg.kernel
    def step(a: sg.template(), b: sg.template(), i0: int, i1: int, j0: int, j1: int):
        for i, j in sg.ndrange((i0, i1), (j0, j1)):
            around = w[0] * a[i - 1, j] + w[1] * a[i + 1, j] + w[2] * a[i, j - 1] + w[3] * a[i, j + 1]
            around += w[4] * a[i - 1, j - 1] + w[5] * a[i + 1, j + 1]
            b[i, j] = sg.sin(a[i, j] + 0.3 * around) + 0.1 * p[i, j]

    @sg.kernel
    def square(a: sg.template(), i0: int, i1: int, j0: int, j1: int):
        for i, j in sg.ndrange((i0, i1), (j0, j1)):
            norm[None] += a[i, j] ** 2

    @sg.kernel
    def divide(a: sg.template(), b: sg.template(), i0: int, i1: int, j0: int, j1: int):
        for i, j in sg.ndrange((i0, i1), (j0, j1)):
            b[i, j] = a[i, j] / (1.0 + norm[None])

    @sg.kernel
    def sum_up(a: sg.template(), i0: int, i1: int, j0: int, j1: int):
        for i, j in sg.ndrange((i0, i1), (j0, j1)):
            loss[None] += a[i, j] ** 3

    def run():
        dist.replicate(w)
        a, b = u, v
        for number in range(STEPS):
            if overlapping:
                pending = part.start(a)
                step(a, b, *interior[0].flat)
                pending.finish()
                for region in interior[1:]:
                    step(a, b, *region.flat)
            else:
                part.exchange(a)
                step(a, b, *part.owned.flat)
            a, b = b, a
            if number == 2:
                square(a, *part.owned.flat)
                dist.all_reduce(norm)
                divide(a, b, *part.owned.flat)
                a, b = b, a
        sum_up(a, *part.owned.flat)
        dist.total(loss)

    rng = np.random.default_rng(3)
    first, push, weight = rng.normal(size=part.shape), rng.normal(size=part.shape), rng.normal(size=6)
    part.from_numpy(u, first)
    part.from_numpy(p, push)
    w.from_numpy(weight if dist.rank() == 0 else np.full(6, 99.0))
    with sg.ad.Tape(loss, **tape_options):
        run()
    found = [part.to_numpy(u.grad), part.to_numpy(p.grad), w.grad.to_numpy()]
    wanted_loss, wanted = reference(first, push, weight)
    assert abs(loss[None] - wanted_loss) < 1e-10 * abs(wanted_loss), (loss[None], wanted_loss)
    for mine, theirs in zip(found, wanted):
        assert np.allclose(mine, theirs, rtol=1e-9, atol=1e-11), (part, tape_options, abs(mine - theirs).max())
    return found


def main() -> None:
    part = dist.Partition((9, 7), periodic=True)
    plain = program(part, {}, overlapping=False)
    again = program(part, {}, overlapping=True)
    for options in ({"checkpoints": 2}, {"checkpoints": 5}, {"memory_GB": 2e-5}):
        other = program(part, options, overlapping=True)
        exact = dist.world.context.session().arch == "cpu"  # elsewhere sums come together in any order
        assert all((a == b).all() if exact else np.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in zip(again, other)), options
    assert all(np.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(plain, again))
    print(f"gradients on process {dist.rank()} of {dist.size()} are right")


if __name__ == "__main__":
    dist.init(arch="cpu", timeout=60)
    main()
