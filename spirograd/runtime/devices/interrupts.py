"""Deferral of Ctrl-C during a call into a device until the call returns: in the middle it could lose commands, or half of a launch.

Python runs signal handlers between two instructions of the main thread, and in callbacks of C libraries, which no exception can leave. So
the handler of SIGINT is wrapped: while the main thread holds the lock of a device, the wrapper only records the signal. Programs may set
another handler at any time, as notebooks do for each cell: `watch` wraps that one, too.

Each call into a device consists of `watch`, taking the lock, the work, releasing the lock, and `deliver` if ``pending.handler`` is not
None.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref

# `signal.getsignal` makes an enum of a number, which takes 6 us: this runs at each launch.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Protocol, Union, cast

if TYPE_CHECKING:
    from spirograd.base.device import Lock

    class DeviceLock(Lock, Protocol):
        """A re-entrant lock."""

        def __enter__(self) -> bool: ...

        def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None: ...

        def _is_owned(self) -> bool: ...


_SIGINT = int(signal.SIGINT)
Handler = Callable[[int, Union[FrameType, None]], object]


class _Pending:
    """The deferred signal. ``handler``: called when the main thread leaves the device, or None."""

    __slots__ = ("handler",)

    def __init__(self) -> None:
        self.handler: Handler | None = None


pending = _Pending()
_locks: weakref.WeakSet[DeviceLock] = weakref.WeakSet()


def device_lock() -> DeviceLock:
    """Return a new re-entrant lock of a device."""
    lock = cast("DeviceLock", threading.RLock())  # whose stub lacks `_is_owned`
    _locks.add(lock)
    return lock


class _Deferring:
    """A handler of SIGINT that calls ``previous`` after the current work."""

    __slots__ = ("previous",)

    def __init__(self, previous: Handler) -> None:
        self.previous = previous

    def __call__(self, number: int, frame: FrameType | None) -> object:
        if _inside():
            pending.handler = self.previous
            return None
        return self.previous(number, frame)


def _inside() -> bool:
    """Return whether this thread holds the lock of a device."""
    return any(lock._is_owned() for lock in _locks)


def watch() -> None:
    """Wrap the handler of SIGINT, if it is not wrapped."""
    if type(getsignal(_SIGINT)) is not _Deferring:
        _wrap()


def _wrap() -> None:
    handler = getsignal(_SIGINT)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        try:
            signal.signal(_SIGINT, _Deferring(handler))
        except ValueError:
            return  # In another interpreter than the main one, which handles no signals.


def deliver(inside: bool = False) -> None:
    """Call the deferred handler, which may raise; only in the main thread.

    While this thread still holds a lock nothing happens, unless with ``inside``, for long waits in which no work is half complete.
    """
    if pending.handler is None or threading.current_thread() is not threading.main_thread() or (_inside() and not inside):
        return
    handler, pending.handler = pending.handler, None
    handler(_SIGINT, sys._getframe())


def _forked() -> None:
    pending.handler = None
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
