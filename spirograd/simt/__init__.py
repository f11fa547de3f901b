"""Groups of threads: barriers and shared memory of blocks, values of other lanes of a subgroup. For use in parallel loops of kernels.

A parallel loop runs in blocks of `loop_config(block_dim=)` consecutive iterations. Threads beyond the last iteration do not exist, and
barriers do not wait for them.
"""

from spirograd.lang.tiles import Tile16x16, Tile32x32
from spirograd.simt import block, grid, subgroup, warp

__all__ = ["Tile16x16", "Tile32x32", "block", "grid", "subgroup", "warp"]
