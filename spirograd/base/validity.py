"""Whether launches that were prepared for compiled code still are what Python would do: two words of memory that this code compares.

A prepared launch holds the number of its time. `renew` begins another time, in which all of them have to be prepared anew: a session has
begun or ended, memory was given back, an array has got another gradient. `suspend` has Python see every launch until `resume`: a tape
records, a kernel is traced.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from typing import Any

from spirograd.base.records import dataclass

_words = (ctypes.c_int64 * 2)()  # the number of the time; how often launches are suspended
_numbers = itertools.count(1).__next__  # atomic: no two times have one number
_lock = threading.Lock()
ADDRESS = ctypes.addressof(_words)
_words[0] = _numbers()


def number() -> int:
    """That of the present time. Take it before what a launch is prepared from."""
    return _words[0]


def renew() -> None:
    """Begin another time. Takes no lock: the garbage collector may call this."""
    _words[0] = _numbers()


def suspend() -> None:
    with _lock:
        _words[1] += 1


def resume() -> None:
    with _lock:
        _words[1] -= 1


@dataclass(frozen=True, slots=True)
class Record:
    """What records the launches of a call. ``number``: of the time before all that was found out for it; ``arguments``: how many the call
    has; ``steps``: given a `runtime.native.recording.Recording`, records how they are checked and packed; ``result``: makes the result of
    the call from the values that the kernel returns."""

    number: int
    arguments: int
    steps: Callable[[Any], None]
    result: Callable[[tuple[Any, ...]], Any] | None = None


class NotPrepared(Exception):
    """Launches like this one are left to Python."""
