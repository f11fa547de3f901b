"""Types of values that users pass and receive: arrays of NumPy, and values of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    # An array of any shape and type of elements. `numpy.typing.NDArray` is written with `Any`.
    Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
else:
    Array = np.ndarray
