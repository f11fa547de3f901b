"""What a driver of a package records: results, and the processor time of the first call and of later ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

_REPEATS = 10


class Recording:
    """Arrays by name, and times in seconds."""

    def __init__(self) -> None:
        self.results: dict[str, np.ndarray] = {}
        self.first = 0.0
        self.later = 0.0

    def time(self, name: str, run: Callable[[], ArrayLike]) -> None:
        """Keep the result of the first call of ``run``, which may compile kernels, and time it and ten more."""
        start = time.process_time()
        self.results[name] = np.array(run())
        begin = time.process_time()
        for _ in range(_REPEATS):
            run()
        self.first += begin - start
        self.later += (time.process_time() - begin) / _REPEATS

    def write(self) -> None:
        """Write all to the file that the command line names."""
        np.savez(sys.argv[1], first=self.first, later=self.later, **self.results)
