"""Memory that another library lends for one launch, as arrays that kernels take. They may have gradients, like torch tensors.

A library that hands out addresses (XLA) makes them: `HostBuffer` over memory of the host, `DeviceBuffer` over memory of a CUDA device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.lang import context
from spirograd.lang.data import numpy_transfer
from spirograd.lang.data.ndarray import Ndarray

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from spirograd.base.arrays import CudaArrayInterface, ElementType
    from spirograd.base.protocols import Allocation


class HostBuffer(Array):
    """A NumPy array over lent memory. ``requires_grad``: whether it has the gradient ``grad``, another array of the same shape."""

    requires_grad = False
    grad: HostBuffer | None = None

    @classmethod
    def at(cls, address: int, dtype: ElementType, shape: tuple[int, ...]) -> HostBuffer:
        """Return the elements from ``address`` on, row-major. The caller owns the memory."""
        if 0 in shape:
            return np.empty(shape, dtype).view(cls)
        return np.asarray(_Interface(address, dtype, shape)).view(cls)

    def number(self) -> object:
        """Return the one element as a number of Python, or all as a list."""
        return self.tolist()

    def set_number(self, value: ArrayLike) -> None:
        """Set all elements."""
        self[...] = value

    def copy_to(self, array: Ndarray) -> None:
        """Copy the contents to an ndarray of the same type and shape."""
        array.from_numpy(np.asarray(self))

    def copy_from(self, array: Ndarray) -> None:
        """Copy the contents from an ndarray of the same type and shape."""
        self[...] = array.to_numpy()


class _Interface:
    """An object whose array interface NumPy reads the address from."""

    def __init__(self, address: int, dtype: ElementType, shape: tuple[int, ...]) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, False), "typestr": dtype.str, "shape": shape}


class DeviceBuffer:
    """An array in memory of a CUDA device, with pending work on ``stream`` of the driver.

    ``requires_grad``, ``grad`` and the methods are those of `HostBuffer`. Copies between it and ndarrays run on the device in the order of
    the stream; numbers wait for it.
    """

    def __init__(self, address: int, dtype: ElementType, shape: tuple[int, ...], stream: int) -> None:
        self.dtype, self.shape = dtype, shape
        self.requires_grad = False
        self.grad: DeviceBuffer | None = None
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.__cuda_array_interface__: CudaArrayInterface = {
            "version": 3, "data": (address, False), "typestr": dtype.str, "shape": shape, "strides": None, "stream": stream or 1,
        }  # fmt: skip

    def number(self) -> object:
        host = np.empty(self.shape, self.dtype)
        context.session().raise_reported()
        self._with_memory(lambda memory: memory.read_into(0, numpy_transfer.bytes_of(host.reshape(-1))))
        return host.tolist()

    def set_number(self, value: ArrayLike) -> None:
        host = np.full(self.shape, value, self.dtype)
        self._with_memory(lambda memory: memory.write(0, numpy_transfer.bytes_of(host.reshape(-1))))

    def copy_to(self, array: Ndarray) -> None:
        self._with_memory(lambda memory: array.allocation.copy_from(memory, self.nbytes))

    def copy_from(self, array: Ndarray) -> None:
        self._with_memory(lambda memory: memory.copy_from(array.allocation, self.nbytes))

    def _with_memory(self, work: Callable[[Allocation], None]) -> None:
        """Call ``work`` with the memory as an allocation; the stream continues after it."""
        if self.nbytes == 0:
            return
        session = context.session()
        transfers = session.transfers(False)
        memory = transfers.bind(self, (), 0, "a buffer of XLA").allocation
        assert memory is not None
        if memory.address != self.__cuda_array_interface__["data"][0]:
            raise SpirogradRuntimeError(f"a buffer of XLA lies on another GPU than the session ({session.device.info.name})")
        work(memory)
        transfers.finish(set())
