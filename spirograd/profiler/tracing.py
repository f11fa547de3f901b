"""Traces of the host and the device during a block of Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

from spirograd.base import spans
from spirograd.base.spans import Span
from spirograd.lang import context
from spirograd.profiler import chrome
from spirograd.runtime.profiling import Sink
from spirograd.session import running


class TraceSink(Sink):
    """A recording. ``begin``: its start time; ``spans``: the spans of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = perf_counter_ns()
        self.spans: list[Span] = []


@contextmanager
def recorded() -> Iterator[TraceSink]:
    """Record during the block: the running session, and sessions that begin in it. Raises SpirogradUnsupportedError if a device cannot time
    tasks."""
    recording = TraceSink()
    if context.has_session():
        profile = running().profile()
        profile.collect()  # work from before the block
        recording.measure(profile)
    spans.sinks.append(recording)
    spans.listeners.append(recording.spans.append)
    try:
        yield recording
    finally:
        for profile in recording.started:
            profile.collect()
            profile.stop()
        spans.sinks.remove(recording)
        spans.listeners.remove(recording.spans.append)


@contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Write a trace of the block to ``path``, for https://ui.perfetto.dev or chrome://tracing: compilation with its passes, launches,
    copies, and each task on the device with its source line and an arrow from its launch; on the CPU also the ranges of iterations of each
    thread.

    The block may call `init`; ``kernel_profiler=True`` is not needed. Raises SpirogradUnsupportedError if the device cannot time tasks.
    After an exception, the events before it are written.
    """
    recording = None
    try:
        with recorded() as recording:
            yield
    finally:
        if recording is not None:
            chrome.write(path, recording.begin, recording.spans, recording.host, recording.tasks)
