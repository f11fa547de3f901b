"""A kernel as a function of arrays of another framework: its arguments, the memory that it may use, its launch and its gradient.

For a kernel y = f(x), the adapters of torch and JAX differentiate with four maps. The first two run on the arrays of the framework, in
`KernelFunction`; the others run on copies of them in ndarrays, in `Linearization`.

==========  ==========  =================================================
map         arguments   results
==========  ==========  =================================================
launch      x           y
gradient    x, y, u     J(x)^T u, the vector-Jacobian product
tangent     x, y, v     J(x) v, the Jacobian-vector product
second      x, y, u, v  J(x) v, and the Hessian of <u, f> times v
==========  ==========  =================================================

y is an argument where a gradient reads what the kernel wrote. Derivatives with respect to x are total, so y has none.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, Union

from spirograd.ad.entries import memory_of
from spirograd.ad.versions import Saved
from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, render
from spirograd.base.records import dataclass
from spirograd.base.wording import with_article
from spirograd.derivatives.specialized import SpecializedDerivative
from spirograd.ir import ops as ir
from spirograd.ir.nodes import ArrayRef, FieldRef, accesses_of
from spirograd.lang import arithmetic, context
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.func import resolved_signature
from spirograd.lang.frontend.kernel import BoundKernel, Kernel
from spirograd.lang.frontend.parameters import AggregateParameter, ArrayParameter, Parameter, ScalarParameter, TemplateParameter
from spirograd.lang.frontend.scalar_cells import with_cells
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.session_protocol import Session

F = TypeVar("F", bound="KernelFunction")
Outputs = dict[str, Any]  # by name: how each is allocated
Arguments = Mapping[str, Any]  # the arguments of a kernel by name: arrays of the framework, numbers, sequences of numbers
Shape = Union[
    str, Sequence[int], Callable[..., Sequence[int]]
]  # the name of an argument with this shape, a shape, or a function of the arguments


@dataclass(frozen=True, slots=True)
class Framework:
    """How a framework holds arrays, and the words for messages.

    ``is_array``: whether a value is an array of the framework; ``load``: copies one into an ndarray. ``api``: the function of `sg.ad` that
    users call; ``function``: what it returns; ``array``: what the framework calls an array; ``alternative``: what impure kernels can use.
    """

    name: str
    is_array: Callable[[object], bool]
    load: Callable[[Ndarray, Any], None]
    api: str
    function: str = ""
    array: str = "array"
    alternative: str = ""


class KernelFunction:
    """A kernel that takes arrays of a framework.

    ``outputs``: the parameters that it writes, with the descriptions by which they are allocated; ``constants``: template arguments by
    name; ``inputs``: the names of the other parameters, in order. ``bound``: the object of a method, or nothing.
    """

    framework: ClassVar[Framework]

    def __init__(self, kernel: object, outputs: Mapping[str, Any], constants: Arguments | None = None) -> None:
        if not isinstance(kernel, (Kernel, BoundKernel)):
            raise SpirogradTypeError(f"`{self.framework.api}` takes a kernel: a function decorated with `@sg.kernel`")
        self.kernel: Kernel = kernel.kernel if isinstance(kernel, BoundKernel) else kernel
        self.bound = (kernel.instance,) if isinstance(kernel, BoundKernel) else ()
        self.name = self.kernel.function.__name__
        self.label = f"kernel `{self.name}`"
        self.outputs, self.constants = dict(outputs), dict(constants or {})
        names = list(inspect.signature(self.kernel.function).parameters)[len(self.bound) :]
        unknown = [name for name in (*self.constants, *self.outputs) if name not in names]
        if unknown:
            raise SpirogradTypeError(f"{self.label} has no parameter `{unknown[0]}`")
        self.inputs = [name for name in names if name not in self.constants and name not in self.outputs]
        self._checked: weakref.WeakSet[Specialization] = weakref.WeakSet()
        self._variants: dict[frozenset[str], KernelFunction] = {}  # by the numbers that they take from memory

    def with_cells(self: F, names: Iterable[str]) -> F:
        """Return the function of the kernel that takes the numbers ``names`` from memory: see `scalar_cells`."""
        key = frozenset(names)
        if key not in self._variants:
            which = {k: frozenset((0,)) for k, p in enumerate(self.kernel.parameters()) if p.name in key}
            kernel = with_cells(self.kernel, which)
            self._variants[key] = type(self)(BoundKernel(kernel, *self.bound) if self.bound else kernel, self.outputs, self.constants)
        variant = self._variants[key]
        assert isinstance(variant, type(self))
        return variant

    def refuse_tapes(self) -> None:
        """Raise inside of tapes and of forward mode, which do not see what the framework does with the results."""
        if context.recorder() is not None:
            source = f"a `{self.framework.api}` has its gradient from {self.framework.name}"
            raise SpirogradRuntimeError(f"{source}: call it outside of tapes and of `FwdMode`")

    def specialized(self, values: Mapping[str, object]) -> tuple[Session, Specialization, tuple[object, ...]]:
        """Return the session, the kernel compiled for the arguments ``values``, and these in order. Raise unless the kernel may be used."""
        session, specialization, args = self.kernel.specialized(self.bound, dict(values))
        if specialization not in self._checked:
            self.check_memory(specialization)
            self._checked.add(specialization)
        return session, specialization, args

    def check_memory(self, specialization: Specialization) -> None:
        """Raise SpirogradRuntimeError if the kernel writes to an array that is not among the outputs."""
        for ref in memory_of(specialization.kernel, ("write", "atomic")):
            if isinstance(ref, ArrayRef) and ref.name not in self.outputs:
                problem = f"{self.label} writes to `{ref.name}`, which is not among the outputs"
                raise SpirogradRuntimeError(render(problem, None, f"name it: `outputs=[{ref.name!r}, ...]`"))

    def launch(self, values: Arguments) -> Any:
        """Run the kernel, and return its result."""
        self.refuse_tapes()
        self.specialized(values)
        return self.kernel(*self.bound, **values)

    def gradient_of(self, specialization: Specialization) -> SpecializedDerivative:
        """Return the gradient of the kernel."""
        gradient: SpecializedDerivative = self.kernel.grad.of(context.session(), specialization)
        return gradient

    def differentiable(self, values: Mapping[str, object]) -> tuple[Session, Specialization, tuple[object, ...], SpecializedDerivative]:
        """Return `specialized`, and the gradient. Raise if that reads what the kernel overwrites: tapes save that, but the graph of the
        framework takes their place."""
        session, specialization, args = self.specialized(values)
        gradient = self.gradient_of(specialization)
        gradient.check_bare(f"have the kernel write to another array than it reads: {self.framework.name} then keeps the one that it reads")
        return session, specialization, args, gradient

    def gradient(self, values: Arguments, returned: float | None, number: int | None = None, saved: Sequence[Saved] = ()) -> None:
        """Run the gradient of a launch: from the ``grad`` of the outputs, and the adjoint ``returned`` of the result, into the ``grad`` of
        the inputs. ``number``: the number of the launch, whose random numbers it draws; ``saved``: other memory as the launch read it."""
        session, specialization, args, gradient = self.differentiable(values)
        for memory in saved:
            memory.swap()
        try:
            packer = self.kernel.pack(session, specialization, args, gradients=True)
            gradient.launch(packer, returned if gradient.returned else None, number)
        finally:
            for memory in saved:
                memory.swap()


class PureFunction(KernelFunction):
    """A kernel that depends on its arguments only, so that a framework may merge, repeat and remove its calls.

    ``parameters``: by name; ``arrays``: the inputs that are arrays; ``result``: the type of the number that it returns, if it has no
    outputs.
    """

    def __init__(self, kernel: object, outputs: Mapping[str, Any], constants: Arguments | None = None) -> None:
        super().__init__(kernel, outputs, constants)
        self.parameters: dict[str, Parameter] = {p.name: p for p in self.kernel.parameters()}
        for name in (*self.inputs, *self.outputs):
            self._check_kind(self.parameters[name], name in self.outputs)
        self.arrays = frozenset(name for name in self.inputs if isinstance(self.parameters[name], ArrayParameter))
        self.result = None if self.outputs else self._result_type()

    def _check_kind(self, p: Parameter, output: bool) -> None:
        """Raise for a parameter that no value of the framework can be passed for."""
        vector = isinstance(p, AggregateParameter) and len({t.is_float for t in p.t.leaf_dtypes()}) == 1
        if isinstance(p, ArrayParameter) or (not output and (isinstance(p, ScalarParameter) or vector)):
            return
        if output:
            raise SpirogradTypeError(f"{self.label}: output `{p.name}` is no array", None, f"declare `{p.name}: sg.types.ndarray()`")
        template = isinstance(p, TemplateParameter)
        hint = f"`{self.framework.api}(..., template_args={{{p.name!r}: ...}})`" if template else "pass its members one by one"
        what = "a template argument" if template else f"no number, {self.framework.array} or vector"
        raise SpirogradTypeError(f"{self.label}: `{p.name}` is {what}, which {self.framework.function} cannot take", None, hint)

    def _result_type(self) -> DType:
        try:
            return arithmetic.as_dtype(resolved_signature(self.kernel.function).return_annotation)
        except TypeError:
            hint = '`outputs={"y": "x"}`: `y` is written, and has the shape of `x`'
            raise SpirogradTypeError(f"{self.label} returns no number: name what it writes to", None, hint) from None

    def output_shape(self, name: str, given: Arguments) -> tuple[int, ...]:
        """Return the shape of an output, for the arguments ``given``."""
        spec = self.outputs[name]
        if isinstance(spec, str) and spec not in self.arrays:
            problem = f"output `{name}` has the shape of `{spec}`, which is no {self.framework.array} among the arguments"
            raise SpirogradTypeError(f"{self.label}: {problem}")
        return tuple(given[spec].shape if isinstance(spec, str) else spec(**given) if callable(spec) else spec)

    def output_type(self, name: str) -> DType | None:
        """Return the type of the elements of an output; None if its declaration leaves that open."""
        parameter = self.parameters[name]
        assert isinstance(parameter, ArrayParameter)
        return parameter.t.dtype

    def check_memory(self, specialization: Specialization) -> None:
        """Raise SpirogradRuntimeError also if the kernel uses other memory than its arguments, or draws random numbers."""
        super().check_memory(specialization)
        problem = f"{self.label} cannot be {self.framework.function}, which merges and repeats calls"
        array, loc = with_article(self.framework.array), specialization.kernel.loc
        hint = f"pass it as {array}{self.framework.alternative}"
        if specialization.captures:
            name = specialization.kernel.args[-1].name
            raise SpirogradRuntimeError(render(f"{problem}: it uses the ndarray `{name}`", loc, hint))
        for op in specialization.kernel.walk():
            field = next((ref for _, ref in accesses_of(op) if isinstance(ref, FieldRef)), None)
            if field is not None:
                raise SpirogradRuntimeError(render(f"{problem}: it uses the field `{field.name}`", op.loc, hint))
            if op.code is ir.seed:
                raise SpirogradRuntimeError(render(f"{problem}: it draws random numbers", loc, f"pass random numbers as {array}"))
