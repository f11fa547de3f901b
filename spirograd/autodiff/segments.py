"""Segments: loops with small bodies note their carried values in every so many iterations only, and the reverse runs a segment again.

Tape memory, and the traffic to it, falls by the length of a segment; within one the carried values are plain values, for it is unrolled. On
GPUs memory is dear and arithmetic cheap: on an H200 the gradient of 512 steps of `v = sin(v) * 1.1 + 0.1` took 3.3 instead of 9 times its
forward run. Where a CPU runs what was made for GPUs the last segment of a short loop costs more than it saves, for both sides of a branch
are run: on lavapipe, 1,024 iterations of 4 and of 64 such steps took 206 and 690 us with segments of 8, 130 and 565 us with segments of 2.
"""

from __future__ import annotations

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import Vec
from spirograd.ir import ops
from spirograd.ir.nodes import Op

_LENGTH = 8
_LENGTH_ON_CPU_DRIVERS = 2
# Larger bodies make too much code when they are unrolled, and save little.
_MOST_OPERATIONS = 24
_MOST_CARRIED = 4


def longest_segment(caps: Capabilities) -> int:
    """How many iterations a segment has at most on a device, a power of two; 1 where memory is as good as arithmetic."""
    if caps.profile not in ("vulkan", "wgpu"):
        return 1
    return _LENGTH_ON_CPU_DRIVERS if caps.loop_limit else _LENGTH


def segment_length(loop: Op, longest: int) -> int:
    """How many iterations of ``loop`` are one segment; 1 if each is noted."""
    region = loop.regions[-1]
    fixed = 1 if loop.code is ops.for_ else 0
    carried = sum(p.type.n if isinstance(p.type, Vec) else 1 for p in region.params[fixed:])
    plain = all(not op.regions for op in region.ops)
    small = len(region.ops) <= _MOST_OPERATIONS and 0 < carried <= _MOST_CARRIED
    return longest if plain and small else 1
