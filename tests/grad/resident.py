"""The memory that this process holds; Linux only, elsewhere 0."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def resident() -> int:
    """Bytes."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Peak:
    """The most memory that this process held while a block ran, over what it held at its begin; in bytes."""

    def __init__(self) -> None:
        self.grown = 0
        self._done = threading.Event()
        self._start = resident()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.grown = max(self.grown, resident() - self._start)

    @contextmanager
    def watched(self) -> Iterator[Peak]:
        self._thread.start()
        try:
            yield self
        finally:
            self._done.set()
            self._thread.join()
            self.grown = max(self.grown, resident() - self._start)
