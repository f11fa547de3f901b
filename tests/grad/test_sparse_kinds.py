"""Tasks that note integers in all iterations, and floats only behind a condition: the floats keep thread slots for the iterations that pass
it."""

from __future__ import annotations

from typing import Any

import needs
import numpy as np
import pytest
from grad.chains import AMPLIFIED, advance, advanced, chains, starts
from grad.check import on_devices_with_types
from grad.guarded import counts, masks

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.archs("cpu", "vulkan", "wgpu")]  # the interpreter has no heap

N = 600
MIXED = 12


def factors(n: int, steps: int) -> np.ndarray:
    """What `mix` multiplies the start of each iteration by."""
    m, total = np.arange(n), np.zeros(n)
    for _ in range(steps):
        m = (m * 7 + 1) % 1009
        total += m % 3
    return total


class Kinds:
    """``y[i]`` is `factors` times ``x[i]``, and where ``on`` so many iterations of it, too."""

    def __init__(self, t: Any, bounded: bool) -> None:
        self.x, self.y = x, y = chains(N, t)
        self.on, self.trips, self.last = on, trips, last = sg.field(sg.i32, N), sg.field(sg.i32, N), sg.field(sg.i32, ())
        self.bounded = bounded
        integer = sg.i64 if t is sg.f64 else sg.i32

        @sg.func
        def mix(i, k):
            m, total = sg.cast(i, integer), sg.cast(0.0, t)
            for _ in range(k):
                m = (m * 7 + 1) % 1009
                total += x[i] * sg.cast(m % 3, t)
            return total

        @sg.func
        def chain(i):
            v, m = x[i], 1
            for _ in range(trips[i]):
                m = (m * 3 + 1) % 101
                if m >= 0:
                    v = advance(v)
            return AMPLIFIED * v

        @sg.kernel
        def all_of_them(k: sg.i32):
            for i in x:
                u = mix(i, k)
                if on[i] > 0:
                    u += chain(i)
                y[i] = u

        @sg.kernel
        def up_to_a_bound(k: sg.i32):
            for i in range(last[None]):
                if on[i] > 0:
                    y[i] = chain(i) + mix(i, k)
                else:
                    y[i] = mix(i, k)

        self.run = up_to_a_bound if bounded else all_of_them

    def check(self, mask: np.ndarray, trips: np.ndarray, end: int, steps: int) -> None:
        self.on.from_numpy(mask.astype(np.int32))
        self.trips.from_numpy(trips.astype(np.int32))
        self.last[None] = end
        values = starts(N, self.x.to_numpy().dtype)
        self.x.from_numpy(values)
        self.x.grad.fill(0.0)
        self.y.fill(0.0)
        self.y.grad.fill(0.5)
        self.run(steps)
        self.run.grad(steps)
        inside = np.arange(N) < (end if self.bounded else N)
        ends, slopes = advanced(values, trips)
        mixed = factors(N, steps)
        wanted = np.where(inside, np.where(mask, AMPLIFIED * ends, 0.0) + mixed * values, 0.0)
        np.testing.assert_allclose(self.y.to_numpy(), wanted, rtol=3e-3, atol=1e-3)
        wanted = np.where(inside, 0.5 * (np.where(mask, AMPLIFIED * slopes, 0.0) + mixed), 0.0)
        np.testing.assert_allclose(self.x.grad.to_numpy(), wanted, rtol=3e-3, atol=1e-3)
        self.check_slots(int((mask & inside).sum()), int(inside.sum()), steps)

    def check_slots(self, active: int, iterations: int, steps: int) -> None:
        plan = self.run.grad.memory_plan(steps)
        assert self.run.grad.adstack_bytes == plan.nbytes
        if not counts():
            return
        guarded = [task for task in plan.tasks if task.guarded]
        # Where each branch has a loop with integers, the other branch is a guard, too.
        passing = [active, iterations - active] if self.bounded else [active]
        assert [task.slots for task in guarded] == [max(n, 1) for n in passing]
        for task in plan.tasks:
            assert task.guarded or task.slots == max(iterations, 1)
        floats = [slab for task in plan.tasks for slab in task.slabs if slab.kind == "F"]
        assert floats == [slab for slab in guarded[0].slabs if slab.kind == "F"]
        assert "where its condition holds: " in str(plan)


@pytest.mark.parametrize("bounded", [False, True], ids=["all", "bounded"])
@on_devices_with_types
def test_floats_behind_a_condition(session: Any, t: Any, bounded: bool) -> None:
    needs.of_type(t)
    made = Kinds(t, bounded)
    for k, mask in enumerate(masks(N)):
        made.check(mask, np.arange(N) * (k + 1) % 40, N - 111 * k, MIXED + k)


@pytest.mark.parametrize("budget", [3 << 16, 1 << 18])
def test_with_little_memory(arch: str, budget: int) -> None:
    """Fewer thread slots of both kinds."""
    sg.init(arch=arch, ad_memory_GB=budget / 2**30)
    made = Kinds(sg.f32, False)
    mask = np.arange(N) % 2 == 0
    values = starts(N)
    for trips in (5, 70, 5):
        made.on.from_numpy(mask.astype(np.int32))
        made.trips.fill(trips)
        made.x.from_numpy(values)
        made.x.grad.fill(0.0)
        made.y.grad.fill(1.0)
        made.run.grad(MIXED)
        wanted = np.where(mask, AMPLIFIED * advanced(values, trips)[1], 0.0) + factors(N, MIXED)
        np.testing.assert_allclose(made.x.grad.to_numpy(), wanted, rtol=3e-3, atol=1e-3)
        assert made.run.grad.adstack_bytes <= budget
