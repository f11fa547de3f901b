"""The memory that a kernel works on, as NumPy arrays: fields, ndarrays, arrays of NumPy and torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.ir.nodes import ArrayArg, FieldRef, ref_of
from spirograd.ir.nodes import Kernel as KernelIR
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import objects_of


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

    def write_gradient(self, values: object) -> None:
        _write(self.gradient, values)


def memories_of(kernel: KernelIR, specialization: Specialization, args: Sequence[object]) -> dict[Any, KernelMemory]:
    """Return all memory of ``kernel``, compiled as ``specialization``: by `FieldRef`, or by the number of the array argument."""
    memories: dict[Any, KernelMemory] = {}
    arrays = objects_of(specialization.steps, args)
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, FieldRef) and ref not in memories:
            memories[ref] = KernelMemory(ref.name, ref.dtype, specialization.fields[ref])
    for k, arg in enumerate(kernel.args):
        if isinstance(arg, ArrayArg):
            memories[k] = KernelMemory(arg.name, arg.dtype, arrays[k])
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


def _read(storage: Any) -> object:
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
