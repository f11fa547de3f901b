"""The memory that a kernel works on, as NumPy arrays: fields, ndarrays, arrays of NumPy and torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.ir.nodes import ArrayArg, FieldRef, ref_of
from spirograd.ir.nodes import Kernel as KernelIR
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.steps import objects_of


class Memory:
    """One field or array. ``gradient``: the field or array of gradients, None if there is none."""

    def __init__(self, name: str, dtype: DType, whole: Any) -> None:
        self.name, self.dtype, self.whole = name, dtype, whole
        self.gradient = _gradient(whole) if dtype.is_float else None

    def read(self) -> Any:
        return _read(self.whole)

    def write(self, values: Any) -> None:
        _write(self.whole, values)

    def read_gradient(self) -> Any:
        return _read(self.gradient)

    def write_gradient(self, values: Any) -> None:
        _write(self.gradient, values)


def memories_of(kernel: KernelIR, specialization: Any, args: Sequence[Any]) -> dict[Any, Memory]:
    """All memory of ``kernel``, which ``specialization`` was made from: by `FieldRef`, or by the number of the array argument."""
    found: dict[Any, Memory] = {}
    arrays = objects_of(specialization.steps, args)
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, FieldRef) and ref not in found:
            found[ref] = Memory(ref.name, ref.dtype, specialization.fields[ref])
    for k, arg in enumerate(kernel.args):
        if isinstance(arg, ArrayArg):
            found[k] = Memory(arg.name, arg.dtype, arrays[k])
    return found


def _gradient(whole: Any) -> Any:
    if isinstance(whole, np.ndarray):
        return None
    if hasattr(whole, "data_ptr"):  # a torch tensor
        if whole.requires_grad and whole.grad is None:
            whole.grad = whole.detach().clone().zero_()
        return whole.grad if whole.requires_grad else None
    if isinstance(whole, Ndarray):
        return whole.grad
    return whole.grad if whole.has_grad() else None


def _read(whole: Any) -> Any:
    if isinstance(whole, np.ndarray):
        return whole.copy()
    if hasattr(whole, "data_ptr"):
        return whole.detach().cpu().numpy().copy()
    return whole.to_numpy()


def _write(whole: Any, values: Any) -> None:
    if isinstance(whole, np.ndarray):
        whole[...] = values
    elif hasattr(whole, "data_ptr"):
        whole.detach().copy_(type(whole.detach()).new_tensor(whole.detach(), values))
    else:
        whole.from_numpy(np.asarray(values, order="C"))
