"""Types of values that users pass and receive: arrays of NumPy, and values of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import TypedDict

    ElementType = np.dtype[np.generic]  # the type of the elements of an array
    # An array of any shape and type of elements. `numpy.typing.NDArray` is written with `Any`.
    Array = np.ndarray[tuple[int, ...], ElementType]

    class ArrayInterface(TypedDict):
        """Memory of an array as `__array_interface__` describes it, in version 3. ``data``: its address, and whether it is read-only."""

        version: int
        data: tuple[int, bool]
        shape: tuple[int, ...]
        typestr: str

    class StridedInterface(ArrayInterface):
        """The same with ``strides`` in bytes; None in row-major order."""

        strides: tuple[int, ...] | None

    class CudaArrayInterface(StridedInterface):
        """The interface of memory on a GPU, `__cuda_array_interface__`. ``stream``: the handle of the stream with the work on it."""

        stream: int

else:
    Array = np.ndarray
