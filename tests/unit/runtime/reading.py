"""The contents of allocations, for tests of devices."""

import numpy as np


def read(allocation, dtype=np.uint32, offset=0, count=None):
    """What is in an allocation, from byte ``offset`` on: ``count`` elements, or all."""
    dtype = np.dtype(dtype)
    raw = bytearray((allocation.nbytes - offset) if count is None else count * dtype.itemsize)
    allocation.read_into(offset, memoryview(raw))
    return np.frombuffer(raw, dtype)
