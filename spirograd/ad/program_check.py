"""Comparing the gradients of a program with finite differences of the program itself.

The differences have the errors of the program's own arithmetic: large steps are inexact for programs that bend, small ones for numbers of
32 bits. So steps are made smaller until two differences agree; else the two that differ least serve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar, Union, runtime_checkable

import numpy as np

from spirograd.ad.check_report import GradCheck, Row
from spirograd.ad.program_memory import leaves_of, tree_like
from spirograd.base.arrays import Array

Inputs = Union[Sequence[object], Mapping[str, object]]
# By the bytes of a float: the first step, and the tolerance.
_BY_SIZE = {8: (1e-4, 1e-5), 4: (2e-2, 1e-2), 2: (1e-1, 5e-2)}
_SMALLER, _SIZES = 4.0, 6  # how much smaller each step is than the last, and how many sizes there are
_WEIGHTS = {1: 2 / 3, 2: -1 / 12}  # of differences by 1 and 2 steps: of fourth order


T = TypeVar("T", covariant=True)


class _Function(Protocol[T]):
    def __call__(self, *args: object, **kwargs: object) -> T: ...


@runtime_checkable
class CheckedProgram(Protocol):
    """A differentiable program, such as `sg.ad.program` makes."""

    @property
    def name(self) -> str:
        """The name of its function."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return the outputs."""

    def vjp(self, *args: object, **kwargs: object) -> tuple[object, Callable[[object], object]]:
        """Return the outputs, and a function from their gradients to those of the inputs."""


def check_program(
    program: CheckedProgram,
    inputs: Inputs,
    static: Mapping[str, object],
    rng: np.random.Generator,
    eps: float | None,
    rtol: float | None,
    atol: float | None,
    entries: int,
) -> GradCheck:
    """Return the comparison, a row for each input. Arguments as of `gradcheck`; the absolute tolerance is by default ``rtol`` times the
    largest gradient of the input."""
    check = _Check(program, inputs, static, rng)
    return GradCheck(program.name, tuple(check.row(k, eps, rtol, atol, entries) for k in range(len(check.values))))


class _Check:
    def __init__(
        self,
        program: CheckedProgram,
        inputs: Inputs,
        static: Mapping[str, object],
        rng: np.random.Generator,
    ) -> None:
        self._program, self._inputs, self._static, self._rng = program, inputs, static, rng
        named = list(leaves_of(inputs, ""))
        self.names = [f"inputs{path}" for path, _ in named]
        self.values: list[Array] = [np.array(value) for _, value in named]
        outputs, pullback = self._call(program.vjp, self.values)
        self._adjoints = [rng.standard_normal(np.asarray(value).shape) for _, value in leaves_of(outputs, "")]
        self.gradients = [np.asarray(gradient) for _, gradient in leaves_of(pullback(tree_like(outputs, self._adjoints)), "")]

    def _call(self, function: _Function[T], values: Sequence[Array]) -> T:
        given = tree_like(self._inputs, values)
        if isinstance(given, Mapping):
            return function(**given, **self._static)
        assert isinstance(given, (list, tuple))
        return function(*given, **self._static)

    def _loss(self, values: Sequence[Array]) -> float:
        """Return the sum of the outputs, weighted by their gradients."""
        outputs = [np.asarray(value, np.float64) for _, value in leaves_of(self._call(self._program, values), "")]
        return sum(float(np.vdot(adjoint, output)) for adjoint, output in zip(self._adjoints, outputs))

    def row(self, k: int, eps: float | None, rtol: float | None, atol: float | None, entries: int) -> Row:
        """Return the comparison of one input."""
        gradient = self.gradients[k]
        value = np.asarray(self.values[k], gradient.dtype).reshape(gradient.shape)
        default_eps, default_rtol = _BY_SIZE[gradient.dtype.itemsize]
        rtol = default_rtol if rtol is None else rtol
        atol = rtol * max(float(np.abs(gradient).max(initial=0.0)), 1e-30) if atol is None else atol
        chosen = np.arange(value.size) if value.size <= entries else np.sort(self._rng.choice(value.size, entries, replace=False))
        worst: tuple[float, tuple[int, ...], float, float] = (-1.0, (), 0.0, 0.0)
        first_wrong: tuple[int, ...] | None = None
        for flat in chosen:
            at = tuple(int(n) for n in np.unravel_index(flat, value.shape))
            step = (default_eps if eps is None else eps) * max(1.0, abs(float(value[at])))
            difference = self._difference(k, value, at, step, lambda found: atol + rtol * abs(found))
            found = float(gradient[at])
            excess = abs(found - difference) / (atol + rtol * abs(difference))
            excess = np.inf if np.isnan(excess) else excess
            if excess > worst[0]:
                worst = (excess, at, found, difference)
            if excess > 1 and first_wrong is None:
                first_wrong = at
        return Row(self.names[k], len(chosen), value.size, worst[1], worst[2], worst[3], first_wrong)

    def _difference(self, k: int, value: Array, at: tuple[int, ...], step: float, tolerance: Callable[[float], float]) -> float:
        """Return the difference quotient by one element: of the sizes of steps, the one that differs least from the size before."""
        best, least = self._quotient(k, value, at, step), np.inf
        last = best
        for size in range(1, _SIZES):
            found = self._quotient(k, value, at, step / _SMALLER**size)
            if abs(found - last) < least:
                best, least = found, abs(found - last)
            last = found
            if least < 0.1 * tolerance(best):
                break
        return best

    def _quotient(self, k: int, value: Array, at: tuple[int, ...], step: float) -> float:
        """Return the difference quotient with one step, as the type of the input can represent it."""
        total = 0.0
        for count, weight in _WEIGHTS.items():
            ends = []
            for sign in (1, -1):
                moved = value.copy()
                moved[at] += sign * count * step
                ends.append((float(moved[at]), self._loss([*self.values[:k], moved, *self.values[k + 1 :]])))
            total += weight * (ends[0][1] - ends[1][1]) * 2 * count / (ends[0][0] - ends[1][0])
        return total
