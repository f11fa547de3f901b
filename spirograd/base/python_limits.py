"""Settings of Python during compilation: a higher recursion limit, and no garbage collection."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Inlined calls and nested statements take some twenty frames of Python each in the front end, up to ten in passes over the IR.
_LIMIT = 20_000


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise Python's recursion limit while the context is entered."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cycle collector: creating many small objects is three times as fast without it, and IR has no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
