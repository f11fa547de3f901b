"""Kernels as differentiable functions of torch tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spirograd.ad.entries import derivative_footprint_of
from spirograd.ad.versions import Saved, Stored
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, SpirogradUnsupportedError, render
from spirograd.base.once import once_in_process
from spirograd.base.records import dataclass
from spirograd.interop.kernel_function import Arguments, Framework, KernelFunction, Shape
from spirograd.interop.torch_maps import Context, contiguous, leaf, refuse_number, second
from spirograd.ir.nodes import FieldRef
from spirograd.lang.data.device_arrays import is_torch
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.parameters import ScalarParameter
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import objects_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd import Function


def torch_function(kernel: object, outputs: Mapping[str, object] | Sequence[str] = ()) -> Callable[..., Any]:
    """Make of ``kernel`` a function that torch differentiates: ``f = torch_function(kernel, {"y": "x"}); y = f(x)``.

    ``outputs``: the parameters that the kernel writes, each with what to allocate (as zeros): the name of a parameter of the same shape, a
    shape, or a function of the arguments that returns a shape or a tensor to be filled. The other parameters are the arguments of the
    function, by position or by name. An output can be passed by name, too; it is then overwritten, like torch's operations in place. With
    a sequence of names, all outputs are passed. The function returns the outputs, one or a tuple; without outputs, it returns the result
    of the kernel as a tensor.

    Gradients come from ``kernel.grad``. Raises SpirogradTypeError if ``kernel`` is no kernel or has no such parameter;
    SpirogradRuntimeError if the kernel writes to a tensor that is not among the outputs; SpirogradUnsupportedError inside of `torch.func`
    and for batches of gradients (`is_grads_batched=True`), which `torch_op` takes. Needs torch.
    """
    function = TorchFunction(kernel, outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs))
    return functools.wraps(function.kernel.function)(lambda *args, **kwargs: function(args, kwargs))


class TorchFunction(KernelFunction):
    """A kernel with tensors as arguments."""

    framework = Framework("torch", is_torch, Ndarray.from_torch, "torch_function")

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Tensor | tuple[Tensor, ...]:
        if len(args) > len(self.inputs):
            raise SpirogradTypeError(f"`{self.name}` takes {len(self.inputs)} arguments, got {len(args)}")
        given = {**dict(zip(self.inputs, args)), **kwargs}
        self.refuse_transforms()
        cells = self._numbers_with_gradients(given)
        if cells:
            return self.with_cells(cells)((), {**given, **cells})
        missing = {name: spec for name, spec in self.outputs.items() if name not in given}
        for name, spec in missing.items():
            given[name] = self._allocated(name, spec, given)
        zeros = [name for name, spec in missing.items() if not callable(spec)]
        apply: Callable[..., tuple[Tensor, ...]] = _functions()[0].apply
        results = apply(self, list(given), zeros, *given.values())
        return results[0] if len(results) == 1 else results

    def _numbers_with_gradients(self, given: Arguments) -> dict[str, Tensor]:
        """Return the tensors of one element that require a gradient, and are passed for floats, as arrays of one element, by name."""
        import torch

        cells: dict[str, Tensor] = {}
        for parameter in self.kernel.parameters():
            value = given.get(parameter.name)
            if not isinstance(parameter, ScalarParameter) or not parameter.t.is_float or not isinstance(value, torch.Tensor):
                continue
            if value.requires_grad and value.numel() == 1 and torch.is_grad_enabled():
                cells[parameter.name] = value.to(getattr(torch, parameter.t.np.name)).reshape(1)
        return cells

    def refuse_transforms(self, *gradients: Tensor | None) -> None:
        """Raise inside of transforms of `torch.func`, and for ``gradients`` that are a batch of autograd's."""
        import torch

        functorch = torch._C._functorch
        batched = any(functorch.is_legacy_batchedtensor(g) for g in gradients if g is not None)
        if batched or torch._C._are_functorch_transforms_active():
            transform = "`is_grads_batched=True` and `vectorize=True`" if batched else "the transforms of `torch.func`"
            problem = f"a `torch_function` has no rule for {transform}: {self.label}"
            hint = "use `sg.ad.torch_op`, whose operators have it; kernels that use fields have to be called for each entry"
            raise SpirogradUnsupportedError(problem, None, hint)

    def _allocated(self, name: str, spec: Shape | None, given: Arguments) -> Tensor:
        import torch

        if spec is None:
            problem = f"output `{name}` of `{self.name}` is neither passed nor described"
            raise SpirogradRuntimeError(f"{problem}: pass a tensor, or describe it in `outputs`")
        if isinstance(spec, str):
            return torch.zeros_like(given[spec], requires_grad=False)
        described = spec(**{key: given[key] for key in self.inputs if key in given}) if callable(spec) else spec
        if isinstance(described, torch.Tensor):
            return described.detach()
        like = next((v for v in given.values() if isinstance(v, torch.Tensor) and v.is_floating_point()), None)
        return torch.zeros(tuple(described), dtype=None if like is None else like.dtype, device=None if like is None else like.device)

    def run(self, values: Arguments, host: dict[str, object] | None) -> tuple[object, int | None, list[Saved]]:
        """Launch the kernel on detached tensors. Return its result, the number of the launch, and copies of the fields and ndarrays that
        the gradient reads; torch keeps its tensors only. Arrays of NumPy in ``host`` are replaced by copies. None: there is no gradient."""
        _, specialization, args = self.specialized(values)
        for name in self.kernel.copied():
            if getattr(values.get(name), "requires_grad", False):
                refuse_number(self.label, name, "requires a gradient")
        self.refuse_tapes()
        result = self.kernel(*self.bound, **values)
        return result, specialization.last_number, [] if host is None else self._saved(specialization, args, host)

    def _saved(self, specialization: Specialization, args: Sequence[object], host: dict[str, object]) -> list[Saved]:
        arrays = objects_of(specialization.steps, args)
        saved: dict[int, Saved] = {}
        for access, _ in derivative_footprint_of(self.gradient_of(specialization)).residuals:
            storage = access.storage if access.arg is None else arrays[access.arg]
            if isinstance(storage, np.ndarray):
                host.update({name: value.copy() for name, value in host.items() if value is storage})
            elif id(storage) not in saved and (access.arg is None or isinstance(storage, Ndarray)):
                saved[id(storage)] = Saved(Stored(access.name, storage), None)
        return list(saved.values())


@dataclass(eq=False, slots=True)
class TorchCall:
    """A launch in torch's graph. ``names``: the arguments in order; ``values``: those that are no tensors, by name; ``active``: the tensors
    with gradients; ``needed``: those whose gradients torch asks for. ``zeros``: outputs that were zero before the launch. ``number``: the
    number of the launch; ``saved``: fields and ndarrays as it read them.
    """

    function: TorchFunction
    names: list[str]
    values: Arguments
    active: list[str]
    needed: list[str]
    zeros: list[str]
    number: int | None
    saved: list[Saved]

    def arguments(self, tensors: Iterable[Tensor]) -> Arguments:
        """Return the arguments by name, with ``tensors`` as leaves of their own."""
        remaining = iter(tensors)
        return {n: self.values[n] if n in self.values else leaf(next(remaining), n in self.active) for n in self.names}

    def gradient(self, adjoints: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients of all arguments, None for those that torch does not ask for, from those of the outputs."""
        arguments = self.arguments(tensors)
        outputs = [name for name in arguments if name in self.function.outputs]
        for name, adjoint in zip(outputs, adjoints):
            if arguments[name].requires_grad:
                arguments[name].grad = contiguous(adjoint)
        self.function.gradient(arguments, None if outputs else adjoints[0].item(), self.number, self.saved)
        return [arguments[name].grad if name in self.needed else None for name in self.names]

    def check_active_outputs(self, tensors: Sequence[Tensor]) -> None:
        """Raise if a gradient that torch is to differentiate begins at memory that torch does not know."""
        _, specialization, args = self.function.specialized(self.arguments(tensors))
        gradient = self.function.gradient_of(specialization)
        arrays = objects_of(specialization.steps, args)
        for place in gradient.derivative.active_outputs:
            storage = gradient.fields[place.ref] if isinstance(place.ref, FieldRef) else arrays[place.ref.arg]
            if isinstance(storage, (ScalarField, Ndarray)) and storage.grad is not None and storage.grad.to_numpy().any():
                problem = f"the gradient of `{place.ref.name}` is not zero: torch cannot differentiate a gradient that begins there"
                raise SpirogradRuntimeError(render(problem, place.loc, "write to an output of the `torch_function` instead"))

    def second(
        self, adjoints: Sequence[Tensor], tensors: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Return the derivatives of `gradient` along ``cotangents``: with respect to the adjoints, and to the tensors."""
        directions = {name: u for name, u in zip(self.names, cotangents) if u is not None and name in self.active}
        wanted = [name for name in self.needed if name not in self.function.outputs]  # no gradient depends on former values of outputs
        values = self.arguments(tensors)
        by_adjoints, by_values = second(
            self.function, values, self.active, directions, adjoints, wanted, self.zeros, self.number, self.saved
        )
        return by_adjoints, [by_values.get(name) for name in self.names if name not in self.values]


@once_in_process
def _functions() -> tuple[type[Function], type[Function]]:
    """Return the classes of torch's own functions that run kernels, and their gradients, for gradients with a graph of their own. They
    are created at the first use: importing torch takes a second."""
    import torch

    class KernelFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Context, function: TorchFunction, names: list[str], zeros: list[str], *values: object) -> tuple[Tensor, ...]:
            tensors = {name: v for name, v in zip(names, values) if isinstance(v, torch.Tensor)}
            needed = [name for name, need in zip(names, ctx.needs_input_grad[3:]) if need]
            active = [n for n, t in tensors.items() if t.is_floating_point() and (n in needed or n in function.outputs)]
            host = {name: v for name, v in zip(names, values) if name not in tensors}
            ctx.call = TorchCall(function, names, host, active, needed, zeros, None, [])
            result, ctx.call.number, ctx.call.saved = function.run(ctx.call.arguments(tensors.values()), host if needed else None)
            outputs = tuple([tensors[name] for name in names if name in function.outputs])
            ctx.mark_dirty(*outputs)
            ctx.save_for_backward(*tensors.values())
            if outputs:
                return outputs
            like = next((t for t in tensors.values() if t.is_floating_point()), None)
            return (torch.tensor(result, dtype=None if like is None else like.dtype),)

        @staticmethod
        def backward(ctx: Context, *gradients: Tensor) -> tuple[object, ...]:
            ctx.call.function.refuse_transforms(*gradients)
            if torch.is_grad_enabled():  # `create_graph=True`
                apply: Callable[..., Sequence[Tensor | None]] = KernelGradient.apply
                return (None, None, None, *apply(ctx.call, len(gradients), *gradients, *ctx.saved_tensors))
            return (None, None, None, *ctx.call.gradient(gradients, ctx.saved_tensors))

    class KernelGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Context, call: TorchCall, count: int, *tensors: Tensor) -> tuple[Tensor | None, ...]:
            ctx.call, ctx.count = call, count
            ctx.save_for_backward(*tensors)
            call.check_active_outputs(tensors[count:])
            return tuple(call.gradient(tensors[:count], tensors[count:]))

        @staticmethod
        def backward(ctx: Context, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
            if torch.is_grad_enabled():
                problem = f"{ctx.call.function.label} has first and second derivatives, no third ones"
                raise SpirogradRuntimeError(render(problem, None, "differentiate a second time without `create_graph=True`"))
            tensors = ctx.saved_tensors
            by_adjoints, by_tensors = ctx.call.second(tensors[: ctx.count], tensors[ctx.count :], cotangents)
            return (None, None, *by_adjoints, *by_tensors)

    return KernelFunction, KernelGradient


__all__ = ["torch_function"]
