"""What a case is measured against: a goal, and the physical limit of the machine.

A goal is a multiple of the peer's speed, or a time. A limit is the time that a case takes at least, at the memory bandwidth or the
arithmetic peak of the machine: it counts the bytes that a program must move and the operations that it must do.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.machine import cores


@dataclass(frozen=True)
class Goal:
    """A goal. ``times``: the speed relative to the peer; ``seconds``: the longest time."""

    times: float | None = None
    seconds: float | None = None

    def text(self) -> str:
        if self.times:
            return f"{self.times:g} x peer"
        seconds = self.seconds or 0.0
        return f"{seconds * 1e3:g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:g} us"

    def met(self, ours: float, peer: float | None) -> bool | None:
        """None where it cannot be told."""
        if self.seconds:
            return ours <= self.seconds
        return None if peer is None or self.times is None else peer / ours >= self.times


@dataclass(frozen=True)
class Work:
    """The least that a case has to do."""

    bytes: float = 0.0
    operations: float = 0.0


GOALS = {
    **{f"ragged, {kind}{of}": Goal(times=2) for kind in ("field", "array") for of in ("", ", gradient")},
    "neighbours, density": Goal(times=1.3),
    "neighbours, force": Goal(times=1.3),
    "neighbours, kinds": Goal(times=1.3),
    "guarded 1M x 64, field": Goal(times=2),
    "guarded, field, gradient": Goal(times=3),
    "sparse: x[i, j, k] += 1": Goal(times=5),
    "sparse: sum": Goal(times=5),
    "n-body 8192, scalars": Goal(times=2),
    "n-body 8192, vectors": Goal(times=2),
    "mandelbrot 1024^2 x 500": Goal(times=6),
    "20 stencils, fields": Goal(seconds=0.060),
    "20 stencils, ndarrays": Goal(seconds=0.060),
    "launch: empty": Goal(seconds=0.6e-6),
    "launch: 4 ndarrays": Goal(seconds=1e-6),
    "launch: field": Goal(seconds=0.8e-6),
    "launch: gradient with a tape": Goal(seconds=5e-6),
    "first kernel, no cache": Goal(seconds=0.025),
    "first kernel, warm cache": Goal(seconds=0.005),
    "import": Goal(seconds=0.150),
}
_16M, _GRID = 1 << 24, 2048 * 2048
_PAIR = 20  # operations of n-body for a pair
WORK = {
    "saxpy 16M": Work(12 * _16M),
    "y[i] += a * x[i] 16M": Work(12 * _16M),
    "sin(x) * exp(x) 16M": Work(8 * _16M),
    "branches 16M": Work(8 * _16M),
    "sum 16M": Work(4 * _16M),
    "max 16M": Work(4 * _16M),
    "eight loops 16M": Work(12 * _16M),
    "the same as one loop 16M": Work(12 * _16M),
    "heat 2048 x 2048": Work(8 * _GRID),
    "heat, ndarrays": Work(8 * _GRID),
    "heat, gradient": Work(16 * _GRID),
    "20 stencils, fields": Work(8 * 20 * _GRID),
    "20 stencils, ndarrays": Work(8 * 20 * _GRID),
    "3 x 3 matrices 1M": Work(72 << 20),
    "n-body 4096": Work(operations=_PAIR * 4096**2),
    "n-body 8192, scalars": Work(operations=_PAIR * 8192**2),
    "n-body 8192, one division": Work(operations=_PAIR * 8192**2),
    "n-body 8192, vectors": Work(operations=_PAIR * 8192**2),
}


@dataclass(frozen=True)
class Limits:
    """Bytes a second, measured; operations a second in f32, estimated: cores x lanes x 2 units x 2 (a multiply-add) x clock."""

    bandwidth: float
    peak: float
    clock: float
    lanes: int

    def seconds(self, case: str) -> float | None:
        """The least time of a case; None where it is not known."""
        work = WORK.get(case)
        return max(work.bytes / self.bandwidth, work.operations / self.peak) if work else None

    def text(self) -> str:
        measured = f"{self.bandwidth * 1e-9:.1f} GB/s, measured by copies with NumPy in {cores()} threads"
        factors = f"{cores()} cores x {self.lanes} lanes x 2 units x 2 operations x {self.clock * 1e-9:.2f} GHz"
        return f"limits: {measured}; {self.peak * 1e-9:.0f} GFLOP/s in f32, estimated from {factors}"

    def again(self) -> Limits:
        """Measured once more: what else the machine did may have been in the way the first time."""
        return replace(self, bandwidth=max(self.bandwidth, bandwidth(rounds=3)))


def _best(run: Callable[[], None], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


@functools.cache
def _parts(megabytes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """What is copied, and to where, for each core."""
    size = megabytes * 2**18 // cores()
    return [(np.ones(size, np.float32), np.zeros(size, np.float32)) for _ in range(cores())]


def bandwidth(rounds: int = 15, megabytes: int = 256) -> float:
    """Bytes that all cores together read and write in a second when they copy, each its own part."""
    parts = _parts(megabytes)

    def copy() -> None:
        threads = [threading.Thread(target=np.copyto, args=(target, source)) for source, target in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return sum(source.nbytes + target.nbytes for source, target in parts) / _best(copy, rounds)


def _lanes() -> int:
    """f32 in the widest vector of this processor."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 4


def _clock() -> float:
    """Hertz: the highest that the system names, else 3 GHz."""
    try:
        with open("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq") as file:
            return float(file.read()) * 1e3
    except OSError:
        pass
    try:
        with open("/proc/cpuinfo") as file:
            return max(float(found) for found in re.findall(r"^cpu MHz\s*:\s*(\S+)", file.read(), re.M)) * 1e6
    except (OSError, ValueError):
        return 3e9


def limits() -> Limits:
    clock, lanes = _clock(), _lanes()
    return Limits(bandwidth(), cores() * lanes * 4 * clock, clock, lanes)
