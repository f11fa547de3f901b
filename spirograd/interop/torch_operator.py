"""Kernels as operators of torch, which `torch.compile` and `torch.export` keep as one node of a graph.

The operator and its derivatives are custom operators (`torch.library`): functions of their arguments that allocate what they return.
Kernels that touch other memory, or draw random numbers, are no such functions: torch merges and repeats calls, and would not know.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from spirograd.base.dtypes import DType
from spirograd.interop.kernel_function import Arguments, Framework, PureFunction
from spirograd.interop.linearization import Linearization
from spirograd.interop.torch_maps import contiguous, leaf, second
from spirograd.interop.torch_registration import Differentiable, Flags, Tensors
from spirograd.lang.data.device_arrays import is_torch
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.parameters import AggregateParameter, ArrayParameter, ScalarParameter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_numbers = itertools.count()


def torch_op(
    kernel: object, outputs: Mapping[str, object] | None = None, name: str = "", template_args: Mapping[str, object] | None = None
) -> Callable[..., Any]:
    """Make of ``kernel`` an operator of torch that `torch.compile` keeps in one graph: ``f = torch_op(kernel, {"y": "x"}); y = f(x)``.

    ``outputs``: the parameters that the kernel writes, each with the shape to allocate, as zeros: the name of a parameter of the same
    shape, a shape, or a function of the arguments (tensors without contents, numbers) that returns a shape. The other parameters are the
    arguments of the operator, by position or by name; numbers and tensors, and sequences of numbers for vectors. The operator returns the
    outputs, one or a tuple; without outputs the result of the kernel as a tensor. Its attribute `operator` is torch's own
    object. ``name``: the name of the operator, ``"namespace::name"``; by default in the namespace `spirograd`. ``template_args``: values
    of template arguments, which are fixed.

    Gradients come from ``kernel.grad``, tangents and second derivatives (`create_graph=True`) from forward mode, the latter over reverse
    mode, on copies of the tensors; third ones, and forward mode over forward mode, raise an error. So `torch.func.grad`, `jvp`, `jacrev`,
    `jacfwd` and `hessian` work; in compiled functions, the operator then runs outside of the graphs. `torch.func.vmap` loops over the
    batch, and so do `is_grads_batched=True` and `vectorize=True` of `torch.autograd`. Under autocast operators get tensors as they are.

    Raises SpirogradTypeError if ``kernel`` is no kernel or has no such parameter, or for parameters that torch has no type for. A call
    raises SpirogradRuntimeError if the kernel writes to other tensors, uses fields or ndarrays, or draws random numbers. Needs torch.
    """
    operator = TorchOperator(kernel, outputs or {}, template_args)
    return operator.register(name or f"spirograd::{operator.name}_{next(_numbers)}")


class TorchOperator(PureFunction, Differentiable):
    """A kernel as torch sees it."""

    framework = Framework(
        "torch", is_torch, Ndarray.from_torch, "torch_op", "an operator of torch", "tensor", ", or use `sg.ad.torch_function`"
    )

    def __init__(self, kernel: object, outputs: Mapping[str, object], constants: Arguments | None = None) -> None:
        super().__init__(kernel, outputs, constants)
        import torch

        self.torch: ModuleType = torch

    def schema_type(self, name: str) -> str:
        p = self.parameters[name]
        if isinstance(p, ArrayParameter):
            return "Tensor"
        if isinstance(p, ScalarParameter):
            return "float" if p.t.is_float else "bool" if p.t.kind == "bool" else "SymInt"
        assert isinstance(p, AggregateParameter)
        return "float[]" if p.t.leaf_dtypes()[0].is_float else "SymInt[]"

    def documentation(self) -> str | None:
        return self.kernel.function.__doc__

    # --- the maps --------------------------------------------------------------------------------------------------------

    def run(self, *args: Any) -> Tensor | tuple[Tensor, ...]:
        """Launch the kernel."""
        self.refuse_tangents(args)
        given = {name: leaf(v, False) if name in self.arrays else v for name, v in zip(self.inputs, args)}
        outputs = self._allocated(given, self.torch.zeros)
        result = self.launch({**self.constants, **given, **outputs})
        if self.result is not None:
            number: Tensor = self.torch.tensor(result, dtype=self._torch_type(self.result), device=self._device(given))
            return number
        return _unpacked(outputs)

    def fake(self, *args: object) -> Tensor | tuple[Tensor, ...]:
        """Return tensors like those of `run`, without contents."""
        given = dict(zip(self.inputs, args))
        if self.result is not None:
            number: Tensor = self.torch.empty((), dtype=self._torch_type(self.result), device=self._device(given))
            return number
        return _unpacked(self._allocated(given, self.torch.empty))

    def gradients(self, adjoints: Tensors, along: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        """Return the gradients of the arguments ``along``, from those of the outputs."""
        values: dict[str, Any] = {**self.constants, **dict(zip(self.inputs, args))}
        wanted = self._chosen(along)
        for name in self.arrays:
            values[name] = leaf(values[name], name in wanted)
        for name, output, adjoint in zip(self.outputs, outputs, adjoints):
            values[name] = leaf(output, True)
            if values[name].requires_grad:
                values[name].grad = contiguous(adjoint)
        for name in wanted:
            values[name].grad = values[name].detach().new_zeros(values[name].shape)
        self.gradient(values, None if self.result is None else adjoints[0].item())
        return [values[name].grad for name in wanted]

    def tangents(self, directions: Tensors, along: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        """Return the tangents of the outputs of floats, from those of the arguments ``along``."""
        values, active = self._values(outputs, args, along)
        run = Linearization(self, values, active, dict(zip(self._chosen(along), directions)), list(self.outputs))
        run.tangent()
        return [run.copies[name].dual.to_torch(values[name].device) for name in self.outputs if name in active]

    def seconds(self, directions: Tensors, adjoints: Tensors, along: Flags, asked: Flags, outputs: Tensors, *args: object) -> list[Tensor]:
        """Return the derivatives of `gradients` along ``directions`` of the arguments ``along``: with respect to the adjoints of floats,
        and to the arguments that are ``asked`` for."""
        values, active = self._values(outputs, args, [a or b for a, b in zip(along, asked)])
        named, wanted = dict(zip(self._chosen(along), directions)), self._chosen(asked)
        by_adjoints, by_values = second(self, values, active, named, adjoints, wanted, list(self.outputs))
        return [b for b in by_adjoints if b is not None] + [by_values[name] for name in wanted]

    def _chosen(self, flags: Iterable[bool]) -> list[str]:
        return [*itertools.compress(self.inputs, flags)]

    def _values(self, outputs: Tensors, args: Sequence[object], flags: Iterable[bool]) -> tuple[Arguments, Collection[str]]:
        """Return the arguments of the kernel by name, and those with gradients: inputs with ``flags``, and outputs of floats."""
        values: Arguments = {**self.constants, **dict(zip(self.inputs, args)), **dict(zip(self.outputs, outputs))}
        return values, {*self._chosen(flags), *(name for name in self.outputs if values[name].is_floating_point())}

    # --- allocation ------------------------------------------------------------------------------------------------------

    def _allocated(self, given: Arguments, create: Callable[..., Tensor]) -> dict[str, Tensor]:
        """Return tensors for the outputs, row-major."""
        outputs = {}
        for name, spec in self.outputs.items():
            shape, declared = self.output_shape(name, given), self.output_type(name)
            like = given[spec] if isinstance(spec, str) else self._first(given)
            dtype = self._torch_type(declared) if declared is not None else None if like is None else like.dtype
            outputs[name] = create(shape, dtype=dtype, device=None if like is None else like.device)
        return outputs

    def _first(self, given: Arguments) -> Tensor | None:
        """Return the first tensor of floats, else the first tensor, else None."""
        tensors: list[Tensor] = [given[name] for name in self.inputs if name in self.arrays]
        return next((t for t in tensors if t.is_floating_point()), tensors[0] if tensors else None)

    def _device(self, given: Arguments) -> torch.device | None:
        first = self._first(given)
        return None if first is None else first.device

    def _torch_type(self, dtype: DType) -> torch.dtype:
        converted: torch.dtype = getattr(self.torch, dtype.np.name)
        return converted


def _unpacked(outputs: Mapping[str, Tensor]) -> Tensor | tuple[Tensor, ...]:
    tensors = tuple(outputs.values())
    return tensors[0] if len(tensors) == 1 else tensors


__all__ = ["torch_op"]
