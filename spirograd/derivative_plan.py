"""Launching derivatives: first their tapes are sized."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spirograd.autodiff.derivative import Derivative
from spirograd.base.dtypes import DType, storage
from spirograd.base.sizes import Size, evaluate
from spirograd.runtime.launcher import LaunchPlan
from spirograd.runtime.memory import Allocation


class DerivativePlan:
    """A derivative ready to launch. ``main`` is its launch plan, ``sizing`` those of the kernels that count iterations, none if the host
    knows them all."""

    def __init__(self, derivative: Derivative, main: LaunchPlan, sizing: Sequence[LaunchPlan]) -> None:
        self.compiled = main.compiled
        self.main = main
        self.sizing = tuple(sizing)
        self._numbers = tuple([counting.numbers for counting in derivative.sizing])
        self._sizes = derivative.capacities
        self.capacities: tuple[int, ...] = ()  # of the last launch, by number

    @property
    def tape_bytes(self) -> int:
        """The memory for tapes that the last launch asked for, in bytes."""
        return self.main.tape_bytes

    def launch(self, scalars: Sequence[Any], arrays: Sequence[Any], trees: Mapping[int, Allocation], drawn: int | None = None) -> None:
        """Run it. Arguments as of `LaunchPlan.launch`; waits if iterations have to be counted."""
        if self._sizes and self.compiled.tapes:
            self.capacities = self._find(scalars, arrays, trees, drawn)
        self.main.launch(scalars, arrays, trees, self._with_room(self.capacities), drawn)

    def _with_room(self, capacities: Sequence[int]) -> tuple[int, ...]:
        """Capacities with room to spare where they were counted: a `while` may take a few turns more in another kernel, whose functions
        round otherwise."""
        return tuple([n if size is not None else n + n // 4 + 16 for n, size in zip(capacities, self._sizes)])

    def _find(self, scalars: Sequence[Any], arrays: Sequence[Any], trees: Mapping[int, Allocation], drawn: int | None) -> tuple[int, ...]:
        def memory(kind: str, number: int, offset: int, dtype: DType) -> int:
            raw = np.zeros(1, storage(dtype).np)
            out = raw.data.cast("B")
            if kind == "tree":
                trees[number].read_into(offset, out)
            elif offset + raw.nbytes <= raw.nbytes * math.prod(arrays[number].shape):  # else the loop is not reached, as a rule
                arrays[number].read_into(offset, out)
            return int(raw[0])

        def known(size: Size) -> int:
            return evaluate(size, lambda k: int(scalars[k]), lambda k, axis: int(arrays[k].shape[axis]), memory)

        found = [0 if size is None else known(size) for size in self._sizes]
        for plan, numbers in zip(self.sizing, self._numbers):
            for k, count in zip(numbers, plan.launch(scalars, arrays, trees, self._with_room(found), drawn) or ()):
                found[k] = int(count)
        return tuple(found)
