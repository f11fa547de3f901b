"""The memory that a kernel works on, as NumPy arrays: fields, ndarrays, arrays of NumPy and torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

import numpy as np

from spirograd.ad import external_arrays
from spirograd.base.arrays import Array
from spirograd.base.dtypes import DType
from spirograd.ir.nodes import ArrayArg, FieldRef, ref_of
from spirograd.ir.nodes import Kernel as KernelIR
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import objects_of

if TYPE_CHECKING:
    from spirograd.ad.memory_keys import FieldOrArray

    Storage = Union[FieldOrArray, external_arrays.ExternalArray]


Key = Union[FieldRef, int]  # a field, or the number of an array argument


class KernelMemory:
    """One field or array. ``gradient``: the field or array of gradients, None if there is none."""

    def __init__(self, name: str, dtype: DType, storage: Storage) -> None:
        self.name, self.dtype, self.storage = name, dtype, storage
        self.gradient = _gradient(storage) if dtype.is_float else None

    def read(self) -> Array:
        return _read(self.storage)

    def write(self, values: Array) -> None:
        _write(self.storage, values)

    def read_gradient(self) -> Array:
        assert self.gradient is not None
        return _read(self.gradient)

    def write_gradient(self, values: Array) -> None:
        assert self.gradient is not None
        _write(self.gradient, values)


def memories_of(kernel: KernelIR, specialization: Specialization, args: Sequence[object]) -> dict[Key, KernelMemory]:
    """Return all memory of ``kernel``, compiled as ``specialization``: by `FieldRef`, or by the number of the array argument."""
    memories: dict[Key, KernelMemory] = {}
    arrays = objects_of(specialization.steps, args)
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, FieldRef) and ref not in memories:
            memories[ref] = KernelMemory(ref.name, ref.dtype, specialization.fields[ref])
    for k, arg in enumerate(kernel.args):
        if isinstance(arg, ArrayArg):
            memories[k] = KernelMemory(arg.name, arg.dtype, arrays[k])
    return memories


def _gradient(storage: Storage) -> Storage | None:
    if isinstance(storage, np.ndarray):
        return None
    if isinstance(storage, (ScalarField, Ndarray)):
        return storage.grad if storage.has_grad() else None
    if storage.requires_grad and storage.grad is None:
        storage.grad = storage.detach().clone().zero_()
    return storage.grad if storage.requires_grad else None


def _read(storage: Storage) -> Array:
    if isinstance(storage, (ScalarField, Ndarray)):
        return storage.to_numpy()
    contents: Array = external_arrays.on_host(storage).copy()
    return contents


def _write(storage: Storage, values: Array) -> None:
    if isinstance(storage, np.ndarray):
        storage[...] = values
    elif isinstance(storage, (ScalarField, Ndarray)):
        storage.from_numpy(np.asarray(values, order="C"))
    else:
        storage.detach().copy_(type(storage.detach()).new_tensor(storage.detach(), values))
