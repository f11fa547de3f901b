"""The cursor of a tape that follows a sequence of launches: words of memory that compiled code compares and changes.

Each launch of the tape's thread is compared with the next step of the sequence. If they are alike, compiled code makes the copies of the
step, launches, and advances the cursor: see `runtime.native.cursor_code`, and `ad.sequence_replay` for everything else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spirograd.base.records import dataclass

if TYPE_CHECKING:
    from spirograd.base.protocols import OwnWrites

# The words of a cursor, by byte offset: the thread of the tape (0: no tape follows the sequence); the number of steps that have run, and of
# all; the step that Python allows, see `LaunchCursor.allow`; the address of the tick after the last write of the thread; the ticks between
# which another thread wrote (0: none did); the address of the steps; the list of the arguments of calls.
THREAD, DONE, COUNT, ALLOWED, END, GAP_BEGIN, GAP_END, STEPS, CALLS = range(0, 72, 8)
# The words of a step: the number of its kind of launches; whether Python must allow it; the addresses of its `key_words` and `copy_words`.
KIND, ASKS, KEY, COPIES = range(0, 32, 8)
STEP_BYTES = 32
# How an argument is compared with the word that follows.
ANY, EQUAL, SAME = range(3)
# One thread runs Python at a time, and its state tells it apart.
_thread_state = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))


class Words:
    """Words of memory at an ``address``, which last as long as this object."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = (ctypes.c_int64 * max(len(words), 1))(*words)
        self.address = ctypes.addressof(self._words)

    def __getitem__(self, offset: int) -> int:
        return self._words[offset >> 3]

    def __setitem__(self, offset: int, word: int) -> None:
        self._words[offset >> 3] = word


class LaunchCursor(Words):
    """The cursor of the tape that follows a sequence. ``arguments``: of its launches so far, and of one that has begun."""

    def __init__(self) -> None:
        super().__init__([0] * 9)
        self.arguments: list[tuple[object, ...]] = []
        self._steps: Words | None = None

    def begin(self, own: OwnWrites, steps: Words, count: int) -> bool:
        """Have the tape of this thread, whose writes are ``own``, follow ``count`` steps. Return False if a tape does already."""
        if self[THREAD]:
            return False
        self.arguments, self._steps = [], steps
        self[DONE], self[COUNT], self[ALLOWED] = 0, count, -1
        self[END], self[GAP_BEGIN], self[GAP_END] = own.end_address, 0, 0
        self[STEPS], self[CALLS] = steps.address, id(self.arguments)
        self[THREAD] = _thread_state()
        return True

    def end(self) -> None:
        """Have no tape follow the sequence."""
        self[THREAD] = 0
        self.arguments, self._steps = [], None

    def allow(self, step: int) -> None:
        """Allow the next launch to be this step, one that asks Python before it runs."""
        self[ALLOWED] = step

    def gap(self) -> tuple[int, int] | None:
        """Return the ticks between which another thread has written to memory, once."""
        gap, self[GAP_END] = (self[GAP_BEGIN], self[GAP_END]), 0
        return gap if gap[1] else None


@dataclass(frozen=True, slots=True)
class StepKind:
    """The launches of one kind in the sequence of a ``cursor``: those that one record fits."""

    cursor: LaunchCursor
    number: int


def key_words(args: Sequence[object], key: Sequence[int | None]) -> Words:
    """Return how the arguments ``args`` of a launch are compared: numbers equal their ``key``, objects have it as their identity."""
    words = [len(key)]
    for arg, known in zip(args, key):
        kind = ANY if known is None else EQUAL if isinstance(arg, int) else SAME
        words += [kind, id(known) if kind == EQUAL else known or 0]
    return Words(words)


def copy_words(copies: Sequence[tuple[int, int, int]]) -> Words:
    """Return copies: to, from, number of bytes."""
    return Words([len(copies), *(word for copy in copies for word in copy)])
