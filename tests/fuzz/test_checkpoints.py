"""Random programs of many launches: tapes with checkpoints of every kind give the same gradients and memory, bit for bit.

Plain tapes give them to rounding: kernels that save values may add up in another order. Where random numbers are drawn they are not asked,
since launches that only count values take numbers, too.

The kernels are those of `gradient_programs`, with nests of loops, `while` and `break`. Between their launches lie writes of Python, copies,
random numbers, values of other types, and functions under `ad.checkpoint`. SG_FUZZ_EXAMPLES for more of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import seeds

import spirograd as sg
from spirograd.lang import context

from . import run
from .gradient_programs import MEMORY, N, write
from .gradients import SIZE, Loaded

EXAMPLES = int(os.environ.get("SG_FUZZ_EXAMPLES", "1"))
AT_NIGHT = 40
KERNELS = 2
Step = Callable[[], object]


class LongProgram:
    """``steps``: what to do, one after the other, on the memory of ``loaded``."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.draws = draws = self.rng.random() < 0.4
        self.loaded = Loaded(write(KERNELS * seed))
        memory = self.loaded.memory
        names = {"idx": self.loaded.idx, **{name: field for name, field in memory.items() if name != "q"}}
        self.kernels = [self.loaded.kernel, *[run.load(write(KERNELS * seed + k).source, names) for k in range(1, KERNELS)]]
        self.scalars = [memory[name] for name, shape in MEMORY.items() if not shape and name != "q"]
        self.narrow = sg.field(sg.f32, shape=(3, N), needs_grad=True)
        self.count = sg.field(sg.i32, shape=())

        @sg.kernel
        def mixed(x: sg.template(), t: sg.i32):
            for i in x:
                k = 0
                while k < 5:
                    k += 1
                    drawn = sg.cast(sg.sin(x[i]), sg.f32) * (sg.random(sg.f32) if sg.static(draws) else 0.3)
                    self.narrow[t, i] = sg.cast(0.5 * self.narrow[(t + 1) % 3, i] + drawn, sg.f32)
                    if k > self.count[None] % 4:
                        break
                x[i] = 0.9 * x[i] + 0.1 * self.narrow[t, i]

        @sg.kernel
        def advance():
            self.count[None] += 3

        self.mixed, self.advance = mixed, advance
        self.steps = [self._step() for _ in range(self.rng.choice([1, 4, 9, 17]))]

    def _step(self, nested: bool = True) -> Step:
        rng = self.rng
        kernel, (x, y), t = rng.choice(self.kernels), rng.sample(self.scalars, 2), rng.randrange(3)
        values = np.array([rng.uniform(-1, 1) for _ in range(N)])
        launch: Step = lambda: kernel(3, self.loaded.memory["q"])  # noqa: E731
        choices: list[Step] = [
            *[launch] * 4,
            lambda: self.mixed(x, t),
            lambda: self.mixed(y, t),
            lambda: self.advance(),
            lambda: x.from_numpy(values),
            lambda: x.copy_from(y),
            lambda: y.fill(values[0]),
            lambda: x.__setitem__(t, values[t]),
            lambda: self.narrow.__setitem__((t, 1), values[t]),
        ]
        if nested:
            block = [self._step(rng.random() < 0.3) for _ in range(rng.randrange(4))]
            choices += [lambda: sg.ad.checkpoint(lambda: [step() for step in block])] * 2
        return rng.choice(choices)

    def run(self, state: np.ndarray, adjoint: np.ndarray, **limits: Any) -> list[np.ndarray]:
        """Gradients and memory afterwards."""
        self.loaded.idx.from_numpy(self.loaded.indices)
        self.loaded.put(state)
        self.narrow.fill(0.25)
        self.count[None] = 1
        sg.ad.clear_all_gradients()
        with sg.ad.Tape(**limits) as tape:
            for step in self.steps:
                step()
        self.loaded.put(adjoint, gradients=True)
        tape.grad()
        return [self.loaded.get(True), self.narrow.grad.to_numpy(), self.loaded.get(), self.narrow.to_numpy(), self.count.to_numpy()]


class Numbers:
    """The numbers of launches, from ``next`` on: two runs from the same number draw the same random numbers."""

    def __init__(self) -> None:
        self.next = 0

    def __call__(self) -> int:
        self.next += 1
        return self.next


def limits_of(seed: int, folder: Path) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    scarce = rng.randrange(4_000, 12_000) / 1e9
    return [
        {"checkpoints": rng.randrange(1, 5)},
        {"memory_GB": scarce},
        {"memory_GB": scarce, "host_GB": rng.randrange(1_000, 30_000) / 1e9},
        {"memory_GB": scarce, "host_GB": rng.randrange(1_000, 9_000) / 1e9, "disk_GB": 1e-3, "disk_folder": folder},
    ]


def check(arch: str, seed: int, folder: Path) -> int:
    """How many ways to keep checkpoints were compared; 0 if a kernel has no gradient."""

    def gradients(**limits: Any) -> list[np.ndarray]:
        numbers.next = 0
        return program.run(state, adjoint, **limits)

    sg.init(arch=arch, fast_math=False, default_fp=sg.f64, offline_cache=False)
    numbers = context.session().launcher.next_number = Numbers()  # type: ignore[method-assign]
    program = LongProgram(seed)
    rng, compared = np.random.default_rng(seed), 0
    state, adjoint = rng.uniform(-1.0, 1.0, SIZE), rng.standard_normal(SIZE)
    try:
        wanted = gradients(checkpoints=1000)
        plain = wanted if program.draws else gradients()
    except sg.SpirogradCompilationError:
        return 0
    for a, b in zip(wanted, plain):
        np.testing.assert_allclose(a, b, rtol=1e-9 if a.dtype == np.float64 else 1e-4, atol=1e-9, err_msg=f"seed {seed}, plain")
    for limits in limits_of(seed, folder):
        try:
            found = gradients(**limits)
        except sg.SpirogradRuntimeError as error:
            assert "too little memory" in str(error), (seed, limits)
            continue
        for a, b in zip(wanted, found):
            np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, {limits}")
        compared += 1
        assert not [*folder.iterdir()]
    return compared


@pytest.mark.vulkan_or_wgpu
@pytest.mark.archs("interpreter", "cpu", "vulkan")  # the programs have f64
@pytest.mark.parametrize("seed", seeds(EXAMPLES, max(EXAMPLES, AT_NIGHT)))
def test_checkpoints_of_random_programs(arch: str, seed: int, tmp_path: Path) -> None:
    check(arch, seed, tmp_path)
