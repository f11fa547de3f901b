"""Room for recursion over deeply nested programs."""

from __future__ import annotations

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
