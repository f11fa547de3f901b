"""`Tape(checkpoints=, memory_GB=)`: the reverse of long programs in little memory. Steps are run again from checkpoints.

A checkpoint is an undo log: what memory held there, of all that was written from there to the next checkpoint. So it costs what the program
writes, not what it uses; to go back to a checkpoint, the logs of those after it are restored, last first, and then its own. The program
runs once and records nothing else; where checkpoints lie, `binomial` says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NoReturn

from spirograd.ad.binomial import Limits, repetitions, schedule
from spirograd.ad.copy_levels import CopyLevels, LevelLimits
from spirograd.ad.copy_memory import CopyMemory, Purpose
from spirograd.ad.exposed import is_exposed
from spirograd.ad.memory_keys import FieldOrArray, Key, Returned
from spirograd.ad.memory_report import LevelReport, MemoryReport, Repetitions, totals
from spirograd.ad.steps import LaunchStep, Step, Used, WriteStep, parts_of, reverse_steps
from spirograd.ad.undo_log import UndoLog, Untouched, Written
from spirograd.ad.versions import Saved, Stored, nbytes_of
from spirograd.base.errors import SpirogradRuntimeError, SpirogradUnsupportedError, render
from spirograd.base.records import dataclass, replace
from spirograd.lang import context
from spirograd.lang.data import shadows


@dataclass
class Checkpoint:
    """``step``: the number of the step that it lies before. ``level``: it may be given up for a later one of a higher level."""

    step: int
    level: float
    log: UndoLog


class Checkpoints:
    """A `StepStore`: the steps of a program, and checkpoints before some of them. There are at most ``count``, and their copies take no
    more bytes than ``limits`` allow."""

    repeats = "a tape with checkpoints"

    def __init__(self, count: int | None, limits: LevelLimits | None) -> None:
        self._count = count
        self._nbytes = None if limits is None else limits.total
        self._memory = CopyMemory(None if limits is None else limits.memory, self._free_up)
        self._levels = None if limits is None or limits.total == limits.memory else CopyLevels(limits, self._memory)
        self._largest = 0  # bytes of a copy
        self._writes: list[Saved] = []  # what Python wrote
        self._positions: list[int] = []  # while the reverse runs: before which steps the checkpoints lie
        self._ends: list[tuple[Key, Saved]] = []  # while the reverse runs: what it puts back at its end
        self.steps: list[Step] = []
        self._kept: list[Checkpoint] = []
        self._stored: dict[Key, Stored] = {}
        self._pending: WriteStep | None = None
        # Of all that was written, the contents at the end, which the reverse puts back.
        self._end: list[Written] = []
        self._unwritten = Untouched()
        self._end_nbytes = 0
        # Bytes that all logs take, that a step adds to a log at most, that its recording takes, and that all took at most at a time.
        self._log_nbytes = self._step_nbytes = self._recorded_nbytes = self._peak = 0
        self._recorder: LaunchStep | None = None  # the step whose recording takes that
        self._host_nbytes = 0  # of what Python wrote
        self._rerun = 0
        self.closed = False
        self._before: MemoryReport | None = None  # of the first run, once the reverse has run

    # --- the first run -----------------------------------------------------------------------------------------------------

    def add(self, step: Step) -> Returned:
        """Run a step for the first time, or prepare for a write of the host; returns what it returns.

        Raises SpirogradRuntimeError if there is too little memory for two states and a step.
        """
        self.settle()
        written = parts_of(step, self._stored)
        self._kept.append(Checkpoint(len(self.steps), 0 if self._kept else float("inf"), UndoLog(self._memory)))
        self._count_end(written)
        if isinstance(step, WriteStep):
            self._host_nbytes += step.kept_nbytes()
        self._count_step(step, self._kept[-1].log.growth(written))
        self._review_levels()
        while self._over(grown := self._kept[-1].log.growth(written)):
            if not self._use_more_levels(grown):
                self._give_up_one(grown)
        self._log(self._kept[-1], written)
        self._note_peak()
        self._ease()
        self.steps.append(step)
        if isinstance(step, WriteStep):
            self._pending = step
            return None
        return step.run()

    def host_write(self, step: WriteStep) -> None:
        """See `StepStore`."""
        if not shadows.is_shadow(step.memory):
            self.add(step)

    def unseen_write(self, key: Key, before: Saved, reverse: Callable[[], None] | None) -> None:
        """Ignore writes to memory that was handed out, which `replay` refuses. See `StepStore`."""

    def nested(self) -> None:
        """Return None: the steps of `ad.checkpoint` are like others."""

    def settle(self) -> None:
        """Complete the last step, if that was a write."""
        if self._pending is not None:
            self._pending.settle(self._memory)
            if self._pending.copy is not None:
                self._writes.append(self._pending.copy)
            self._pending = None

    def _count_step(self, step: Step, nbytes: int) -> None:
        """Note what a step takes that writes so much: in a log, and when it is recorded."""
        self._step_nbytes = max(self._step_nbytes, nbytes)
        saving = step if isinstance(step, LaunchStep) else None
        saved = 0 if saving is None else saving.saved_nbytes()
        if nbytes + saved > self._recorded_nbytes:
            self._recorded_nbytes = nbytes + saved
            self._recorder = saving if saved else None

    def _count_end(self, written: Iterable[Written]) -> None:
        for key, memory, part in written:
            for taken in self._unwritten.take(key, part):
                self._end.append((key, memory, taken))
                self._end_nbytes += nbytes_of(memory.view(taken))

    def _log(self, checkpoint: Checkpoint, written: Iterable[Written]) -> None:
        """Save for a checkpoint what is about to be written."""
        before, copies = checkpoint.log.nbytes, len(checkpoint.log.saved)
        checkpoint.log.before(written)
        self._log_nbytes += checkpoint.log.nbytes - before
        self._largest = max([self._largest, *[saved.nbytes for _, saved in checkpoint.log.saved[copies:]]])

    def _over(self, grown: int) -> bool:
        too_many = self._count is not None and len(self._kept) > self._count
        return too_many or self._needed() + grown > self._capacity

    @property
    def _capacity(self) -> float:
        """Bytes that copies may take on all levels that are used."""
        return (math.inf if self._nbytes is None else self._nbytes) if self._levels is None else self._levels.total

    def _use_more_levels(self, grown: int) -> bool:
        """Use more levels if that saves time, or if nothing fits without them. Return whether there is more memory from now on."""
        if self._levels is None or self._needed() + grown <= self._capacity:
            return False
        if len(self._kept) == 1:
            return self._levels.costs.need()
        return self._levels.more(len(self.steps), self._fixed(), self._log_nbytes / (len(self._kept) - 1), self._copies())

    def _review_levels(self) -> None:
        if self._levels is not None and self._levels.costs.used > 1 and len(self._kept) > 1:
            self._levels.review(len(self.steps), self._fixed(), self._log_nbytes / (len(self._kept) - 1), self._copies)

    def _fixed(self) -> int:
        """Return the bytes that everything but checkpoints takes."""
        return self._end_nbytes + self._host_nbytes + self._recorded_nbytes + self._waste()

    def _needed(self) -> int:
        return self._log_nbytes + self._fixed()

    def _waste(self) -> int:
        return 0 if self._levels is None else self._levels.waste(self._largest)

    def _copies(self) -> list[Saved]:
        """Return all copies that may leave the device, those that are needed last first."""
        return [*self._writes, *[saved for _, saved in chain(self._ends, *[kept.log.saved for kept in self._kept])]]

    def _ease(self) -> None:
        if self._levels is not None:
            begin = time.perf_counter()
            self._levels.ease(self._copies())
            self._levels.costs.aside(begin)

    def _free_up(self, nbytes: int, purpose: Purpose) -> None:
        """Free ``nbytes`` of the device: move copies to other levels, or give up checkpoints of the reverse. Raises
        SpirogradRuntimeError if that does not suffice."""
        while not (self._memory.has_capacity(nbytes) or (self._levels is not None and self._levels.free_up(self._copies(), nbytes))):
            if len(self._positions) < 3:
                assert self._memory.limit is not None
                used = f"{purpose.what} takes {nbytes / 1e9:.3g} GB, and other copies {self._memory.used / 1e9:.3g} GB"
                hint = f"{used}: raise `memory_GB`{purpose.remedy}"
                raise SpirogradRuntimeError(render(f"a tape with {self._limit()} has too little memory", purpose.loc, hint))
            # The one between whose neighbours least is to be repeated.
            k = min(range(1, len(self._positions) - 1), key=lambda k: self._positions[k + 1] - self._positions[k - 1])
            del self._positions[k]
            self._give_up(k)

    def _limit(self) -> str:
        """Return how the user limited the memory of the device."""
        assert self._memory.limit is not None
        return f"`memory_GB={self._memory.limit / 1e9:g}`"

    def close(self) -> None:
        """Free what the copies take. The reverse cannot run any more."""
        self.closed = True
        self._kept, self._ends, self._writes = [], [], []
        self._memory.clear()
        if self._levels is not None:
            self._levels.close()

    def _give_up_one(self, grown: int) -> None:
        """Give up a checkpoint by the rule of Wang, Moin and Iaccarino: one that a later one of a higher level makes dispensable, else the
        last but one, whose level the last one then exceeds. ``grown``: bytes that the last step adds."""
        kept = self._kept
        if len(kept) == 1:
            self._refuse(grown)
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
        self._give_up(number)

    def _give_up(self, number: int) -> None:
        """Have the checkpoint before this one reach to the next."""
        given_up, before = self._kept.pop(number).log, self._kept[number - 1].log
        nbytes = before.nbytes + given_up.nbytes
        before.take_over(given_up.saved)
        self._log_nbytes += before.nbytes - nbytes

    def _refuse(self, grown: int) -> NoReturn:
        assert self._nbytes is not None
        levels = "memory_GB" if self._levels is None else "memory_GB, host_GB and disk_GB together"
        problem = f"a tape with `{levels}={self._nbytes / 1e9:g}` has too little memory"
        needed = f"{(self._needed() + grown) / 1e9:.3g} GB"
        step, loc = "one step", None
        if self._recorder is not None and self._recorder.gradient is not None:
            step = f"one launch of {self._recorder.gradient.label}, which saves values that it overwrites and its gradient needs,"
            loc = self._recorder.launch.specialization.kernel.loc
        hint = f"what the program writes, before and after it, and {step} take {needed}: raise `memory_GB` to more"
        raise SpirogradRuntimeError(render(problem, loc, hint))

    def _note_peak(self, recorded: int = 0) -> None:
        self._peak = max(self._peak, self._memory.peak, self._log_nbytes + self._end_nbytes + self._host_nbytes + recorded)

    # --- the reverse -----------------------------------------------------------------------------------------------------------

    def replay(self, last: bool) -> None:
        """Run the reverses of all steps. Afterwards memory holds what it held, and the reverse can run again. See `StepStore`.

        Raises SpirogradUnsupportedError if memory that is to be used again may have been written unseen."""
        for memory in self.used():
            if is_exposed(memory):
                name = getattr(memory, "name", "an ndarray")
                problem = f"{self.repeats} runs launches again, and they use `{name}`, which was handed out by `to_numpy(copy=False)`"
                raise SpirogradUnsupportedError(f"{problem} or DLPack and may have changed by then", None, "copy it: `to_numpy()`")
        with context.session().without_prints():
            self._reverse()

    def _reverse(self) -> None:
        self.settle()
        self._before, self._rerun = self.report(), 0
        if not self.steps:
            return
        storage = {key for key, _, part in self._end if part is None}
        self._ends = []
        swapped = 0
        try:
            for key, memory, part in self._end:
                if part is None or key not in storage:
                    self._ends.append((key, Saved(memory, part, None, self._memory)))
                    self._ease()
            self._positions = [kept.step for kept in self._kept]
            for action in schedule(self._positions, len(self.steps), self._limits()):
                self._do(action.kind, action.begin, action.end)
                self._ease()
            self._positions = []
            for _, saved in self._ends:
                saved.swap()
                swapped += 1
                self._ease()
        except BaseException:
            self._abandon(swapped)
            raise
        first = Checkpoint(0, float("inf"), UndoLog(self._memory))
        first.log.take_over(self._ends)
        self._kept, self._log_nbytes, self._ends = [first], first.log.nbytes, []

    def _abandon(self, swapped: int) -> None:
        """Set memory to what it held before the reverse, which has failed after ``swapped`` copies. The reverse cannot run any more."""
        self._positions = []
        for kept in self._kept:
            kept.log.free()
        self._memory.limit = None  # what restores memory may take what it needs
        for _, saved in self._ends[swapped:]:
            saved.put()
        for _, saved in self._ends:
            saved.free()
        self.close()

    def _limits(self) -> Limits:
        """Return the limits of the checkpoints that the reverse makes."""
        if self._nbytes is None:
            return Limits(self._count)
        return Limits(self._count, self._capacity - self._fixed(), self._end_nbytes, self._step_nbytes)

    def _do(self, kind: str, begin: int, end: int) -> None:
        last = self._kept[-1]
        if kind == "repeat":
            for step in self.steps[begin:end]:
                self._log(last, parts_of(step, self._stored))
                self._ease()
                step.run()
            self._rerun += end - begin
            self._note_peak()
        elif kind == "keep":
            self._kept.append(Checkpoint(begin, 0, UndoLog(self._memory)))
        elif kind == "reverse":
            before = last.log.nbytes
            recorded = reverse_steps(self.steps[begin:end], last.log, self._stored, self._memory)
            self._log_nbytes += last.log.nbytes - before
            self._recorded_nbytes = max(self._recorded_nbytes, recorded)
            self._note_peak(recorded)
            self._rerun += end - begin
        elif kind == "return":
            self._log_nbytes -= last.log.nbytes
            last.log.restore()
        elif kind == "drop":
            self._kept.pop()

    # --- what it takes ---------------------------------------------------------------------------------------------------------

    def used(self) -> Iterator[FieldOrArray]:
        """Yield the fields and ndarrays of all steps."""
        return (storage for _, _, storage in self.wanted())

    def wanted(self) -> Iterator[Used]:
        """Yield the memory of all steps: key, name, and field or ndarray."""
        memories = {key: (key, name, storage) for step in self.steps for key, name, storage in step.used()}
        return iter(memories.values())

    def report(self) -> MemoryReport:
        """Return what the reverse will take, or what it took once it has run."""
        if self._before is not None:
            planned = self._before.repetitions
            assert planned is not None
            facts = replace(planned, repeated=self._rerun, peak=self._peak, ran=True, levels=self._level_reports())
            return replace(self._before, repetitions=facts)
        again = repetitions([kept.step for kept in self._kept], len(self.steps), self._limits()) if self.steps else 0
        launches = sum(isinstance(step, LaunchStep) and step.gradient is not None for step in self.steps)
        logs = (saved for kept in self._kept for _, saved in kept.log.saved)
        items = totals((saved.memory.name, saved.nbytes) for saved in chain(logs, self._writes))
        planned = Repetitions(len(self.steps), len(self._kept), again, self._peak, False, self._level_reports())
        return MemoryReport(launches, items, planned)

    def _level_reports(self) -> tuple[LevelReport, ...]:
        return () if self._levels is None else self._levels.reports()
