"""A kernel and its gradient in forward mode, on copies of a framework's arrays in ndarrays: Jacobian- and Hessian-vector products.

For a kernel y = f(x), an adjoint u of y and a direction v of x: `tangent` computes J(x) v, in the ``dual`` of the copies of y. `second`
also computes J(x)^T u, in the ``grad`` of the copies of x, and its tangent, the Hessian of <u, f> times v, in ``grad.dual``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from spirograd.ad.entries import footprint_of
from spirograd.ad.memory_keys import FieldOrArray, Key
from spirograd.ad.second_order import second_of, tangents_of
from spirograd.ad.versions import Saved, Stored, memory_identity
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.interop.kernel_function import Arguments, KernelFunction
from spirograd.ir.nodes import ArrayRef
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.parameters import ArrayParameter
from spirograd.lang.frontend.steps import objects_of


class Linearization:
    """A launch along one direction. ``values``: the arguments by name; ``active``: the arrays with gradients; ``directions``: of inputs.

    ``zeros``: the outputs that are zero before the launch. ``number``: the number of the first launch; ``saved``: other memory as that
    launch read it. ``copies``: the ndarrays by name.
    """

    def __init__(
        self, function: KernelFunction, values: Arguments, active: Collection[str], directions: Arguments,
        zeros: Collection[str], number: int | None = None, saved: Sequence[Saved] = (),
    ) -> None:  # fmt: skip
        self.function, self.number, self.saved, self.zeros = function, number, saved, zeros
        self.copies = dict(self._copied(values, active))
        for name, direction in directions.items():
            function.framework.load(self.copies[name].dual, direction)
        self.session, self.specialization, self.args = function.specialized({**values, **self.copies})

    def _copied(self, values: Arguments, active: Collection[str]) -> Iterator[tuple[str, Ndarray]]:
        """Yield a copy of each array of the framework, with gradients and tangents of zero if it is active."""
        framework = self.function.framework
        for parameter in self.function.kernel.parameters():
            name = parameter.name
            value = values.get(name)
            if value is None or not isinstance(parameter, ArrayParameter) or not framework.is_array(value):
                continue
            dtype, ndim, element, _, _ = parameter.external(value)
            copy = Ndarray(dtype, tuple(value.shape)[:ndim], element, name in active)
            if name in active:
                copy.make_duals()
            if name not in self.zeros:
                framework.load(copy, value)
            yield name, copy

    def tangent(self) -> None:
        """Run the kernel with the tangents of the copies."""
        with self._other_memory():
            self._forward()

    def second(self, adjoints: Mapping[str, object]) -> None:
        """Run the kernel and its gradient with tangents, from the ``adjoints`` of outputs, or from 1 for a returned number."""
        with self._other_memory():
            self._forward()
            for name, adjoint in adjoints.items():
                self.function.framework.load(self.copies[name].grad, adjoint)
            derivative = second_of(self.session, self.function.kernel, self.specialization)
            packer = self.function.kernel.pack(self.session, self.specialization, self.args, gradients=True)
            derivative.launch(packer, 1.0 if derivative.returned else None, self.number)

    def _forward(self) -> None:
        derivative = tangents_of(self.session, self.function.kernel, self.specialization)
        packer = self.function.kernel.pack(self.session, self.specialization, self.args)
        derivative.plan.main.launch(packer.on(derivative.trees), drawn=self.number)

    @contextlib.contextmanager
    def _other_memory(self) -> Iterator[None]:
        """Set memory that is no copy to what it held before the first launch, and its gradients to zero; restore it afterwards.

        Raises SpirogradRuntimeError for what would be wrong.
        """
        others = self._used_memory()
        gradients = [storage for storage in others if storage.has_grad()]
        for storage in gradients:
            storage.make_duals()
        self._check()
        for memory in self.saved:
            memory.swap()
        used = [memory for storage in others for memory in (storage, *([storage.grad] if storage.has_grad() else ()))]
        current = [Saved(Stored("", memory), None) for memory in used]
        try:
            for storage in gradients:
                for shadow in (storage.grad, storage.dual, storage.grad.dual):
                    shadow.fill(0.0)
            yield
        finally:
            for memory in (*current, *self.saved):
                memory.swap()

    def _check(self) -> None:
        """Raise if the gradient reads what the framework does not keep."""
        tangents_of(self.session, self.function.kernel, self.specialization)
        second = second_of(self.session, self.function.kernel, self.specialization)
        residuals = [r for r in second.derivative.residuals if isinstance(r.ref, ArrayRef) and r.ref.name in self.function.outputs]
        before = [r for r in residuals if r.ref.name not in self.zeros]
        saving = second.derivative.saving
        if before or saving is not None:
            name = before[0].ref.name if before or saving is None else saving.loads[0].ref.name
            lost = f"`{name}` as it was before the kernel, which {self.function.framework.name} does not keep"
            problem = f"second derivatives of {second.label} need {lost}"
            raise SpirogradRuntimeError(render(problem, before[0].loc if before else None, "let the function allocate what it writes"))

    def _used_memory(self) -> list[FieldOrArray]:
        """Return the fields and ndarrays that the kernel uses beside the copies: those that it writes, or that have gradients."""
        own = {id(copy) for copy in self.copies.values()}
        arrays = objects_of(self.specialization.steps, self.args)
        memories: dict[Key, FieldOrArray] = {}
        footprint = footprint_of(self.specialization)
        written = {access.arg if access.arg is not None else access.key for access in footprint.written}
        for access in footprint.used:
            storage = access.storage if access.arg is None else arrays[access.arg]
            if id(storage) in own or (access.arg is not None and not isinstance(storage, Ndarray)):
                continue
            if (access.key if access.arg is None else access.arg) in written or storage.has_grad():
                memories[memory_identity(storage)[0]] = storage
        return list(memories.values())
