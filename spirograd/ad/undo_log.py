"""What memory held at some time, of all that steps of a program wrote since: by that they are run again, and reversed, from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spirograd.ad.copy_memory import CopyMemory
from spirograd.ad.recording import Recording
from spirograd.ad.steps import Step
from spirograd.ad.versions import Saved, Stored, Wanted, nbytes_of

Part = tuple[Any, Stored, int | None]  # of memory: its key, the memory, and which part, None for all


class Untouched:
    """Which parts of memory have not been taken yet."""

    def __init__(self) -> None:
        self._wanted: dict[Any, Wanted] = {}

    def has(self, key: Any, part: int | None) -> bool:
        """Whether anything of ``part`` has not been taken."""
        wanted = self._wanted.get(key)
        return wanted is None or wanted.has(part)

    def take(self, key: Any, part: int | None) -> Iterable[int | None]:
        """What of ``part`` had not been taken."""
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = Wanted(all_parts=True)
        return wanted.take(part)


class UndoLog:
    """What memory held at some time, of all that was written since. ``nbytes``: of the copies, which lie in ``copy_memory``."""

    def __init__(self, copy_memory: CopyMemory | None = None) -> None:
        self._copy_memory = copy_memory
        self.saved: list[tuple[Any, Saved]] = []
        self.nbytes = 0
        self._untouched = Untouched()

    def growth(self, written: Iterable[Part]) -> int:
        """Bytes that `before` would save at most."""
        return sum(nbytes_of(memory.view(part)) for key, memory, part in written if self._untouched.has(key, part))

    def before(self, written: Iterable[Part]) -> None:
        """Save what is about to be written."""
        for key, memory, whole_or_part in written:
            for part in self._untouched.take(key, whole_or_part):
                self._append(key, Saved(memory, part, None, self._copy_memory))

    def take_over(self, later: Iterable[tuple[Any, Saved]]) -> None:
        """Go on to the end of a log that begins where this one ends. What both have is kept once."""
        for key, saved in later:
            if self._untouched.take(key, saved.part):
                self._append(key, saved)
            else:
                saved.free()

    def _append(self, key: Any, saved: Saved) -> None:
        self.saved.append((key, saved))
        self.nbytes += saved.nbytes

    def free(self) -> None:
        """Free the copies without a use of them."""
        while self.saved:
            self.saved.pop()[1].free()
        self.nbytes = 0

    def restore(self) -> None:
        """Set memory to what it held then, and free the copies. The log is empty afterwards."""
        while self.saved:
            _, saved = self.saved[-1]
            saved.put()
            saved.free()
            self.saved.pop()
        self.nbytes = 0
        self._untouched = Untouched()


def parts_of(step: Step, stored: dict[Any, Stored]) -> list[Part]:
    """What a step writes. ``stored``: the memory that is known, by key, to which it is added."""
    found: list[Part] = []
    for key, name, whole, first in step.written():
        memory = stored.get(key)
        if memory is None:
            memory = stored[key] = Stored(name, whole)
        found.append((key, memory, memory.part(first)))
    return found


def reverse_steps(steps: Sequence[Step], log: UndoLog, stored: dict[Any, Stored], copy_memory: CopyMemory | None = None) -> int:
    """Run steps again and record them, then run their reverses; returns the bytes of the recording, in ``copy_memory``. ``log`` is
    extended by what the steps write, and must be restored afterwards: until then memory is in no state that the program had."""
    recording = Recording(copy_memory)
    try:
        for step in steps:
            log.before(parts_of(step, stored))
            step.fresh().record(recording)
        recorded = sum(nbytes for _, nbytes in recording.copies())
        recording.reverse_once()
    finally:
        recording.free()
    return recorded
