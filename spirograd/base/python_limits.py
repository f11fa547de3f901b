"""Settings of Python during compilation: a higher recursion limit, and no garbage collection."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

# Inlined calls and nested statements take some twenty frames of Python each in the front end, up to ten in passes over the IR.
_LIMIT = 20_000


# Several threads may compile: the first to enter changes a setting, and the last to leave restores it.
_lock = threading.Lock()
_open = {"recursion": 0, "gc": 0}
_before: dict[str, int] = {}


@contextmanager
def _changed(setting: str, change: Callable[[], int], restore: Callable[[int], object]) -> Iterator[None]:
    """Change a setting while the context is entered by any thread. ``change`` returns the state that ``restore`` takes."""
    with _lock:
        if not _open[setting]:
            _before[setting] = change()
        _open[setting] += 1
    try:
        yield
    finally:
        with _lock:
            _open[setting] -= 1
            if not _open[setting]:
                restore(_before[setting])


def _raise_limit() -> int:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _LIMIT))
    return before


def _disable_gc() -> int:
    was_enabled = gc.isenabled()
    gc.disable()
    return was_enabled


def _restore_gc(was_enabled: int) -> None:
    if was_enabled:
        gc.enable()


def deep_recursion() -> AbstractContextManager[None]:
    """Raise Python's recursion limit while the context is entered."""
    return _changed("recursion", _raise_limit, sys.setrecursionlimit)


def gc_paused() -> AbstractContextManager[None]:
    """Pause the cycle collector: creating many small objects is three times as fast without it, and IR has no cycles."""
    return _changed("gc", _disable_gc, _restore_gc)
