"""Segments: loops with small bodies save their loop-carried values once for several iterations, and the reverse recomputes the others.

Adstack memory, and the traffic to it, shrink by the length of a segment. A segment is unrolled, so the loop-carried values within it are
SSA values. On GPUs memory traffic costs more than arithmetic: on an H200 the gradient of 512 steps of `v = sin(v) * 1.1 + 0.1` took 3.3
times as long as the forward run, instead of 9 times. Where a CPU runs code for GPUs, the last segment of a short loop costs more than it
saves, because both sides of a branch run: on lavapipe, 1,024 iterations of 4 and of 64 such steps took 206 and 690 us with segments of 8,
but 130 and 565 us with segments of 2. Segments make large bodies slower there, too (eight loop-carried floats, 64 steps: 8.1 instead of 3.2
s), but faster on GPUs (1.16 instead of 2.0 ms).

A short loop with a constant trip count is a single segment: it needs no adstack, and its forward sweep is removed if nothing else uses it.
On lavapipe 64 steps of `v = v * v * 0.5 + 0.3` took 9.3 instead of 38 ms, on the CPU 8 of them 1.5 instead of 13 ms (code with adstacks is
vectorised only if its loops are long). With sines the CPU took 54 instead of 34 ms for 16 steps, so on CPUs only the shortest loops are a
single segment.
"""

from __future__ import annotations

from spirograd.analysis.existence import constant_trips
from spirograd.autodiff.shared_contents import acts
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import Vec
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Op


@dataclass(frozen=True, slots=True)
class Segments:
    """The choice of segments for a device. Loops with few operations and loop-carried scalars have segments of ``length`` iterations, a
    power of two. ``longest``: the largest trip count of a loop that is a single segment."""

    length: int
    operations: int
    carried: int
    longest: int

    def of(self, loop: Op) -> int:
        """Return the number of iterations in a segment of ``loop``: 1 if the values of each iteration are saved."""
        carried = _carried(loop)
        small = len(loop.regions[-1].ops) <= self.operations and 0 < carried <= self.carried
        return self.length if small and _is_plain(loop) else 1

    def in_one(self, loop: Op) -> int:
        """Return the trip count of a `for` that is a single segment, or 0 for other loops."""
        count = constant_trips(*loop.args[:2]) or 0
        small = count <= self.longest and count * _carried(loop) <= _MOST_CARRIED and count * len(loop.regions[0].ops) <= _LARGEST
        return count if small and _is_plain(loop) else 0


def _carried(loop: Op) -> int:
    """Return the number of scalars that an iteration passes to the next one."""
    fixed = 1 if loop.code is ops.for_ else 0
    return sum(p.type.n if isinstance(p.type, Vec) else 1 for p in loop.regions[-1].params[fixed:])


def _is_plain(loop: Op) -> bool:
    """Return whether the iterations of ``loop`` can be unrolled: no control flow, no effects on other threads of a group."""
    return all(not op.regions and not acts(op) for op in loop.regions[-1].ops)


# Limits of a loop that is a single segment: its operations, and the scalars that its iterations carry, all of which are in registers at
# once.
_MOST_CARRIED, _LARGEST = 64, 512
# Used where memory is as fast as arithmetic.
NO_SEGMENTS = Segments(1, 0, 0, 11)
_ON_GPUS = Segments(8, 64, 8, 64)
_ON_CPU_DRIVERS = Segments(2, 24, 4, 64)


def segments_for(caps: Capabilities) -> Segments:
    """Return the best segments for a device."""
    if not caps.target.asynchronous:
        return NO_SEGMENTS
    return _ON_CPU_DRIVERS if caps.loop_limit else _ON_GPUS
