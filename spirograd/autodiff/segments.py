"""Segments: loops with small bodies checkpoint their loop-carried values once in several iterations, and the reverse recomputes the rest.

Tape memory, and the traffic to it, falls by the length of a segment; within one the loop-carried values are plain values, because it is
unrolled. On GPUs memory traffic costs more than arithmetic: on an H200 the gradient of 512 steps of `v = sin(v) * 1.1 + 0.1` took 3.3
instead of 9 times its forward run. Where a CPU runs what was made for GPUs, the last segment of a short loop costs more than it saves,
because both sides of a branch run: on lavapipe, 1,024 iterations of 4 and of 64 such steps took 206 and 690 us with segments of 8, 130 and
565 us with segments of 2. Large bodies lose there, too (eight carried floats, 64 steps: 8.1 instead of 3.2 s), and gain on GPUs (1.16
instead of 2.0 ms).
"""

from __future__ import annotations

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import Vec
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Op


@dataclass(frozen=True, slots=True)
class Segments:
    """Which loops have segments, of ``length`` iterations, a power of two: those with at most so many operations and carried numbers."""

    length: int
    operations: int
    carried: int

    def of(self, loop: Op) -> int:
        """How many iterations of ``loop`` are one segment; 1 if the values of each are saved."""
        region = loop.regions[-1]
        fixed = 1 if loop.code is ops.for_ else 0
        carried = sum(p.type.n if isinstance(p.type, Vec) else 1 for p in region.params[fixed:])
        plain = all(not op.regions for op in region.ops)
        small = len(region.ops) <= self.operations and 0 < carried <= self.carried
        return self.length if plain and small else 1


# Where memory is as good as arithmetic.
NO_SEGMENTS = Segments(1, 0, 0)
_ON_GPUS = Segments(8, 64, 8)
_ON_CPU_DRIVERS = Segments(2, 24, 4)


def segments_for(caps: Capabilities) -> Segments:
    """The segments that are good on a device."""
    if not caps.target.asynchronous:
        return NO_SEGMENTS
    return _ON_CPU_DRIVERS if caps.loop_limit else _ON_GPUS
