"""Undo logs: what memory held at some time, for all that a program has written since."""

from __future__ import annotations

from collections.abc import Iterable

from spirograd.ad.copy_memory import CopyMemory
from spirograd.ad.memory_keys import Key, Part
from spirograd.ad.versions import Saved, Stored, Wanted, nbytes_of

Written = tuple[Key, Stored, Part | None]  # the key of memory, the memory, and the part, None for all


class Untouched:
    """The parts of memory that have not been taken yet."""

    def __init__(self) -> None:
        self._wanted: dict[Key, Wanted] = {}

    def has(self, key: Key, part: Part | None) -> bool:
        """Return whether anything of ``part`` has not been taken."""
        wanted = self._wanted.get(key)
        return wanted is None or wanted.has(part)

    def take(self, key: Key, part: Part | None) -> Iterable[Part | None]:
        """Take ``part``; return the parts of it that had not been taken."""
        return self._of(key).take(part)

    def remove(self, key: Key, part: Part | None) -> bool:
        """Remove ``part``, of which there is a copy; return whether anything of it had not been taken."""
        return self._of(key).remove(part)

    def _of(self, key: Key) -> Wanted:
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = Wanted(all_parts=True)
        return wanted


class UndoLog:
    """What memory held at some time, for all that was written since. ``nbytes``: bytes of the copies, which lie in ``copy_memory``."""

    def __init__(self, copy_memory: CopyMemory | None = None) -> None:
        self._copy_memory = copy_memory
        self.saved: list[tuple[Key, Saved]] = []
        self.nbytes = 0
        self._untouched = Untouched()

    def growth(self, written: Iterable[Written]) -> int:
        """Return the bytes that `before` would save at most."""
        return sum(nbytes_of(memory.view(part)) for key, memory, part in written if self._untouched.has(key, part))

    def before(self, written: Iterable[Written]) -> None:
        """Save what is about to be written."""
        for key, memory, whole_or_part in written:
            for part in self._untouched.take(key, whole_or_part):
                self._append(key, Saved(memory, part, None, self._copy_memory))

    def take_over(self, later: Iterable[tuple[Key, Saved]]) -> None:
        """Extend this log by one that begins where this one ends. What both have is kept once."""
        for key, saved in later:
            if self._untouched.remove(key, saved.part):
                self._append(key, saved)
            else:
                saved.free()

    def _append(self, key: Key, saved: Saved) -> None:
        self.saved.append((key, saved))
        self.nbytes += saved.nbytes

    def free(self) -> None:
        """Free the copies without restoring memory."""
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
