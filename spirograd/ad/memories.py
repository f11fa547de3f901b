"""The memory that a kernel works on, as NumPy arrays: fields, ndarrays, arrays of NumPy and torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.ir.nodes import ArrayArg, FieldRef, ref_of
from spirograd.ir.nodes import Kernel as KernelIR
from spirograd.lang.data.ndarray import Ndarray, array_of
from spirograd.lang.frontend.specialization import Specialization


class Collector:
    """Receives the flat arguments of a launch, as `parameters.Packer` does, and keeps them as they are."""

    bound = False

    def __init__(self, kernel: Any, specialization: Specialization, args: Sequence[Any]) -> None:
        self._clear()
        for parameter, value in zip(kernel._parameters, args):
            parameter.pack(value, self)
        for array, get in specialization.captures:
            self.put_array(array if get is None else get(args))

    def _clear(self) -> None:
        self.scalars: list[Any] = []
        self.arrays: list[Any] = []

    def empty(self) -> Collector:
        """Return a collector of no arguments, for numbers and ndarrays."""
        collector = Collector.__new__(Collector)
        collector._clear()
        return collector

    def put_scalar(self, value: Any) -> None:
        self.scalars.append(value)
        self.arrays.append(None)

    def put_array(self, array: Any) -> None:
        self._keep(array_of(array))
        for number in array._sg_numbers:
            self.put_scalar(number)

    def put_external(self, array: Any, element_shape: tuple[int, ...], label: str) -> None:
        self._keep(array)

    def _keep(self, array: Any) -> None:
        self.scalars.append(0)
        self.arrays.append(array)


class KernelMemory:
    """One field or array. ``gradient``: the field or array of gradients, None if there is none."""

    def __init__(self, name: str, dtype: DType, storage: Any) -> None:
        self.name, self.dtype, self.storage = name, dtype, storage
        self.gradient = _gradient(storage) if dtype.is_float else None

    def read(self) -> Any:
        return _read(self.storage)

    def write(self, values: Any) -> None:
        _write(self.storage, values)

    def read_gradient(self) -> Any:
        return _read(self.gradient)

    def write_gradient(self, values: Any) -> None:
        _write(self.gradient, values)


def memories_of(kernel: KernelIR, specialization: Specialization, collector: Collector) -> dict[Any, KernelMemory]:
    """Return all memory of ``kernel``, compiled as ``specialization``: by `FieldRef`, or by the number of the array argument."""
    memories: dict[Any, KernelMemory] = {}
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, FieldRef) and ref not in memories:
            memories[ref] = KernelMemory(ref.name, ref.dtype, specialization.fields[ref])
    for k, arg in enumerate(kernel.args):
        if isinstance(arg, ArrayArg):
            memories[k] = KernelMemory(arg.name, arg.dtype, collector.arrays[k])
    return memories


def _gradient(storage: Any) -> Any:
    if isinstance(storage, np.ndarray):
        return None
    if hasattr(storage, "data_ptr"):  # a torch tensor
        if storage.requires_grad and storage.grad is None:
            storage.grad = storage.detach().clone().zero_()
        return storage.grad if storage.requires_grad else None
    if isinstance(storage, Ndarray):
        return storage.grad
    return storage.grad if storage.has_grad() else None


def _read(storage: Any) -> Any:
    if isinstance(storage, np.ndarray):
        return storage.copy()
    if hasattr(storage, "data_ptr"):
        return storage.detach().cpu().numpy().copy()
    return storage.to_numpy()


def _write(storage: Any, values: Any) -> None:
    if isinstance(storage, np.ndarray):
        storage[...] = values
    elif hasattr(storage, "data_ptr"):
        storage.detach().copy_(type(storage.detach()).new_tensor(storage.detach(), values))
    else:
        storage.from_numpy(np.asarray(values, order="C"))
