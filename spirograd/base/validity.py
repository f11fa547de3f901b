"""The guard of prepared launches: two words of memory that compiled code compares before it launches without Python.

A prepared launch holds the number of the epoch in which it was prepared, and is valid in this epoch only. `renew` begins the next epoch:
a session has begun or ended, memory was freed, an array has got another gradient. Between `suspend` and `resume`, all launches go through
Python: a tape records, a kernel is traced.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from typing import Any

from spirograd.base.records import dataclass

_words = (ctypes.c_int64 * 2)()  # the number of the epoch; the number of open `suspend` calls
_numbers = itertools.count(1).__next__  # atomic, so that epochs have different numbers
_lock = threading.Lock()
ADDRESS = ctypes.addressof(_words)
_words[0] = _numbers()


def number() -> int:
    """Return the number of the epoch. Read it before the state that a launch is prepared from, which may change meanwhile."""
    return _words[0]


def renew() -> None:
    """Begin the next epoch. Takes no lock: the garbage collector may call this."""
    _words[0] = _numbers()


def suspend() -> None:
    """Route all launches through Python until `resume` has been called as often as this function."""
    with _lock:
        _words[1] += 1


def resume() -> None:
    """End one `suspend`."""
    with _lock:
        _words[1] -= 1


@dataclass(frozen=True, slots=True)
class Record:
    """What records the launches of a call. ``number``: of the epoch, read before anything else; ``arguments``: how many the call
    has; ``steps``: given a `runtime.native.launch_preparation.Recording`, records how they are checked and packed; ``result``: makes the
    result of the call from the values that the kernel returns."""

    number: int
    arguments: int
    steps: Callable[[Any], None]
    result: Callable[[tuple[object, ...]], object] | None = None


class NotPrepared(Exception):
    """Raised if launches like this one must go through Python."""
