"""Second derivatives of `torch_function` and `torch_op`: gradients of kernels as functions that torch differentiates.

For a kernel y = f(x) and an adjoint g of y, the gradient is J(x)^T g. For a cotangent u of that gradient, its derivative by g is J(x) u,
the tangent of y along u; and by x it is the Hessian of <g, f> times u. Forward mode over reverse mode gives both, as in `hvp`. It runs on
copies of the tensors in ndarrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spirograd.ad.second_run import SecondRun, copies_of
from spirograd.ad.versions import Saved
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.once import once_in_process
from spirograd.base.records import dataclass
from spirograd.ir.nodes import FieldRef
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.steps import objects_of


@dataclass(eq=False, slots=True)
class Call:
    """One launch of a kernel in torch's graph. ``values``: its arguments by name, None for tensors; ``wanted``: those with gradients.

    ``needed``: the tensors whose gradients torch asks for. ``zeros``: outputs that were zero before the launch. ``number``: of the launch;
    ``saved``: fields and ndarrays as it found them.
    """

    function: Any
    values: dict[str, Any]
    wanted: list[str]
    needed: list[str]
    zeros: list[str]
    number: int | None
    saved: list[Saved]

    def arguments(self, tensors: Iterable[Any]) -> dict[str, Any]:
        """The arguments with ``tensors``, the ones that have gradients as leaves of their own."""
        left = iter(tensors)
        found = {name: next(left).detach() if value is None else value for name, value in self.values.items()}
        for name in self.wanted:
            found[name].requires_grad_()
        return found

    @property
    def outputs(self) -> list[str]:
        return [name for name in self.values if name in self.function.outputs]

    def gradient(self, adjoints: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        """The gradients of all arguments, None for those that torch does not ask for, from those of the outputs."""
        arguments = self.arguments(tensors)
        for name, adjoint in zip(self.outputs, adjoints):
            if arguments[name].requires_grad:
                arguments[name].grad = contiguous(adjoint)
        self.function.gradient(arguments, None if self.outputs else adjoints[0].item(), self.number, self.saved)
        return [arguments[name].grad if name in self.needed else None for name in self.values]

    def check_active_outputs(self, tensors: Sequence[Any]) -> None:
        """Raise if a gradient that torch is to differentiate begins at memory that torch does not know."""
        function = self.function
        session, specialization, args = function.kernel.specialized(function.bound, self.arguments(tensors))
        made = function.kernel.grad.of(session, specialization)
        arrays = objects_of(specialization.steps, args)
        for place in made.derivative.active_outputs:
            whole = made.fields[place.ref] if isinstance(place.ref, FieldRef) else arrays[place.ref.arg]
            if isinstance(whole, (ScalarField, Ndarray)) and whole.grad is not None and whole.grad.to_numpy().any():
                problem = f"the gradient of `{place.ref.name}` is not zero: torch cannot differentiate a gradient that begins there"
                raise SpirogradRuntimeError(render(problem, place.loc, "write to an output of the `torch_function` instead"))

    def second(self, adjoints: Sequence[Any], tensors: Sequence[Any], cotangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The derivatives of `gradient` along ``cotangents``: by the adjoints, and by the arguments."""
        given = {name: u for name, u in zip(self.values, cotangents) if u is not None and name in self.wanted}
        arguments = self.arguments(tensors)
        run = self._run(arguments, given)
        by_adjoints: list[Any] = []
        with run.block(self.outputs, self.zeros):
            run.forward()
            for name, adjoint in zip(self.outputs, adjoints):
                active = name in self.wanted
                by_adjoints.append(run.arrays[name].dual.to_torch(adjoint.device) if active else None)
                if active:
                    run.arrays[name].grad.from_torch(adjoint)
            run.reverse()
        found = [self._hessian(run, name, arguments[name]) for name in self.values]
        if self.outputs:
            return by_adjoints, found
        along = sum((run.arrays[name].grad.to_torch(u.device) * u).sum() for name, u in given.items())
        return [along], [None if h is None else h * adjoints[0] for h in found]

    def tangents(self, tensors: Sequence[Any], directions: dict[str, Any]) -> list[Any]:
        """The tangents of the outputs that have gradients, from those of arguments, by name."""
        arguments = self.arguments(tensors)
        run = self._run(arguments, directions)
        with run.block(self.outputs, self.zeros):
            run.forward()
            return [run.arrays[name].dual.to_torch(arguments[name].device) for name in self.outputs if name in self.wanted]

    def _run(self, arguments: dict[str, Any], given: dict[str, Any]) -> SecondRun:
        """A run on copies of the tensors, with tangents ``given`` by name."""
        function = self.function
        tensors = {name: arguments[name] for name, value in self.values.items() if value is None}
        arrays = copies_of(function.kernel, tensors, self.wanted)
        for name, array in arrays.items():
            if name not in self.zeros:
                array.from_torch(tensors[name])
        for name, cotangent in given.items():
            arrays[name].dual.from_torch(cotangent)
        return SecondRun(function.kernel, function.bound, arguments, arrays, "torch", self.number, self.saved)

    def _hessian(self, run: SecondRun, name: str, value: Any) -> Any:
        """The derivative by an argument; None for an output, whose former values no gradient depends on, and where torch asks for none."""
        if name not in self.needed or name in self.function.outputs:
            return None
        return run.arrays[name].grad.dual.to_torch(value.device)


def contiguous(tensor: Any) -> Any:
    """A row-major copy."""
    import torch

    return tensor.detach().clone(memory_format=torch.contiguous_format)


@once_in_process
def gradient_function() -> Any:
    """The class of torch's own functions that run gradients of kernels."""
    import torch

    def forward(ctx: Any, call: Call, count: int, *tensors: Any) -> Any:
        ctx.call, ctx.count = call, count
        ctx.save_for_backward(*tensors)
        call.check_active_outputs(tensors[count:])
        return tuple(call.gradient(tensors[:count], tensors[count:]))

    def backward(ctx: Any, *cotangents: Any) -> Any:
        if torch.is_grad_enabled():
            label = f"kernel `{ctx.call.function.kernel.function.__name__}` has first and second derivatives, no third ones"
            raise SpirogradRuntimeError(render(label, None, "differentiate a second time without `create_graph=True`"))
        tensors = ctx.saved_tensors
        by_adjoints, by_values = ctx.call.second(tensors[: ctx.count], tensors[ctx.count :], cotangents)
        by_tensors = [h for h, value in zip(by_values, ctx.call.values.values()) if value is None]
        return (None, None, *by_adjoints, *by_tensors)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("KernelGradient", (torch.autograd.Function,), members)
