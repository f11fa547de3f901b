"""What a program compiles, gathered while it runs, to be compiled for any device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spirograd import dumps
from spirograd.autodiff.derivative import Derivative
from spirograd.autodiff.differentiate import differentiate
from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass, replace
from spirograd.derivatives import specialized
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Ref


@dataclass(frozen=True, slots=True)
class Source:
    """What is compiled together. ``kernels(caps)`` returns a kernel as the front end made it, which is the same for all devices, or a
    derivative with the kernels that size its tapes, which are not. It raises what differentiating does. ``kernel``: the kernel as the
    program compiled it."""

    kernel: Kernel
    kernels: Callable[[Capabilities], list[Kernel]]
    options: CompileOptions


@dataclass(frozen=True, slots=True, eq=False)
class _Derived:
    """A derivative. ``shadows``: the memory of gradients by primal memory. ``first``: the derivative that made its kernel, if it is of
    second order."""

    kernel: Kernel
    mode: str
    shadows: dict[Ref, Ref | None]
    derivative: Derivative
    first: _Derived | None

    def again(self, caps: Capabilities, options: CompileOptions) -> Derivative:
        """Return the same for another device. A derivative of a gradient kernel uses the tapes of that."""
        if self.first is None:
            return differentiate(self.kernel, self.mode, self.shadows.get, caps, options)
        first = self.first.again(caps, options)
        return replace(first, kernel=differentiate(first.kernel, self.mode, self.shadows.get, caps, options).kernel)


class Collector:
    """The kernels and derivatives of a program, in the order in which it compiled them."""

    def __init__(self) -> None:
        self._compilations: list[tuple[Kernel, CompileOptions]] = []
        self._derived: list[_Derived] = []

    def compiling(self, kernel: Kernel, options: CompileOptions) -> None:
        """Note a kernel that a session compiles."""
        self._compilations.append((kernel, options))

    def deriving(self, kernel: Kernel, mode: str, shadow: Callable[[Ref], Ref | None], derivative: Derivative) -> None:
        """Note a derivative. ``shadow`` answers only as long as the program's fields exist, so it is asked now."""
        shadows: dict[Ref, Ref | None] = {ref: shadow(ref) for _, ref in kernel.accesses if isinstance(ref, (FieldRef, ArrayRef))}
        first = next((d for d in self._derived if d.derivative.kernel is kernel), None)
        self._derived.append(_Derived(kernel, mode, shadows, derivative, first))

    def sources(self) -> list[Source]:
        """Return each kernel, and each derivative where one of its kernels was compiled."""
        owners: dict[Kernel, _Derived] = {}
        for one in self._derived:
            owners.update(dict.fromkeys(_kernels(one.derivative), one))
            if one.first is not None:
                owners.update(dict.fromkeys(_kernels(one.first.derivative), one))
        sources: list[Source] = []
        seen: list[_Derived] = []
        for kernel, options in self._compilations:
            owner = owners.get(kernel)
            if owner is None:
                sources.append(_plain(kernel, options))
            elif owner not in seen:
                seen.append(owner)
                sources.append(_derivative(owner, options))
        return sources


@contextmanager
def collecting() -> Iterator[Collector]:
    """Collect what sessions compile meanwhile. Nothing is taken from the offline cache."""
    collector = Collector()
    dumps.observers.append(collector.compiling)
    specialized.observers.append(collector.deriving)
    try:
        yield collector
    finally:
        dumps.observers.remove(collector.compiling)
        specialized.observers.remove(collector.deriving)


def _plain(kernel: Kernel, options: CompileOptions) -> Source:
    return Source(kernel, lambda caps: [kernel], options)


def _derivative(derived: _Derived, options: CompileOptions) -> Source:
    return Source(derived.derivative.kernel, lambda caps: _kernels(derived.again(caps, options)), options)


def _kernels(derivative: Derivative) -> list[Kernel]:
    """Return what has to be compiled for a derivative, in the order in which it runs."""
    saving = derivative.saving
    logs = [] if saving is None else [kernel for kernel in (saving.counting, saving.kernel) if kernel is not None]
    return [*logs, *[counting.kernel for counting in derivative.sizing], derivative.kernel]
