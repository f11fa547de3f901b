"""The kernels that a case runs, gathered in a session of the CPU, to be compiled for any device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import spirograd as sg
from spirograd import session
from spirograd.autodiff.derivative import Derivative
from spirograd.autodiff.differentiate import differentiate
from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.derivatives import specialized
from spirograd.ir.nodes import Kernel
from validation.case import Case


@dataclass(frozen=True, slots=True)
class Source:
    """What is compiled together: ``kernels(caps)`` are a kernel as the front end made it, which is the same for all devices, or a
    derivative with the kernels that size its tapes, which are not. They raise what differentiating does."""

    kernels: Callable[[Capabilities], list[Kernel]]
    options: CompileOptions


@dataclass(frozen=True, slots=True)
class _Compilation:
    """A kernel that the session compiled. A listener (`spirograd.dumps`) would get its stages as well, which take time to print."""

    kernel: Kernel
    options: CompileOptions


@dataclass(frozen=True, slots=True, eq=False)
class _Derived:
    """A call of `differentiate`. ``first``: the one that made the kernel, if it is itself a derivative."""

    kernel: Kernel
    mode: str
    shadow: Callable[[Any], Any]
    derivative: Derivative
    first: _Derived | None

    def again(self, caps: Capabilities, options: CompileOptions) -> Derivative:
        """The same for another device. A derivative of a gradient kernel uses the tapes of that."""
        if self.first is None:
            return differentiate(self.kernel, self.mode, self.shadow, caps, options)
        first = self.first.again(caps, options)
        return replace(first, kernel=differentiate(first.kernel, self.mode, self.shadow, caps, options).kernel)


def kernels_of(case: Case) -> list[Source]:
    """What a case compiles, in that order."""
    compilations: list[_Compilation] = []
    derived: list[_Derived] = []

    def compiling(kernel: Kernel, caps: Capabilities, options: CompileOptions, *rest: Any) -> CompiledKernel:
        compilations.append(_Compilation(kernel, options))
        return compile_kernel(kernel, caps, options, *rest)

    try:
        # How well LLVM optimises is nothing to the kernels, and takes half of the time.
        sg.init(arch="cpu", **{"offline_cache": False, "opt_level": 0, **dict(case.options)})

        def noting(
            kernel: Kernel, mode: str, shadow: Callable[[Any], Any], caps: Capabilities, options: CompileOptions, nesting: Any = None
        ) -> Derivative:
            derivative = differentiate(kernel, mode, shadow, caps, options, nesting)
            first = next((d for d in derived if d.derivative.kernel is kernel), None)
            derived.append(_Derived(kernel, mode, shadow, derivative, first))
            return derivative

        with mock.patch.object(specialized, "differentiate", noting), mock.patch.object(session, "_compile_kernel", compiling):
            case.run(*case.args)
    finally:
        sg.reset()
    return _sources(compilations, derived)


def _sources(compilations: list[_Compilation], derived: list[_Derived]) -> list[Source]:
    """Each kernel, and each derivative where one of its kernels was compiled."""
    owners: dict[Kernel, _Derived] = {}
    for one in derived:
        owners.update(dict.fromkeys(_kernels(one.derivative), one))
        if one.first is not None:
            owners.update(dict.fromkeys(_kernels(one.first.derivative), one))
    sources: list[Source] = []
    told: list[_Derived] = []
    for compilation in compilations:
        owner = owners.get(compilation.kernel)
        if owner is None:
            sources.append(_plain(compilation))
        elif owner not in told:
            told.append(owner)
            sources.append(_derivative(owner, compilation.options))
    return sources


def _plain(compilation: _Compilation) -> Source:
    return Source(lambda caps: [compilation.kernel], compilation.options)


def _derivative(derived: _Derived, options: CompileOptions) -> Source:
    return Source(lambda caps: _kernels(derived.again(caps, options)), options)


def _kernels(derivative: Derivative) -> list[Kernel]:
    """What has to be compiled for a derivative, in the order in which it runs."""
    saving = derivative.saving
    logs = [] if saving is None else [kernel for kernel in (saving.counting, saving.kernel) if kernel is not None]
    return [*logs, *[counting.kernel for counting in derivative.sizing], derivative.kernel]
