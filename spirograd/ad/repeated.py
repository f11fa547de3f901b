"""`ad.checkpoint`: a part of a program whose launches a tape does not record. Its reverse runs them again, to record them then."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spirograd.ad.entries import Launch, TapeEvent
from spirograd.ad.memory_keys import FieldOrArray, Key, Returned
from spirograd.ad.memory_report import MemoryReport
from spirograd.ad.recording import TapeRecording
from spirograd.ad.saving_rule import REPEATED
from spirograd.ad.steps import LaunchStep, Step, Used, WriteStep, reverse_steps
from spirograd.ad.undo_log import UndoLog
from spirograd.ad.versions import Saved
from spirograd.lang import context
from spirograd.lang.data import shadows


class Repeated:
    """A `StepStore`: steps that are one event of the recording ``outer``, whose reverse finds all memory that they use as it was before
    them."""

    repeats = "`ad.checkpoint`"
    closed = False

    def __init__(self, outer: TapeRecording) -> None:
        self.outer = outer
        self._steps: list[Step] = []
        self._launches: list[Launch] = []
        self._event = TapeEvent(reverse=self._reverse, used=self._launches)
        self._pending: WriteStep | None = None
        outer.events.append(self._event)

    def add(self, step: Step) -> Returned:
        """Run a step for the first time, or prepare for a write of the host; returns what it returns."""
        self.settle()
        for key, name, storage in step.used():
            if key not in self._event.before:
                self.outer.need(self._event, key, name, storage, REPEATED)
        for key, _, _, at in step.written():
            self._event.save(self.outer.versions.write(key, lambda at=at: at))  # type: ignore[misc]
        self._steps.append(step)
        if isinstance(step, WriteStep):
            self._pending = step
            return None
        if isinstance(step, LaunchStep):
            self._launches.append(step.launch)
            self._event.launches += step.gradient is not None
        return step.run()

    def host_write(self, step: WriteStep) -> None:
        """See `StepStore`."""
        if not shadows.is_shadow(step.memory):
            self.add(step)

    def unseen_write(self, key: Key, before: Saved, reverse: Callable[[], None] | None) -> None:
        """See `StepStore`."""
        self.outer.unseen_write(key, before, reverse)

    def nested(self) -> None:
        """Return None: the steps of `ad.checkpoint` in another one are like others."""

    def used(self) -> Iterator[FieldOrArray]:
        """See `StepStore`."""
        return self.outer.used()

    def wanted(self) -> Iterator[Used]:
        """See `StepStore`."""
        return self.outer.wanted()

    def report(self) -> MemoryReport:
        """See `StepStore`."""
        return self.outer.report()

    def replay(self, last: bool) -> None:
        """Raise: steps are reversed once they are complete."""
        raise AssertionError("the steps of `ad.checkpoint` are reversed by the recording that they are an event of")

    def close(self) -> None:
        """See `StepStore`."""

    def settle(self) -> None:
        """Complete the last step, if that was a write."""
        if self._pending is not None:
            self._pending.settle()
            if self._pending.copy is not None:
                self._event.keep([(self._pending.copy.memory.name, self._pending.copy.nbytes)])
            self._pending = None

    def _reverse(self) -> None:
        log = UndoLog()
        with context.session().without_prints():
            reverse_steps(self._steps, log, {})
        log.restore()
