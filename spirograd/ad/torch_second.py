"""Second derivatives of `torch_function`: gradients of kernels as functions that torch differentiates.

For a kernel y = f(x) and an adjoint g of y, the gradient is J(x)^T g. For a cotangent u of that gradient, its derivative by g is J(x) u,
the tangent of y along u; and by x it is the Hessian of <g, f> times u. Forward mode over reverse mode gives both, as in `hvp`. It runs on
copies of the tensors in ndarrays.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from spirograd.ad.entries import Arguments, footprint_of
from spirograd.ad.memories import Collector
from spirograd.ad.second_order import second_of, tangents_of
from spirograd.ad.versions import Saved, Stored, memory_identity
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.records import dataclass
from spirograd.ir.nodes import ArrayRef, FieldRef
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField


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
        arrays = Collector(function.kernel, specialization, args).arrays
        for place in made.derivative.active_outputs:
            whole = made.fields[place.ref] if isinstance(place.ref, FieldRef) else arrays[place.ref.arg]
            if isinstance(whole, (ScalarField, Ndarray)) and whole.grad is not None and whole.grad.to_numpy().any():
                problem = f"the gradient of `{place.ref.name}` is not zero: torch cannot differentiate a gradient that begins there"
                raise SpirogradRuntimeError(render(problem, place.loc, "write to an output of the `torch_function` instead"))

    def second(self, adjoints: Sequence[Any], tensors: Sequence[Any], cotangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The derivatives of `gradient` along ``cotangents``: by the adjoints, and by the arguments."""
        given = {name: u for name, u in zip(self.values, cotangents) if u is not None and name in self.wanted}
        second = _Second(self, tensors, given)
        second.run({name: a for name, a in zip(self.outputs, adjoints) if name in self.wanted})
        if self.outputs:
            by_adjoints = [second.tangents.get(name) for name in self.outputs]
            return by_adjoints, [second.hessian(name) for name in self.values]
        along = sum((second.gradient(name) * u).sum() for name, u in given.items())
        by_values = [second.hessian(name) for name in self.values]
        return [along], [None if h is None else h * adjoints[0] for h in by_values]


class _Second:
    """One run of a kernel and its gradient in forward mode."""

    def __init__(self, call: Call, tensors: Sequence[Any], cotangents: dict[str, Any]) -> None:
        function, self.call = call.function, call
        values = call.arguments(tensors)
        kernel = self.kernel = function.kernel
        _, specialization, args = kernel.specialized(function.bound, values)
        external = Arguments(kernel, specialization, args).external
        decls = {id(array): specialization.kernel.args[k] for k, (array, _, _) in external.items()}
        self.arrays: dict[str, Any] = {
            n: _as_ndarray(values[n], decls[id(values[n])]) for n, v in call.values.items() if v is None and id(values[n]) in decls
        }
        for name in call.zeros:
            self.arrays[name].fill(0.0)
        for name, cotangent in cotangents.items():
            self.arrays[name].dual.from_torch(cotangent)
        self.devices = {name: values[name].device for name in self.arrays}
        self.session, self.specialization, self.args = kernel.specialized(function.bound, {**values, **self.arrays})
        self.tangents: dict[str, Any] = {}

    def run(self, adjoints: dict[str, Any]) -> None:
        """Find ``tangents`` of outputs, `gradient` and `hessian`. Other memory is left as it is."""
        others = self._others()
        gradients = [whole for whole in others if whole.has_grad()]
        for whole in gradients:
            whole.make_duals()
        first = tangents_of(self.session, self.kernel, self.specialization)
        second = second_of(self.session, self.kernel, self.specialization)
        self._refuse(second)
        for memory in self.call.saved:
            memory.swap()
        kept = [Saved(Stored("", memory), None) for whole in others for memory in (whole, *([whole.grad] if whole.has_grad() else ()))]
        try:
            for whole in gradients:
                for shadow in (whole.grad, whole.dual, whole.grad.dual):
                    shadow.fill(0.0)
            packer = self.kernel.pack(self.session, self.specialization, self.args)
            first.plan.main.launch(packer.scalars, packer.arrays, first.trees, drawn=self.call.number)
            for name, adjoint in adjoints.items():
                self.tangents[name] = self._tensor(name, self.arrays[name].dual)
                self.arrays[name].grad.from_torch(adjoint)
            packer = self.kernel.pack(self.session, self.specialization, self.args, gradients=True)
            second.launch(packer, 1.0 if second.returned else None, self.call.number)
        finally:
            for memory in (*kept, *self.call.saved):
                memory.swap()

    def hessian(self, name: str) -> Any:
        """The derivative by an argument; None for an output, whose former values no gradient depends on, and where torch asks for none."""
        if name not in self.call.needed or name in self.call.function.outputs:
            return None
        return self._tensor(name, self.arrays[name].grad.dual)

    def gradient(self, name: str) -> Any:
        return self._tensor(name, self.arrays[name].grad)

    def _tensor(self, name: str, array: Any) -> Any:
        return array.to_torch(self.devices[name])

    def _others(self) -> list[Any]:
        """The fields and ndarrays that the kernel uses beside the tensors: those that it writes, or that have gradients."""
        own = {id(array) for array in self.arrays.values()}
        arrays = Collector(self.kernel, self.specialization, self.args).arrays
        found: dict[Any, Any] = {}
        footprint = footprint_of(self.specialization)
        written = {access.arg if access.arg is not None else access.key for access in footprint.written}
        for access in footprint.used:
            whole = access.whole if access.arg is None else arrays[access.arg]
            if id(whole) in own or (access.arg is not None and not isinstance(whole, Ndarray)):
                continue
            if (access.key if access.arg is None else access.arg) in written or whole.has_grad():
                found[memory_identity(whole)[0]] = whole
        return list(found.values())

    def _refuse(self, second: Any) -> None:
        """Raise for what would be wrong."""
        derivative, call = second.derivative, self.call
        before = [
            n for n in derivative.residuals if isinstance(n.ref, ArrayRef) and n.ref.name in call.outputs and n.ref.name not in call.zeros
        ]
        if before or derivative.saving is not None:
            name = before[0].ref.name if before else derivative.saving.loads[0].ref.name
            problem = f"second derivatives of {second.label} need `{name}` as it was before the kernel, which torch does not keep"
            raise SpirogradRuntimeError(render(problem, before[0].loc if before else None, "let `torch_function` allocate what it writes"))


def _as_ndarray(tensor: Any, decl: Any) -> Ndarray:
    shape = tuple(tensor.shape)[: tensor.ndim - len(decl.element_shape)]
    array = Ndarray(decl.dtype, shape, decl.element_shape, tensor.requires_grad)
    array.from_torch(tensor)
    if tensor.requires_grad:
        array.make_duals()
    return array


def contiguous(tensor: Any) -> Any:
    """A row-major copy."""
    import torch

    return tensor.detach().clone(memory_format=torch.contiguous_format)


@functools.cache
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
