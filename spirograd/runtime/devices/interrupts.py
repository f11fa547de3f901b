"""Ctrl-C waits until a device has done what it was asked to: an exception in the middle could lose commands that were recorded.

Python runs signal handlers between two instructions of the main thread, in callbacks of C libraries too, which no exception can leave. So
the handler of SIGINT is wrapped. Others may set another one at any time, as notebooks do for each cell: that is wrapped when next needed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

# `signal.getsignal` makes an enum of a number, which takes 6 us: this runs at each launch.
from _signal import getsignal  # type: ignore[import-not-found]
from threading import get_ident
from typing import Any

_main = threading.main_thread().ident
_SIGINT = int(signal.SIGINT)


class _Waiting:
    """In the main thread. ``depth``: how many `enter` lack their `leave`; ``handler``: what is to be called after the last one."""

    __slots__ = ("depth", "handler")

    def __init__(self) -> None:
        self.depth = 0
        self.handler: Any = None


_waiting = _Waiting()


class _Deferring:
    """A handler of SIGINT that calls ``previous``, after the work under way."""

    __slots__ = ("previous",)

    def __init__(self, previous: Any) -> None:
        self.previous = previous

    def __call__(self, number: int, frame: Any) -> Any:
        if _waiting.depth:
            _waiting.handler = self.previous
            return None
        return self.previous(number, frame)


def enter() -> None:
    """From here to `leave` SIGINT waits. In threads other than the main one, where no handler runs, nothing happens."""
    if get_ident() != _main:
        return
    handler = getsignal(_SIGINT)
    if type(handler) is not _Deferring and callable(handler):
        try:
            signal.signal(_SIGINT, _Deferring(handler))
        except ValueError:  # in another interpreter than the main one, which handles no signals
            return
    _waiting.depth += 1


def leave() -> None:
    """Raises what the handler raises, if there was a signal."""
    if get_ident() != _main or not _waiting.depth:
        return
    _waiting.depth -= 1
    if not _waiting.depth and _waiting.handler is not None:
        handler, _waiting.handler = _waiting.handler, None
        handler(signal.SIGINT, sys._getframe())


def _forked() -> None:
    global _main
    _main = get_ident()
    _waiting.depth, _waiting.handler = 0, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
