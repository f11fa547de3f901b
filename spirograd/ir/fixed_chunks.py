"""Chunks of a range of iterations whose bounds depend on the range alone, so that sums of each chunk have the same bits in each run."""

from __future__ import annotations

# Enough chunks for many threads, and so few, and so long, that adding up their sums takes no time.
FIXED_CHUNKS, SHORTEST_CHUNK = 256, 4096


def fixed_chunk(count: int) -> int:
    """Return the length of the chunks of ``count`` iterations, or units of them: there are at most `FIXED_CHUNKS`."""
    return max(-(-count // FIXED_CHUNKS) + 63 & -64, SHORTEST_CHUNK)
