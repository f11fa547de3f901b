"""Arrays of NumPy and numbers in the memory of programs."""

from __future__ import annotations

import numpy as np

from spirograd.ad.memory_keys import FieldOrArray
from spirograd.base.arrays import Array


def load(memory: FieldOrArray, value: object) -> None:
    """Set memory to a number or an array."""
    array: Array = np.asarray(value, memory.dtype.np)
    shape = (*memory.shape, *memory.element_shape)
    memory.from_numpy(array.reshape(shape) if array.size == 1 and int(np.prod(shape)) == 1 else array)
