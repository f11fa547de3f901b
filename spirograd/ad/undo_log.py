"""What memory held at some time, of all that steps of a program wrote since: by that they are run again, and reversed, from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spirograd.ad.recording import Recording
from spirograd.ad.steps import Step
from spirograd.ad.versions import Saved, Stored, Wanted

Part = tuple[Any, Stored, int | None]  # of memory: its key, the memory, and which part, None for all


class Untouched:
    """Which parts of memory have not been taken yet."""

    def __init__(self) -> None:
        self._wanted: dict[Any, Wanted] = {}

    def take(self, key: Any, part: int | None) -> Iterable[int | None]:
        """What of ``part`` had not been taken."""
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = Wanted(all_parts=True)
        return wanted.take(part)


class UndoLog:
    """What memory held at some time, of all that was written since. ``nbytes``: of the copies."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Free the copies."""
        self.saved: list[tuple[Any, Saved]] = []
        self.nbytes = 0
        self._untouched = Untouched()

    def before(self, written: Iterable[Part]) -> None:
        """Save what is about to be written."""
        for key, memory, whole_or_part in written:
            for part in self._untouched.take(key, whole_or_part):
                self._append(key, Saved(memory, part))

    def take_over(self, later: Iterable[tuple[Any, Saved]]) -> None:
        """Go on to the end of a log that begins where this one ends. What both have is kept once."""
        for key, saved in later:
            if self._untouched.take(key, saved.part):
                self._append(key, saved)

    def _append(self, key: Any, saved: Saved) -> None:
        self.saved.append((key, saved))
        self.nbytes += saved.nbytes

    def restore(self) -> None:
        """Set memory to what it held then, and free the copies."""
        for _, saved in reversed(self.saved):
            saved.put()
        self.clear()


def parts_of(step: Step, stored: dict[Any, Stored]) -> list[Part]:
    """What a step writes. ``stored``: the memory that is known, by key, to which it is added."""
    found: list[Part] = []
    for key, name, whole, first in step.written():
        memory = stored.get(key)
        if memory is None:
            memory = stored[key] = Stored(name, whole)
        found.append((key, memory, memory.part(first)))
    return found


def reverse_steps(steps: Sequence[Step], log: UndoLog, stored: dict[Any, Stored]) -> int:
    """Run steps again and record them, then run their reverses; returns the bytes of the recording. ``log`` is extended by what the steps
    write, and must be restored afterwards: until then memory is in no state that the program had."""
    recording = Recording()
    for step in steps:
        log.before(parts_of(step, stored))
        step.fresh().record(recording)
    recorded = sum(nbytes for _, nbytes in recording.copies())
    for _ in recording.reverse():
        pass
    return recorded
