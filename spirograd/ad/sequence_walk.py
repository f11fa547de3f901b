"""The reverse pass of a sequence of launches by one call of compiled code: see `base.reverse_walk`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spirograd.base.arguments import PreparedLaunch, Write
from spirograd.base.launch_cursor import Words, copy_words
from spirograd.base.records import dataclass
from spirograd.base.reverse_walk import ARGUMENTS, BY_PYTHON, BY_RECORD, FIXED, HAS_LAUNCHED, LEAST, LEFT, NO_LAUNCH, PENDING
from spirograd.lang.frontend.native_calls import NativeCalls

if TYPE_CHECKING:
    from spirograd.ad.launch_sequences import StepCopies

# The launches of one call: the interpreter looks for interrupts after it.
_MOST_LAUNCHES = 256


@dataclass(slots=True, eq=False)
class _Step:
    """A step: how it launches, by what, and the offset and size of its own argument block."""

    mode: int
    prepared: PreparedLaunch | None = None
    block: int = 0


class SequenceWalk(Words):
    """The reverse pass of a sequence whose derivatives are ``calls``, with these ``copies`` for each launch. ``writes``: the memory that
    copies are put back to. ``run``: the function of compiled code."""

    def __init__(
        self, calls: Sequence[NativeCalls | None], copies: Sequence[StepCopies], writes: Sequence[Write], run: Callable[[int], object]
    ) -> None:
        self._calls = {id(one): (one, one.prepared) for one in calls if one is not None}
        self._restored = writes
        self._run = run
        steps, nbytes = self._steps_of(calls)
        self._blocks = (ctypes.c_uint64 * max(nbytes // 8, 1))()
        self._kept = [copy_words(back) for step in copies for back in (step.before, step.after)]
        words: list[int] = []
        for step, before, after in zip(steps, self._kept[::2], self._kept[1::2], strict=True):
            words += [step.mode, 0, ctypes.addressof(self._blocks) + step.block, 0, before.address, after.address]
            if step.prepared is not None:
                words[-5] = id(step.prepared.record)
                words[-3] = 0 if step.prepared.fixed is None else id(step.prepared.fixed.number)
        self._steps = Words(words)
        self._ticks = Words(self._tick_words(writes))
        super().__init__([0, 0, 0, 0, self._steps.address, self._ticks.address, 0])

    def _steps_of(self, calls: Sequence[NativeCalls | None]) -> tuple[list[_Step], int]:
        """Return the steps, and the number of bytes of their argument blocks."""
        steps, at = [], 0
        for one in calls:
            prepared = None if one is None else self._calls[id(one)][1]
            if prepared is None:
                steps.append(_Step(NO_LAUNCH if one is None else BY_PYTHON))
            elif prepared.fixed is None:
                steps.append(_Step(BY_RECORD, prepared))
            else:
                steps.append(_Step(FIXED, prepared, at))
                at += -(-prepared.fixed.nbytes // 8) * 8
        return steps, at

    def _tick_words(self, writes: Sequence[Write]) -> list[int]:
        """Return the memory whose generations change: of copies, and of launches by their own argument blocks."""
        fixed = [prepared.fixed for _, prepared in self._calls.values() if prepared is not None and prepared.fixed is not None]
        written = {(id(generations), part): generations for one in fixed for generations, part in one.writes}
        written |= {(id(generations), part): generations for generations, part in writes}
        self._written = [(generations, part) for (_, part), generations in written.items()]
        return [len(self._written), *(id(value) for write in self._written for value in write)]

    def is_current(self, writes: Sequence[Write]) -> bool:
        """Return whether the derivatives launch as they did when this was made, and copies are put back to the same memory."""
        is_same = all(one[0] is other[0] for one, other in zip(self._restored, writes))
        return is_same and all(one.prepared is prepared for one, prepared in self._calls.values())

    def begin(self, arguments: list[tuple[object, ...]]) -> None:
        """Begin at the last one of the launches, which had these ``arguments``."""
        self[ARGUMENTS], self[LEFT], self[HAS_LAUNCHED], self[PENDING] = id(arguments), len(arguments), 0, 1

    def run(self, least: int, launch: Callable[[int], None]) -> int:
        """Run launches until ``least`` are left, or sooner; return how many are left. ``launch``: launches the derivative of the step with
        a number by Python."""
        self[LEAST] = max(least, self[LEFT] - _MOST_LAUNCHES)
        if self._run(self.address) is NotImplemented:
            launch(self[LEFT] - 1)
            self[HAS_LAUNCHED] = 1
        return self[LEFT]
