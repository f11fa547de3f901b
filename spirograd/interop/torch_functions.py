"""Kernels as differentiable functions of torch tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spirograd.ad.entries import derivative_footprint_of
from spirograd.ad.versions import Saved, Stored
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, SpirogradUnsupportedError, render
from spirograd.base.once import once_in_process
from spirograd.interop.pure_kernels import COPY_HINT, check_writes
from spirograd.interop.torch_second import Call, gradient_function
from spirograd.lang import context
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.kernel import BoundKernel, Kernel
from spirograd.lang.frontend.parameters import ScalarParameter
from spirograd.lang.frontend.scalar_cells import with_cells
from spirograd.lang.frontend.steps import objects_of


def torch_function(kernel: Any, outputs: Mapping[str, Any] | Sequence[str] = ()) -> Callable[..., Any]:
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
    if not isinstance(kernel, (Kernel, BoundKernel)):
        raise SpirogradTypeError("`torch_function` takes a kernel: a function decorated with `@sg.kernel`")
    specs = dict(outputs) if isinstance(outputs, Mapping) else dict.fromkeys(outputs)
    function = TorchFunction(kernel, specs)
    return functools.wraps(function.kernel.function)(lambda *args, **kwargs: function(args, kwargs))


class TorchFunction:
    """A kernel with tensors as arguments."""

    def __init__(self, kernel: Any, outputs: dict[str, Any]) -> None:
        self.kernel: Kernel = kernel.kernel if isinstance(kernel, BoundKernel) else kernel
        self.bound = (kernel.instance,) if isinstance(kernel, BoundKernel) else ()
        self.outputs = outputs
        names = list(inspect.signature(self.kernel.function).parameters)
        unknown = [name for name in outputs if name not in names]
        if unknown:
            raise SpirogradTypeError(f"kernel `{self.kernel.function.__name__}` has no parameter `{unknown[0]}`")
        self.names = names
        self.inputs = [name for name in names[len(self.bound) :] if name not in outputs]

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > len(self.inputs):
            raise SpirogradTypeError(f"`{self.kernel.function.__name__}` takes {len(self.inputs)} arguments, got {len(args)}")
        given = {**dict(zip(self.inputs, args)), **kwargs}
        self._refuse_transforms()
        with_gradients = self._numbers_with_gradients(given)
        if with_gradients:
            return self._with_cells(with_gradients)((), {**given, **{name: tensor for name, (_, tensor) in with_gradients.items()}})
        missing = {name: spec for name, spec in self.outputs.items() if name not in given}
        for name, spec in missing.items():
            given[name] = self._allocated(name, spec, given)
        zeros = [name for name, spec in missing.items() if not callable(spec)]
        results = _function_class().apply(self, list(given), zeros, *given.values())
        return results[0] if len(results) == 1 else results

    def _numbers_with_gradients(self, given: dict[str, Any]) -> dict[str, tuple[int, Any]]:
        """The parameters that take floats, and are given tensors of one element that require a gradient: their positions, and the tensors
        as arrays of one element."""
        import torch

        found: dict[str, tuple[int, Any]] = {}
        for position, (name, parameter) in enumerate(zip(self.names, self.kernel.parameters())):
            value = given.get(name)
            if not isinstance(parameter, ScalarParameter) or not parameter.t.is_float or not isinstance(value, torch.Tensor):
                continue
            if value.requires_grad and value.numel() == 1 and torch.is_grad_enabled():
                found[name] = position, value.to(getattr(torch, parameter.t.np.name)).reshape(1)
        return found

    def _with_cells(self, which: Mapping[str, tuple[int, Any]]) -> TorchFunction:
        """The function of the kernel that takes these numbers from memory: see `scalar_cells`."""
        kernel: Any = with_cells(self.kernel, {position: frozenset((0,)) for position, _ in which.values()})
        return TorchFunction(BoundKernel(kernel, *self.bound) if self.bound else kernel, self.outputs)

    def _refuse_transforms(self, *gradients: Any) -> None:
        """Raise inside of transforms of `torch.func`, and for ``gradients`` that are a batch of autograd's."""
        import torch

        functorch = torch._C._functorch
        batched = any(functorch.is_legacy_batchedtensor(g) for g in gradients if g is not None)
        if batched or torch._C._are_functorch_transforms_active():
            transform = "`is_grads_batched=True` and `vectorize=True`" if batched else "the transforms of `torch.func`"
            problem = f"a `torch_function` has no rule for {transform}: kernel `{self.kernel.function.__name__}`"
            hint = "use `sg.ad.torch_op`, whose operators have it; kernels that use fields have to be called for each entry"
            raise SpirogradUnsupportedError(problem, None, hint)

    def _allocated(self, name: str, spec: Any, given: dict[str, Any]) -> Any:
        import torch

        if spec is None:
            raise SpirogradRuntimeError(
                f"output `{name}` of `{self.kernel.function.__name__}` is neither passed nor described: pass a tensor, or "
                "describe it in `outputs`"
            )
        tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
        if isinstance(spec, str):
            return torch.zeros_like(given[spec], requires_grad=False)
        found = spec(**{key: given[key] for key in self.inputs if key in given}) if callable(spec) else spec
        if isinstance(found, torch.Tensor):
            return found.detach()
        like = next((t for t in tensors if t.is_floating_point()), None)
        return torch.zeros(tuple(found), dtype=None if like is None else like.dtype, device=None if like is None else like.device)

    def _check_copied(self, values: dict[str, Any]) -> None:
        """Raise if a number requires a gradient: numbers are copied into the launch, and gradients do not flow back to them."""
        for name in self.kernel.copied():
            if getattr(values.get(name), "requires_grad", False):
                self.refuse_number(name, "requires a gradient")

    def refuse_number(self, name: str, what: str) -> Any:
        """Raise for a tensor in place of a number, to which derivatives would be zero with no error."""
        label = f"kernel `{self.kernel.function.__name__}`: `{name}` is a tensor that {what}, but not an array there"
        hint = f"declare `{name}: sg.types.ndarray()`, and pass a tensor of one element; or `{name}.detach()`"
        raise SpirogradRuntimeError(render(label, None, hint))

    def run(self, values: dict[str, Any], kept: dict[str, Any] | None) -> tuple[Any, Any, list[Saved]]:
        """Launch the kernel on detached tensors: its result, its plan's number of the launch, and copies of the fields and ndarrays that
        the gradient reads; arrays of NumPy in ``kept`` are replaced by copies. Torch keeps its tensors only. None: there is no gradient."""
        _, specialization, args = self.kernel.specialized(self.bound, values)
        check_writes(self.kernel, specialization, self.outputs)
        self._check_copied(values)
        if context.recorder() is not None:
            raise SpirogradRuntimeError("a `torch_function` has its gradient from torch: call it outside of tapes")
        result = self.kernel(*self.bound, **values)
        return result, specialization.last_number, [] if kept is None else self._saved(specialization, args, kept)

    def _saved(self, specialization: Any, args: Any, kept: dict[str, Any]) -> list[Saved]:
        made = self.kernel.grad.of(context.session(), specialization)
        arrays = objects_of(specialization.steps, args)
        found: dict[int, Saved] = {}
        for access, _ in derivative_footprint_of(made).residuals:
            whole = access.whole if access.arg is None else arrays[access.arg]
            if isinstance(whole, np.ndarray):
                kept.update({name: value.copy() for name, value in kept.items() if value is whole})
            elif id(whole) not in found and (access.arg is None or isinstance(whole, Ndarray)):
                found[id(whole)] = Saved(Stored(access.name, whole), None)
        return list(found.values())

    def gradient(self, values: dict[str, Any], returned: Any, number: Any, saved: list[Saved]) -> None:
        """Launch the gradient on the same tensors, whose ``grad`` it uses, and on memory as it was ``saved``."""
        session, specialization, args = self.kernel.specialized(self.bound, values)
        made = self.kernel.grad.of(session, specialization)
        made.check_bare(COPY_HINT.format(framework="torch"))
        try:
            for memory in saved:
                memory.swap()
            made.launch(self.kernel.pack(session, specialization, args, gradients=True), returned if made.returned else None, number)
        finally:
            for memory in saved:
                memory.swap()


def traced(value: Any, needed: bool) -> Any:
    """A tensor that shares the memory of ``value`` and has a gradient of its own; other values as they are."""
    detached = value.detach()
    return detached.requires_grad_() if needed and detached.is_floating_point() else detached


def _chosen(names: list[str], which: Sequence[bool]) -> list[str]:
    return [name for name, chosen in zip(names, which) if chosen]


@once_in_process
def _function_class() -> Any:
    """The class of torch's own functions that runs kernels. Made at the first use: torch takes a second to import."""
    import torch

    class KernelFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, function: TorchFunction, names: list[str], zeros: list[str], *values: Any) -> Any:
            is_tensor = [isinstance(v, torch.Tensor) for v in values]
            floats = [t and v.is_floating_point() for t, v in zip(is_tensor, values)]
            needed = ctx.needs_input_grad[3:]
            wanted = [f and (need or name in function.outputs) for f, name, need in zip(floats, names, needed)]
            arguments = {n: traced(v, w) if t else v for n, v, t, w in zip(names, values, is_tensor, wanted)}
            plain = {n: None if t else v for n, v, t in zip(names, values, is_tensor)}
            result, number, saved = function.run(arguments, plain if any(needed) else None)
            ctx.call = Call(function, plain, _chosen(names, wanted), _chosen(names, needed), zeros, number, saved)
            outputs = [v for n, v in zip(names, values) if n in function.outputs]
            ctx.mark_dirty(*outputs)
            ctx.save_for_backward(*(v for v, t in zip(values, is_tensor) if t))
            if outputs:
                return tuple(outputs)
            floating = next((v for v, f in zip(values, floats) if f), None)
            return (torch.tensor(result, dtype=None if floating is None else floating.dtype),)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            ctx.call.function._refuse_transforms(*gradients)
            if torch.is_grad_enabled():  # `create_graph=True`
                return (None, None, None, *gradient_function().apply(ctx.call, len(gradients), *gradients, *ctx.saved_tensors))
            return (None, None, None, *ctx.call.gradient(gradients, ctx.saved_tensors))

    return KernelFunction


__all__ = ["torch_function"]
