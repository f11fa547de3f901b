"""Recording what a block of Python has the host and the device do."""

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


class Recording(Sink):
    """``begin``: when it began. ``spans``: of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = perf_counter_ns()
        self.spans: list[Span] = []


@contextmanager
def recorded() -> Iterator[Recording]:
    """Record in the block: the running session, and sessions that begin in it. Raises SpirogradUnsupportedError if the device of one cannot
    tell when tasks ran."""
    recording = Recording()
    if context.has_session():
        profile = running().profile()
        profile.collect()  # what ran before the block
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
    """Write to ``path`` what the block does, for https://ui.perfetto.dev or chrome://tracing: compilation with its passes, launches,
    copies, and on the device each task with its source line, with an arrow from its launch; of the CPU also what each thread ran, with
    the range of its iterations.

    The block may call `init`; ``kernel_profiler=True`` is not needed. Raises SpirogradUnsupportedError if the device cannot tell when tasks
    ran. What happened before an exception is written, too.
    """
    recording = None
    try:
        with recorded() as recording:
            yield
    finally:
        if recording is not None:
            chrome.write(path, recording.begin, recording.spans, recording.host, recording.tasks)
