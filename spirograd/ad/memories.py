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
        """Another one, of no arguments. What it receives are numbers and ndarrays."""
        made = Collector.__new__(Collector)
        made._clear()
        return made

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


def memories_of(kernel: KernelIR, specialization: Specialization, collector: Collector) -> dict[Any, Memory]:
    """All memory of ``kernel``, which ``specialization`` was made from: by `FieldRef`, or by the number of the array argument."""
    found: dict[Any, Memory] = {}
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, FieldRef) and ref not in found:
            found[ref] = Memory(ref.name, ref.dtype, specialization.fields[ref])
    for k, arg in enumerate(kernel.args):
        if isinstance(arg, ArrayArg):
            found[k] = Memory(arg.name, arg.dtype, collector.arrays[k])
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
