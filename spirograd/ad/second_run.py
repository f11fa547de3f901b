"""A kernel and its gradient in forward mode, on copies of arrays of another framework in ndarrays: Jacobian- and Hessian-vector products.

For a kernel y = f(x), an adjoint u of y and a direction v of x: `SecondRun.forward` gives the tangent J(x) v of y, and `SecondRun.reverse`
the gradient J(x)^T u with its tangent, the Hessian of <u, f> times v, as in `hvp`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from spirograd.ad.entries import footprint_of
from spirograd.ad.second_order import second_of, tangents_of
from spirograd.ad.versions import Saved, Stored, memory_identity
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.ir.nodes import ArrayRef
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.parameters import ArrayParameter
from spirograd.lang.frontend.steps import objects_of


def copies_of(kernel: Any, values: dict[str, Any], wanted: Collection[str]) -> dict[str, Ndarray]:
    """An ndarray of zeros like each array of another library among the arguments, with gradients and tangents for those ``wanted``."""
    made: dict[str, Ndarray] = {}
    for parameter in kernel.parameters():
        value = values.get(parameter.name)
        if not isinstance(parameter, ArrayParameter) or isinstance(value, Ndarray) or value is None:
            continue
        dtype, ndim, element, _, _ = parameter.external(value)
        made[parameter.name] = Ndarray(dtype, tuple(value.shape)[:ndim], element, parameter.name in wanted)
        if parameter.name in wanted:
            made[parameter.name].make_duals()
    return made


class SecondRun:
    """One run. ``values``: the arguments by name, with ``arrays``, copies by name, in place of other libraries'.

    ``saved``: other memory as the first launch found it, whose number was ``number``. ``framework``: the name of the other one.
    """

    def __init__(
        self, kernel: Any, bound: tuple[Any, ...], values: dict[str, Any], arrays: dict[str, Ndarray], framework: str,
        number: int | None = None, saved: Sequence[Saved] = (),
    ) -> None:  # fmt: skip
        self.kernel, self.arrays, self.number, self.saved = kernel, arrays, number, saved
        self.framework = framework
        self.session, self.specialization, self.args = kernel.specialized(bound, {**values, **arrays})
        self._others: list[Any] = []

    @contextlib.contextmanager
    def block(self, outputs: Collection[str], zeros: Collection[str]) -> Iterator[None]:
        """Memory that is no copy is as it was before the first launch, with gradients of zero, and afterwards as it is now.

        ``zeros``: the ``outputs`` that are zero before the launch. Raises for what would be wrong.
        """
        self._others = self._other_memory()
        gradients = [whole for whole in self._others if whole.has_grad()]
        for whole in gradients:
            whole.make_duals()
        self._refuse(outputs, zeros)
        for memory in self.saved:
            memory.swap()
        used = [memory for whole in self._others for memory in (whole, *([whole.grad] if whole.has_grad() else ()))]
        kept = [Saved(Stored("", memory), None) for memory in used]
        try:
            for whole in gradients:
                for shadow in (whole.grad, whole.dual, whole.grad.dual):
                    shadow.fill(0.0)
            yield
        finally:
            for memory in (*kept, *self.saved):
                memory.swap()

    def forward(self) -> None:
        """Run the kernel with the tangents that the ``dual`` of the copies hold."""
        first = tangents_of(self.session, self.kernel, self.specialization)
        packer = self.kernel.pack(self.session, self.specialization, self.args)
        first.plan.main.launch(packer.on(first.trees), drawn=self.number)

    def reverse(self) -> None:
        """After `forward`: run the gradient from what the ``grad`` of the copies of outputs hold, or from 1 for a returned number."""
        second = second_of(self.session, self.kernel, self.specialization)
        packer = self.kernel.pack(self.session, self.specialization, self.args, gradients=True)
        second.launch(packer, 1.0 if second.returned else None, self.number)

    def _refuse(self, outputs: Collection[str], zeros: Collection[str]) -> None:
        tangents_of(self.session, self.kernel, self.specialization)
        second = second_of(self.session, self.kernel, self.specialization)
        derivative: Any = second.derivative
        before = [n for n in derivative.residuals if isinstance(n.ref, ArrayRef) and n.ref.name in outputs and n.ref.name not in zeros]
        if before or derivative.saving is not None:
            name = (before or derivative.saving.loads)[0].ref.name
            lost = f"`{name}` as it was before the kernel, which {self.framework} does not keep"
            problem = f"second derivatives of {second.label} need {lost}"
            raise SpirogradRuntimeError(render(problem, before[0].loc if before else None, "let the function allocate what it writes"))

    def _other_memory(self) -> list[Any]:
        """The fields and ndarrays that the kernel uses beside the copies: those that it writes, or that have gradients."""
        own = {id(array) for array in self.arrays.values()}
        arrays = objects_of(self.specialization.steps, self.args)
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
