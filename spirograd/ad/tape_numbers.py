"""What a tape does with numbers that Python reads from memory with a gradient: see `lang.traced_numbers`.

A read is a step of the program whose reverse adds the adjoint of the number to the gradient of the element. Steps run backwards, so by then
all that was computed from the number has its adjoint; see `NumberRecord.settle`. Values come from the first run: Python does not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from spirograd.ad.memory_keys import FieldOrArray, Key, ProgramRecorder
from spirograd.ad.step_store import StepStore
from spirograd.ad.steps import CallStep
from spirograd.ad.versions import memory_identity
from spirograd.base.loc import Loc
from spirograd.base.protocols import Scalar
from spirograd.base.recorder import Clear
from spirograd.base.tracebacks import user_location
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.scalar_cells import Cell, cells_of
from spirograd.lang.traced_numbers import NumberRecord, TracedNumber


def is_followed(memory: FieldOrArray) -> bool:
    """Return whether numbers of a field or ndarray are followed to a gradient."""
    primal = not isinstance(memory, ScalarField) or memory.role == "primal"
    return primal and memory.dtype.is_float and memory.has_grad()


class TapeNumbers:
    """The numbers of one tape."""

    def __init__(self, refusal: str = "") -> None:
        self.record = NumberRecord(refusal)

    def read(
        self, memory: FieldOrArray, key: object, values: Sequence[Scalar], location: Callable[[], Loc | None]
    ) -> tuple[Sequence[TracedNumber], CallStep]:
        """Return the element at ``key`` of ``memory`` as numbers that are followed, and the step that reads it."""
        record, loc = self.record, location()
        read = [TracedNumber(float(value), record, (), loc) for value in values]

        def reverse() -> None:
            record.settle(read[0].position)
            _add(memory.grad, key, [number.adjoint for number in read])

        return read, CallStep(reverse, {})

    def written(self, memory: FieldOrArray, key: object, component: int | None, numbers: Sequence[object], clear: Clear) -> Clear:
        """Return the reverse of a write of ``numbers``: they get the gradient of what is written, which ``clear`` sets to zero."""
        traced = _usable(numbers, "written to memory")

        def reverse(role: str = "grad") -> None:
            if role == "grad":
                gradients = _gradients(memory.grad, key)
                for k, number in traced:
                    number.adjoint += gradients[k if component is None else component]
            clear(role)

        return reverse

    def passed(self, cells: Sequence[Cell]) -> CallStep:
        """Return the step before a launch that takes numbers in ``cells``."""
        traced = [(cell.array, _usable((cell.number,), "an argument of a kernel")[0][1]) for cell in cells]

        def reverse() -> None:
            for array, number in traced:
                number.adjoint += float(array.grad[0])
                array.grad.fill(0.0)

        return CallStep(reverse, {})


def _usable(numbers: Sequence[object], where: str) -> list[tuple[int, TracedNumber]]:
    """Return the numbers that a tape follows, with their positions."""
    traced = [(k, number) for k, number in enumerate(numbers) if isinstance(number, TracedNumber) and number.is_open]
    for _, number in traced:
        number.check_usable(where)
    return traced


def _gradients(gradient: FieldOrArray, key: object) -> list[float]:
    """Return the entries of an element; for None the sum over all elements."""
    if key is not None:
        element = gradient[key]
        return [float(entry) for entry in (element.entries if gradient.element_shape else (element,))]
    contents = gradient.to_numpy().astype(np.float64)
    entries: list[float] = contents.reshape(-1, int(np.prod(gradient.element_shape))).sum(axis=0).tolist()
    return entries


def _add(gradient: FieldOrArray, key: object, adjoints: Sequence[float]) -> None:
    if not any(adjoints):
        return
    sums = [entry + adjoint for entry, adjoint in zip(_gradients(gradient, key), adjoints)]
    gradient[key] = np.array(sums).reshape(gradient.element_shape) if gradient.element_shape else sums[0]


class FollowsNumbers(ProgramRecorder):
    """The part of a tape that follows numbers of Python; see `Recorder`."""

    follows_numbers = True
    _numbers: TapeNumbers
    _paused: object
    _inactive: dict[Key, tuple[str, Loc | None, object]]
    _active_outputs: set[Key]

    @property
    def _steps(self) -> StepStore:
        raise NotImplementedError

    def _read(self, step: CallStep) -> None:
        raise NotImplementedError

    def read_numbers(
        self, memory: FieldOrArray, key: object, values: Sequence[Scalar], location: Callable[[], Loc | None]
    ) -> Sequence[Scalar | TracedNumber]:
        """Record a read of the numbers ``values`` of the element at ``key`` of ``memory``; ``location`` gives the line."""
        if self._paused is not None or not is_followed(memory):
            if memory_identity(memory)[0] in self._inactive:
                self.host_read(memory, "an index")
            return values
        numbers, step = self._numbers.read(memory, key, values, location)
        self._read(step)
        return numbers

    def numbers_written(self, memory: FieldOrArray, key: object, component: int | None, numbers: Sequence[object], clear: Clear) -> Clear:
        """Return the reverse of a write of ``numbers`` to the element at ``key`` of ``memory``, or one ``component`` of it, in place of
        ``clear``."""
        if self._paused is not None or not is_followed(memory):
            return clear
        return self._numbers.written(memory, key, component, numbers, clear)

    def numbers_kept(self, memory: FieldOrArray) -> None:
        """Note that ``memory`` depends on numbers that are followed."""
        name = memory_identity(memory)[0]
        if is_followed(memory):
            self._active_outputs.add(name)
        elif self._paused is None and memory.dtype.is_float:
            self._inactive[name] = ("Python", user_location(), memory)

    def cells_of(self, kernel: Kernel, args: Sequence[object]) -> tuple[Kernel, tuple[object, ...], Sequence[Cell]] | None:
        """Return what `scalar_cells.cells_of` does for ``kernel`` and ``args``."""
        return None if self._paused is not None else cells_of(kernel, args)

    def numbers_passed(self, cells: Sequence[Cell]) -> None:
        """Record that a launch follows that takes numbers in ``cells``."""
        self._steps.add(self._numbers.passed(cells))
