"""`Tape(checkpoints=, memory_GB=)`: the reverse of long programs in little memory. Steps are run again from checkpoints.

A checkpoint is an undo log: what memory held there, of all that was written from there to the next checkpoint. So it costs what the program
writes, not what it uses; to go back to a checkpoint, the logs of those after it are restored, last first, and then its own. The program
runs once and records nothing else; where checkpoints lie, `binomial` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from spirograd.ad.binomial import Limits, repetitions, schedule
from spirograd.ad.copy_levels import CopyLevels, LevelLimits
from spirograd.ad.memory_report import LevelReport, MemoryReport, Repetitions, totals
from spirograd.ad.steps import LaunchStep, Step, WriteStep
from spirograd.ad.undo_log import Part, UndoLog, Untouched, parts_of, reverse_steps
from spirograd.ad.versions import Saved, Stored, nbytes_of
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.records import dataclass, replace


@dataclass
class Checkpoint:
    """``step``: the number of the step that it lies before. ``level``: it may be given up for a later one of a higher level."""

    step: int
    level: float
    log: UndoLog


class Checkpoints:
    """The steps of a program, and checkpoints before some of them: at most ``count``, and so many that copies take ``nbytes`` at most."""

    def __init__(self, count: int | None, limits: LevelLimits | None) -> None:
        self._count = count
        self._nbytes = None if limits is None else limits.total
        self._levels = None if limits is None or limits.total == limits.memory else CopyLevels(limits)
        self._largest = 0  # bytes of a copy
        self._ends: list[tuple[Any, Saved]] = []  # while the reverse runs: what it puts back at its end
        self.steps: list[Step] = []
        self._kept: list[Checkpoint] = []
        self._stored: dict[Any, Stored] = {}
        self._pending: WriteStep | None = None
        # Of all that was written, the contents at the end, which the reverse puts back.
        self._end: list[Part] = []
        self._unwritten = Untouched()
        self._end_nbytes = 0
        # Bytes that all logs take, that the recording of a step may take, and that all took at most at a time.
        self._log_nbytes = self._step_nbytes = self._peak = 0
        self._host_nbytes = 0  # of what Python wrote
        self._rerun = 0
        self._before: MemoryReport | None = None  # of the first run, once the reverse has run

    # --- the first run -----------------------------------------------------------------------------------------------------

    def add(self, step: Step) -> Any:
        """Run a step for the first time, or prepare for a write of the host; returns what it returns.

        Raises SpirogradRuntimeError if there is too little memory for two states and a step.
        """
        self.settle()
        written = parts_of(step, self._stored)
        self._kept.append(Checkpoint(len(self.steps), 0 if self._kept else float("inf"), UndoLog()))
        self._count_end(written)
        grown = self._log(self._kept[-1], written)
        self._step_nbytes = max(self._step_nbytes, grown)
        while self._over():
            self._give_up_one()
        self._note_peak()
        self._arrange()
        self.steps.append(step)
        if isinstance(step, WriteStep):
            self._pending = step
            return None
        return step.run()

    def settle(self) -> None:
        """The last step is done, also if it was a write."""
        if self._pending is not None:
            self._pending.settle()
            if self._pending.copy is not None:
                self._host_nbytes += self._pending.copy.nbytes
            self._pending = None

    def _count_end(self, written: Iterable[Part]) -> None:
        for key, memory, part in written:
            for taken in self._unwritten.take(key, part):
                self._end.append((key, memory, taken))
                self._end_nbytes += nbytes_of(memory.view(taken))

    def _log(self, checkpoint: Checkpoint, written: Iterable[Part]) -> int:
        """Save for a checkpoint what is about to be written; returns the bytes."""
        before, copies = checkpoint.log.nbytes, len(checkpoint.log.saved)
        checkpoint.log.before(written)
        grown = checkpoint.log.nbytes - before
        self._log_nbytes += grown
        self._largest = max([self._largest, *[saved.nbytes for _, saved in checkpoint.log.saved[copies:]]])
        return grown

    def _over(self) -> bool:
        too_many = self._count is not None and len(self._kept) > self._count
        return too_many or (self._nbytes is not None and self._needed() > self._nbytes)

    def _needed(self) -> int:
        return self._log_nbytes + self._end_nbytes + self._host_nbytes + self._step_nbytes + self._waste()

    def _waste(self) -> int:
        return 0 if self._levels is None else self._levels.waste(self._largest)

    def _arrange(self) -> None:
        """Move copies among the levels of memory."""
        if self._levels is not None:
            logs = [saved for kept in self._kept for _, saved in kept.log.saved]
            self._levels.arrange([*[saved for _, saved in self._ends], *logs], self._host_nbytes + self._step_nbytes)

    def close(self) -> None:
        """Free what the copies take. The reverse cannot run any more."""
        self._kept, self._ends = [], []
        if self._levels is not None:
            self._levels.close()

    def _give_up_one(self) -> None:
        """By the rule of Wang, Moin and Iaccarino: one that a later one of a higher level makes dispensable, else the last but one, whose
        level the last one then exceeds."""
        kept = self._kept
        if len(kept) == 1:
            assert self._nbytes is not None
            levels = "memory_GB" if self._levels is None else "memory_GB, host_GB and disk_GB together"
            problem = f"a tape with `{levels}={self._nbytes / 1e9:g}` has too little memory"
            needed = f"{self._needed() / 1e9:.3g} GB"
            hint = f"what the program writes, before and after it, and one step take {needed}: raise `memory_GB` to more"
            raise SpirogradRuntimeError(render(problem, None, hint))
        highest, number = kept[-1].level, len(kept) - 1
        for k in range(len(kept) - 2, 0, -1):
            if kept[k].level < highest:
                number = k
                break
            highest = max(highest, kept[k].level)
        else:
            if len(kept) > 2:
                number = len(kept) - 2
                kept[-1].level = kept[number].level + 1
        given_up = kept.pop(number).log
        before = kept[number - 1].log.nbytes
        kept[number - 1].log.take_over(given_up.saved)
        self._log_nbytes += kept[number - 1].log.nbytes - before - given_up.nbytes

    def _note_peak(self, recorded: int = 0) -> None:
        self._peak = max(self._peak, self._log_nbytes + self._end_nbytes + self._host_nbytes + recorded)

    # --- the reverse -----------------------------------------------------------------------------------------------------------

    def reverse(self) -> None:
        """Run the reverses of all steps. Afterwards memory holds what it held, and the reverse can run again."""
        self.settle()
        self._before, self._rerun = self.report(), 0
        if not self.steps:
            return
        whole = {key for key, _, part in self._end if part is None}
        self._ends = []
        for key, memory, part in self._end:
            if part is None or key not in whole:
                self._ends.append((key, Saved(memory, part)))
                self._arrange()
        complete = False
        try:
            for action in schedule([kept.step for kept in self._kept], len(self.steps), self._limits()):
                self._do(action.kind, action.begin, action.end)
                self._arrange()
            complete = True
        finally:
            for _, saved in self._ends:
                saved.swap()
                if complete:  # after an exception memory is only put back, since moving copies may fail
                    self._arrange()
        first = Checkpoint(0, float("inf"), UndoLog())
        first.log.take_over(self._ends)
        self._kept, self._log_nbytes, self._ends = [first], first.log.nbytes, []

    def _limits(self) -> Limits:
        """Of the checkpoints that the reverse makes."""
        if self._nbytes is None:
            return Limits(self._count)
        free = self._nbytes - self._end_nbytes - self._host_nbytes - self._step_nbytes - self._waste()
        return Limits(self._count, free, self._end_nbytes, self._step_nbytes)

    def _do(self, kind: str, begin: int, end: int) -> None:
        last = self._kept[-1]
        if kind == "repeat":
            for step in self.steps[begin:end]:
                self._log(last, parts_of(step, self._stored))
                self._arrange()
                step.run()
            self._rerun += end - begin
            self._note_peak()
        elif kind == "keep":
            self._kept.append(Checkpoint(begin, 0, UndoLog()))
        elif kind == "reverse":
            before = last.log.nbytes
            recorded = reverse_steps(self.steps[begin:end], last.log, self._stored)
            self._log_nbytes += last.log.nbytes - before
            self._step_nbytes = max(self._step_nbytes, recorded)
            self._note_peak(recorded)
            self._rerun += end - begin
        elif kind == "return":
            self._log_nbytes -= last.log.nbytes
            last.log.restore()
        elif kind == "drop":
            self._kept.pop()

    # --- what it takes ---------------------------------------------------------------------------------------------------------

    def used(self) -> Iterator[tuple[Any, str, Any]]:
        """The memory of all steps: key, name, and field or ndarray."""
        found = {key: (key, name, whole) for step in self.steps for key, name, whole in step.used()}
        return iter(found.values())

    def report(self) -> MemoryReport:
        """Before the reverse what it will take, after it what it took."""
        if self._before is not None:
            planned = self._before.repetitions
            assert planned is not None
            facts = replace(planned, repeated=self._rerun, peak=self._peak, ran=True, levels=self._level_reports())
            return replace(self._before, repetitions=facts)
        again = repetitions([kept.step for kept in self._kept], len(self.steps), self._limits()) if self.steps else 0
        launches = sum(isinstance(step, LaunchStep) and step.made is not None for step in self.steps)
        logs = (saved for kept in self._kept for _, saved in kept.log.saved)
        written = (step.copy for step in self.steps if isinstance(step, WriteStep) and step.copy is not None)
        items = totals((saved.memory.name, saved.nbytes) for saved in chain(logs, written))
        planned = Repetitions(len(self.steps), len(self._kept), again, self._peak, False, self._level_reports())
        return MemoryReport(launches, items, planned)

    def _level_reports(self) -> tuple[LevelReport, ...]:
        return () if self._levels is None else self._levels.reports()
