"""Spans of host time, nested within each thread, which are recorded while a profile runs.

Times are those of `time.perf_counter_ns`. Without a listener, a span costs one test of a list.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import Any

from spirograd.base.records import dataclass


@dataclass(slots=True, eq=False)
class Span:
    """An activity of a thread from ``begin`` to ``end``, in nanoseconds. ``depth``: the number of spans of its thread that were open around
    it. ``details``: further attributes."""

    name: str
    category: str
    begin: int
    end: int
    thread: int
    depth: int
    details: dict[str, object]


Listener = Callable[[Span], None]
listeners: list[Listener] = []
sinks: list[Any] = []  # receives the records of the device: see `runtime.profiling.Sink`
_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()
_open = threading.local()


def span(name: str, category: str, **details: object) -> AbstractContextManager[None]:
    """Record the time that the block takes, if there is a listener when it begins."""
    return _recorded(name, category, details) if listeners else _NOTHING


@contextlib.contextmanager
def _recorded(name: str, category: str, details: dict[str, object]) -> Iterator[None]:
    depth = getattr(_open, "depth", 0)
    _open.depth = depth + 1
    begin = perf_counter_ns()
    try:
        yield
    finally:
        end = perf_counter_ns()
        _open.depth = depth
        record = Span(name, category, begin, end, threading.get_native_id(), depth, details)
        for listener in tuple(listeners):
            listener(record)
