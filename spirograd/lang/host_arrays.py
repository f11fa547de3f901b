"""Numbers in arrays of NumPy, torch and other libraries, where a program writes a number, a vector or a matrix in Python."""

from __future__ import annotations

import numpy as np

from spirograd.base.arrays import Array


def host_array(value: object) -> Array | None:
    """Return an array of NumPy, torch or another library as a NumPy array; None for other objects, those of spirograd included."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        contents: Array = value.detach().cpu().numpy()
        return contents
    if not hasattr(value, "__array__") or hasattr(value, "__sg_describe__") or isinstance(value, np.generic):
        return None
    return np.asarray(value)


def without_axes(value: object) -> object:
    """Return the number in an array without axes, and other objects as they are."""
    array = host_array(value)
    return array[()] if array is not None and array.ndim == 0 else value
