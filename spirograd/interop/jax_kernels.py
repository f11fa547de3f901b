"""Kernels as JAX traces them: calls with the types that are fixed, and what kernels must be to have derivatives."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

import numpy as np

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.records import dataclass
from spirograd.interop import jax_works
from spirograd.interop.kernel_function import Arguments, Framework, Outputs, PureFunction
from spirograd.interop.xla_frames import Buffer
from spirograd.lang.data.foreign_buffers import DeviceBuffer, HostBuffer

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from spirograd.base.arrays import ElementType


T = TypeVar("T")


class Typed(Protocol):
    """What has the type of an array: an array, or its abstract value."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> ElementType: ...


class JaxDifferentiable:
    """A function that XLA calls, with its derivatives. ``label``: what messages call it. ``outputs``: by name; ``results``: their names, or
    one name for the number that it returns."""

    label: str
    outputs: Outputs
    results: tuple[str, ...]

    def digest(self, call: JaxCall) -> str:
        """Return a hash of what a call computes; empty if that is not known."""
        raise NotImplementedError

    def replaces(self, other: JaxDifferentiable) -> bool:
        """Return whether this is the same function as ``other``, now and later."""
        raise NotImplementedError

    def work(
        self, kind: str, call: JaxCall, wanted: Sequence[str], along: Sequence[str], given: list[Buffer], results: list[Buffer]
    ) -> None:
        """Run one of the four maps; see `jax_primitives` for ``kind``, and `jax_works` for the arguments of each."""
        raise NotImplementedError

    def check_gradient(self, call: JaxCall, types: Mapping[str, Typed], wanted: Collection[str]) -> None:
        """Raise if there is no gradient with respect to the arguments ``wanted``. ``types``: of the arguments by name."""

    def check_differentiable(self, names: Collection[str]) -> None:
        """Raise if one of the arguments cannot have a derivative."""

    def refuse_third(self) -> NoReturn:
        """Raise for derivatives that there are not."""
        hint = "differentiate at most twice, and not with respect to a direction"
        raise SpirogradUnsupportedError(f"{self.label} has first and second derivatives, no third ones", None, hint)


class JaxKernel(PureFunction, JaxDifferentiable):
    """A kernel that XLA calls."""

    framework = Framework(
        "JAX", lambda v: isinstance(v, (HostBuffer, DeviceBuffer)), lambda copy, v: v.copy_to(copy), "jax_function", "a function of JAX"
    )

    def __init__(self, kernel: object, outputs: Mapping[str, object], constants: Arguments | None = None) -> None:
        super().__init__(kernel, outputs, constants)
        self.results = tuple(self.outputs) or ("the result",)
        self._numbers: dict[str, object] = {}  # by their texts
        self._digests: dict[JaxCall, str] = {}

    def digest(self, call: JaxCall) -> str:
        """Return a hash of the IR of the kernel in a call; empty before the call."""
        return self._digests.get(call, "")

    def replaces(self, other: JaxDifferentiable) -> bool:
        """Return whether this is the same function as ``other``, now and later: objects that a kernel belongs to, or gets, may change."""
        if not isinstance(other, JaxKernel):
            return False
        return self.kernel is other.kernel and [*self.outputs] == [*other.outputs] and not (self.bound or self.constants or other.constants)

    def number(self, text: str) -> object:
        """Return the number that a text of `JaxCall.fixed` stands for."""
        return self._numbers[text]

    def _stand_ins(self, call: JaxCall, types: Mapping[str, Typed], wanted: Collection[str] = ()) -> Arguments:
        """Return arguments of the kernel with the types of a call, which take no memory. ``wanted``: the arrays with gradients."""

        def like(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> HostBuffer:
            buffer = np.broadcast_to(np.zeros((), dtype), shape).view(HostBuffer)
            buffer.requires_grad = name in wanted
            return buffer

        passed = [like(name, types[name].shape, types[name].dtype) for name in call.names]
        return self.values(call, passed, [like(name, shape, t) for name, shape, t in zip(self.outputs, call.shapes, call.dtypes)])

    def check_gradient(self, call: JaxCall, types: Mapping[str, Typed], wanted: Collection[str]) -> None:
        """Raise if the kernel has no gradient with respect to the arguments ``wanted``. ``types``: of its arguments by name."""
        self.differentiable(self._stand_ins(call, types, {*wanted, *call.active_outputs}))

    def check_differentiable(self, names: Collection[str]) -> None:
        """Raise if there is a number among the arguments that a derivative is taken with respect to."""
        for name in names:
            if name not in self.arrays:
                problem = f"{self.label}: argument `{name}` is a number, with respect to which kernels have no derivative"
                hint = f"declare `{name}: sg.types.ndarray()`, and pass an array of one element; or `jax.lax.stop_gradient({name})`"
                raise SpirogradUnsupportedError(problem, None, hint)

    def values(self, call: JaxCall, given: Sequence[Buffer], outputs: Sequence[Buffer]) -> Arguments:
        """Return the arguments of the kernel by name: those ``given`` for `JaxCall.names`, ``outputs``, and what is fixed."""
        numbers = {name: self.number(text) for name, text in call.fixed}
        passed = {name: value if name in self.arrays else value.number() for name, value in zip(call.names, given)}
        return {**self.constants, **numbers, **passed, **dict(zip(self.outputs, outputs))}

    def work(
        self, kind: str, call: JaxCall, wanted: Sequence[str], along: Sequence[str], given: list[Buffer], results: list[Buffer]
    ) -> None:
        jax_works.WORKS[kind](self, call, wanted, along, given, results)


@dataclass(frozen=True, slots=True)
class JaxCall:
    """A function with all that is fixed when JAX traces a call of it.

    ``function``: with its outputs. ``fixed``: names and texts of numbers that are not arrays; ``names``: the other arguments, in
    the order in which they are passed. ``shapes``, ``dtypes``: of the outputs, or of the number that the kernel returns.
    """

    function: JaxDifferentiable
    fixed: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def active_outputs(self) -> tuple[str, ...]:
        """The outputs that have gradients."""
        return tuple(name for name, dtype in zip(self.function.outputs, self.dtypes) if np.dtype(dtype).kind == "f")

    def split(self, given: Sequence[T], *counts: int) -> list[list[T]]:
        """Split ``given`` into parts: one value for each of `names`, one for each output, then ``counts`` values for each part."""
        remaining = iter(given)
        return [list(itertools.islice(remaining, count)) for count in (len(self.names), len(self.function.outputs), *counts)]
