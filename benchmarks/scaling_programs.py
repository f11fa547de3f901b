"""Programs of many processes whose scaling `benchmarks.many_processes` measures: a wave on a grid, and differentiable MPM."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

STEPS = 20
PARTICLES = 2  # for each cell of the grid, on average
_EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "distributed"


class Wave:
    """A five-point stencil in f32 on ``shape`` cells in all, which are periodic. Halos travel while the interior is computed."""

    exchanges = 1  # in a step
    overlaps = True

    def __init__(self, shape: tuple[int, ...], sends: bool) -> None:
        import spirograd as sg
        from spirograd import distributed

        self.sg, self.distributed, self.sends = sg, distributed, sends
        self.part = part = distributed.Partition(shape, halo=1, periodic=True, corners=False)
        self.fields = [part.field(sg.f32, needs_grad=True) for _ in range(3)]
        self.loss = loss = sg.field(sg.f32, (), needs_grad=True)

        @sg.kernel
        def step(old: sg.Template, now: sg.Template, new: sg.Template, i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                around = now[i - 1, j] + now[i + 1, j] + now[i, j - 1] + now[i, j + 1] - 4.0 * now[i, j]
                new[i, j] = 2.0 * now[i, j] - old[i, j] + 0.1 * around

        @sg.kernel
        def square(wave: sg.Template, i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                loss[None] += wave[i, j] ** 2

        self.step, self.square = step, square

    @staticmethod
    def shape(cells: int, processes: int, weak: bool) -> tuple[int, ...]:
        """The cells in all: ``cells`` squared for each process (weak scaling), or together."""
        return (cells * processes, cells) if weak else (cells, cells)

    def sent(self) -> int:
        """Return the bytes that a process sends in a step: a row of f32 along each edge of its block that another process has."""
        return _cut_cells(self.part) * 4

    def forward(self) -> None:
        """Run `STEPS` steps."""
        for t in range(STEPS):
            old, now, new = (self.fields[(t + k) % 3] for k in range(3))
            pending = self.part.start(now) if self.sends else None
            self.step(old, now, new, *self.part.interior.flat)
            if pending is not None:
                pending.finish()
            for border in self.part.borders:
                self.step(old, now, new, *border.flat)

    def gradient(self) -> None:
        """Run `STEPS` steps and their derivative."""
        with self.sg.ad.Tape(self.loss):
            self.forward()
            self.square(self.fields[0], *self.part.owned.flat)
            if self.sends:
                self.distributed.total(self.loss)

    def check(self) -> None:
        """Nothing can go wrong unseen."""


class Particles:
    """The example `mpm_slabs.py` in f32, with particles in nearly the whole square. Transfers and computation take turns."""

    exchanges = 2
    overlaps = False
    _REACH = 6

    def __init__(self, shape: tuple[int, ...], sends: bool) -> None:
        import spirograd as sg

        self.sg = sg
        count = PARTICLES * shape[0] ** 2
        self.jelly = _example("mpm_slabs").Jelly(shape[0], count, self._REACH, "f32", ((0.03, 0.03), (0.97, 0.97)), sends)
        self.part = self.jelly.part
        self.jelly.throw.from_numpy(np.array([0.5, 0.25]))
        self.jelly.x.from_numpy(self.jelly.begin)
        self.places = sg.Vector.field(2, sg.f32, self.jelly.x.shape)
        self.places.copy_from(self.jelly.x)

    @staticmethod
    def shape(cells: int, processes: int, weak: bool) -> tuple[int, ...]:
        """The cells in all, a square: as many for each process as ``cells`` squared (weak scaling), or together."""
        n = round(cells * processes**0.5) if weak else cells
        return (n, n)

    def sent(self) -> int:
        """Return the bytes that a process sends in a step: momentum and mass to the owners of halos, momentum back."""
        return (self._REACH + 2) * _cut_cells(self.part) * (3 + 2) * 4

    def _begin(self) -> None:
        self.jelly.x.copy_from(self.places)

    def forward(self) -> None:
        """Run `STEPS` steps."""
        self._begin()
        self.jelly.run(STEPS)

    def gradient(self) -> None:
        """Run `STEPS` steps and their derivative with respect to the throw."""
        self._begin()
        with self.sg.ad.Tape(self.jelly.loss):
            self.jelly.run(STEPS)

    def check(self) -> None:
        """Raise RuntimeError if a particle left the halo, so that less was computed than was measured."""
        if self.jelly.lost[None]:
            raise RuntimeError(f"particles went more than {self._REACH} cells beyond the slab of their process")


PROGRAMS: dict[str, Any] = {"wave": Wave, "mpm": Particles}


def _cut_cells(part: Any) -> int:
    """Return the number of cells along the edges between a block and its neighbours."""
    extents = [end - first for first, end in part.owned]
    cut = [extent for extent, blocks in zip(extents, part.processes) if blocks > 1]
    return sum(2 * math.prod(extents) // extent for extent in cut)


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, _EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
