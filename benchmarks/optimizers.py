"""Steps of Adam beside torch's fused Adam on the CPU, in one run: `python -m benchmarks.optimizers`. Needs torch.

Two sets of parameters: a network of 12 small arrays, where the launch counts, and two arrays of a million numbers, where memory does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import spirograd as sg

ROUNDS = 30
SETS = {"12 arrays of 16 x 16": [(16, 16)] * 12, "2 arrays of 1,000,000": [(1_000_000,)] * 2}


def pair(shapes: list[tuple[int, ...]]) -> dict[str, Callable[[], object]]:
    """Return a step of each on equal parameters and gradients, after a check that both lead to the same parameters."""
    try:
        import torch
    except ModuleNotFoundError:
        sys.exit("python -m benchmarks.optimizers needs torch")
    random = np.random.default_rng(0)
    values, gradients = ([random.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(2))
    ours = [sg.field(sg.f32, shape=shape, needs_grad=True) for shape in shapes]
    theirs = [torch.tensor(value, requires_grad=True) for value in values]
    for p, t, value, gradient in zip(ours, theirs, values, gradients):
        p.from_numpy(value)
        p.grad.from_numpy(gradient)
        t.grad = torch.tensor(gradient)
    here, fused = sg.optim.Adam(ours, lr=1e-3), torch.optim.Adam(theirs, lr=1e-3, fused=True)
    loops = torch.optim.Adam([t.detach().clone() for t in theirs], lr=1e-3, foreach=False)
    for t, t2 in zip(theirs, loops.param_groups[0]["params"]):
        t2.grad = t.grad
    for _ in range(10):
        here.step()
        fused.step()
    for p, t in zip(ours, theirs):
        np.testing.assert_allclose(p.to_numpy(), t.detach().numpy(), rtol=1e-5, atol=1e-6)

    def step() -> None:
        here.step()
        sg.sync()

    return {"spirograd": step, "torch, fused": fused.step, "torch": loops.step}


def main() -> None:
    """Print the best time of a step of each."""
    sg.init(arch=sg.cpu)
    for name, shapes in SETS.items():
        runs = pair(shapes)
        best = dict.fromkeys(runs, (1e9, 1e9))
        for _ in range(ROUNDS):
            for who, run in runs.items():
                wall, cpu = time.perf_counter(), time.process_time()
                for _ in range(10):
                    run()
                times = (time.perf_counter() - wall) / 10, (time.process_time() - cpu) / 10
                best[who] = min(best[who][0], times[0]), min(best[who][1], times[1])
        print(name)
        for who, (wall, cpu) in best.items():
            print(f"  {who:14} {1e6 * wall:8.1f} us, {1e6 * cpu:8.1f} us of the processor")


if __name__ == "__main__":
    main()
