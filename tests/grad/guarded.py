"""Tasks in which a condition tells the iterations that have tapes: their data, and checks of gradients and thread slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from grad.chains import AMPLIFIED, advance, advanced, chains, starts

import spirograd as sg
from spirograd.lang import context

N = 193
FEW = 4096  # drivers that run on a CPU run so many at a time


class Data:
    """Starts, results, the iterations of each chain, and what conditions are made of."""

    def __init__(self, n: int, f64: bool = False) -> None:
        self.n = n
        self.x, self.y = chains(n)
        self.trips = sg.field(sg.i32, n)
        self.a, self.b, self.at = sg.field(sg.f32, n), sg.field(sg.i32, n), sg.field(sg.i32, n)
        self.d = sg.field(sg.f64 if f64 else sg.f32, n)

    def write(self, trips: np.ndarray) -> np.ndarray:
        """Set the starts, the iterations and the gradients of results; gives the latter."""
        seeds = np.random.default_rng(7).uniform(0.5, 2.0, self.n).astype(np.float32)
        self.x.from_numpy(starts(self.n))
        self.trips.from_numpy(trips.astype(np.int32))
        self.x.grad.fill(0.0)
        self.y.fill(0.0)
        self.y.grad.from_numpy(seeds)
        return seeds

    def check_gradient(self, run: Any, trips: np.ndarray, many: Any = None, on: Any = True, args: Sequence[Any] = ()) -> None:
        """Run the gradient of a kernel whose results are 200 times the ends of chains of ``many`` iterations (by default ``trips``) where
        ``on``, else constants."""
        seeds = self.write(trips)
        run.grad(*args)
        sg.sync()
        slopes = advanced(starts(self.n), trips if many is None else many)[1]
        np.testing.assert_allclose(self.x.grad.to_numpy(), np.where(on, AMPLIFIED * slopes, 0) * seeds, rtol=3e-3, atol=1e-3)

    def check(self, run: Any, on: np.ndarray, trips: np.ndarray, off: float = 0.0) -> None:
        """``run`` gives 200 times the end of the chain where ``on``, elsewhere ``off`` times its start."""
        seeds = self.write(trips)
        run()
        run.grad()
        sg.sync()
        ends, slopes = advanced(starts(self.n), trips)
        wanted = np.where(on, AMPLIFIED * ends, off * starts(self.n))
        np.testing.assert_allclose(self.y.to_numpy(), wanted, rtol=3e-3, atol=1e-3)
        wanted = np.where(on, AMPLIFIED * slopes, off) * seeds
        np.testing.assert_allclose(self.x.grad.to_numpy(), wanted, rtol=3e-3, atol=1e-3)
        check_slots(run, on)


def guarded_chains(data: Data) -> Any:
    """Return a kernel that runs a chain of ``trips`` iterations where ``b`` is above 0."""
    x, y, trips, b = data.x, data.y, data.trips, data.b

    @sg.kernel
    def run():
        for i in x:
            if b[i] > 0:
                v = x[i]
                for _ in range(trips[i]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

    return run


def counts() -> bool:
    return context.session().device.caps.target_name in ("vulkan", "wgpu")


def check_slots(run: Any, on: np.ndarray, *args: Any) -> None:
    """One for each iteration that is on; of very many the device decides how many run at a time."""
    if counts():
        active, slots = int(on.sum()), run.grad.memory_plan(*args).slots
        assert slots == max(active, 1) if active <= FEW else FEW <= slots <= active


def masks(n: int) -> list[np.ndarray]:
    """Which iterations have tapes: some, none, all, one, others."""
    rng = np.random.default_rng(n)
    one = np.zeros(n, bool)
    one[n - 1] = True
    return [rng.random(n) < 0.05, np.zeros(n, bool), np.ones(n, bool), one, rng.random(n) < 0.5]
