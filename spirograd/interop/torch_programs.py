"""Programs (`sg.ad.program`) as operators of torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, cast

from spirograd.ad.memory_keys import FieldOrArray
from spirograd.ad.program_runs import ProgramRuns, Run, Static
from spirograd.interop import arrays_of_numpy
from spirograd.interop.torch_registration import Differentiable, Flags, Tensors
from spirograd.lang.data.device_arrays import is_torch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from spirograd.interop.programs import Operator

_numbers = itertools.count()


def operator_of(runs: ProgramRuns, static: Static) -> Operator:
    """Return the operator of a program with these other arguments. It takes a tensor for each field and ndarray of the inputs."""
    import torch

    name = runs.name if runs.name.isidentifier() else "program"
    return TorchProgram(torch, runs, static).register(f"spirograd::{name}_program_{next(_numbers)}")


class TorchProgram(Differentiable):
    """A program as torch sees it. Results are on the device of the first input."""

    def __init__(self, torch: ModuleType, runs: ProgramRuns, static: Static) -> None:
        self.torch, self._runs, self._static = torch, runs, static
        self.name, self.label = runs.name, f"program `{runs.name}`"
        self.inputs = [f"input_{k}" for k in range(len(runs.inputs.leaves))]
        self.arrays = frozenset(self.inputs)
        self.outputs = {f"output_{k}": leaf for k, leaf in enumerate(runs.outputs.leaves)}
        self._last: tuple[Run, Sequence[object]] | None = None

    def schema_type(self, name: str) -> str:
        return "Tensor"

    def documentation(self) -> str | None:
        return self._runs.function.__doc__

    def run(self, *args: object) -> Tensor | tuple[Tensor, ...]:
        self.refuse_tangents(args)
        with self._runs.exclusive():
            if self.gradient_follows:
                self._record(args)
            else:
                self._runs.run(args, load, self._static)
            return _unpacked([self._read(leaf, args) for leaf in self._runs.outputs.leaves])

    def fake(self, *args: object) -> Tensor | tuple[Tensor, ...]:
        shapes = [((*leaf.shape, *leaf.element_shape), getattr(self.torch, leaf.dtype.np.name)) for leaf in self._runs.outputs.leaves]
        return _unpacked([self.torch.empty(shape, dtype=dtype, device=_device(args)) for shape, dtype in shapes])

    def gradients(self, adjoints: Tensors, along: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        with self._runs.exclusive():
            if self._last is None or self._last[1] != _identities(args):
                self._record(args)
            assert self._last is not None
            self._runs.gradient(self._last[0], adjoints, load)
            return self._of_inputs([leaf.grad for leaf in self._runs.inputs.leaves], args, along)

    def tangents(self, directions: Tensors, along: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        with self._runs.tangent(args, self._spread(directions, along, args), load, self._static):
            return [self._read(leaf.dual, args) for leaf in self._runs.outputs.leaves]

    def seconds(self, directions: Tensors, adjoints: Tensors, along: Flags, asked: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        with self._runs.second(args, self._spread(directions, along, args), adjoints, load, self._static):
            by_adjoints = [self._read(leaf.dual, args) for leaf in self._runs.outputs.leaves]
            return by_adjoints + self._of_inputs([leaf.grad.dual for leaf in self._runs.inputs.leaves], args, asked)

    def _record(self, args: Sequence[object]) -> None:
        # The run keeps its arguments, so no other tensor can have their memory while it is the last one.
        self._last = self._runs.record(args, load, self._static), _identities(args)

    def _spread(self, directions: Tensors, along: Flags, args: Sequence[object]) -> list[Tensor]:
        """Return a direction for each input, zeros where there is none."""
        remaining = iter(directions)
        return [next(remaining) if flag else self.torch.zeros_like(arg) for flag, arg in zip(along, args)]

    def _of_inputs(self, memories: Sequence[FieldOrArray], args: Sequence[object], chosen: Flags) -> list[Tensor]:
        """Return what is in memory, for the arguments that are chosen and in their shapes and types: a number may be passed as any tensor
        of one element."""
        pairs = itertools.compress(zip(memories, cast("Sequence[Tensor]", args)), chosen)
        return [self._read(memory, args).to(arg.dtype).reshape(arg.shape) for memory, arg in pairs]

    def _read(self, memory: FieldOrArray, args: Sequence[object]) -> Tensor:
        tensor: Tensor = memory.to_torch(_device(args))
        return tensor


def load(memory: FieldOrArray, value: object) -> None:
    """Set memory to a tensor or a number."""
    if not is_torch(value):
        arrays_of_numpy.load(memory, value)
        return
    import torch

    tensor: torch.Tensor = value
    shape = (*memory.shape, *memory.element_shape)
    if tensor.numel() == 1 and tuple(tensor.shape) != shape:
        tensor = tensor.reshape(shape)
    memory.from_torch(tensor.detach().to(getattr(torch, memory.dtype.np.name)))


def _device(args: Sequence[object]) -> torch.device:
    return cast("Tensor", args[0]).device


def _identities(args: Sequence[object]) -> list[object]:
    """Return what tells the contents of tensors apart while these exist."""
    return [(arg.data_ptr(), arg._version, tuple(arg.shape), arg.stride(), arg.dtype) for arg in cast("Sequence[Tensor]", args)]


def _unpacked(results: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return results[0] if len(results) == 1 else tuple(results)
