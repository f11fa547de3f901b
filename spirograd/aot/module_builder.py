"""The builder of a module of compiled kernels: traces and differentiates them as a session does, and compiles them for the module's
device."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from spirograd.aot import archive
from spirograd.aot.examples import example_arguments
from spirograd.aot.manifest import FORMAT, Derivative, KernelRecord, Manifest, NestedGradient, Parameter, Result
from spirograd.aot.relocation import ShortLocations, relocated
from spirograd.aot.target import ModuleTarget, capabilities_of, target_of
from spirograd.aot.trees import Trees
from spirograd.autodiff.derivative import Derivative as AutodiffDerivative
from spirograd.base.artifact import AdstackSizing, CompiledKernel
from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradCompilationError, SpirogradTypeError, SpirogradUnsupportedError, SpirogradValueError, render
from spirograd.base.near_names import NearNames
from spirograd.base.nesting import Nesting
from spirograd.base.options import CompileOptions
from spirograd.base.records import replace
from spirograd.base.version import __version__
from spirograd.compiler import compile_kernel
from spirograd.derivatives.specialized import SpecializedDerivative
from spirograd.ir import nodes
from spirograd.lang.annotations import MatrixType
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.kernel import BoundKernel, Kernel
from spirograd.lang.frontend.kernel_tracing import TracedKernel
from spirograd.lang.frontend.parameters import AggregateParameter
from spirograd.lang.frontend.parameters import Parameter as Declared
from spirograd.lang.frontend.specialization import Specialization
from spirograd.session import Session, running

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
# Separates the name of a kernel from the arguments of a version.
_NAMED_BY = (bool, int, float, str, DType)
# Back ends whose SPIR-V refers to buffers by bindings, as Metal does.
_WITH_MSL = ("metal", "wgpu")
# Levels of loops with nested checkpoints, and iterations of each but the outermost. A million iterations take 15,689 entries by the first,
# and 318 by the second one.
_LEVELS = ((2, 64), (3, 128))
_SHORT = 256  # loops with at most this many iterations keep their adstacks
# What kernels of a module are kept by: their place in it.
_NO_KEY = "module"


class Module(NearNames):
    """Compiles kernels ahead of time for the back end ``arch``, by default that of the session: `add_kernel`, then `save`.

    For the back end of the session, code is generated for its device. For other back ends it is generated for the least capable device, so
    that no device is needed: on `sg.vulkan` Vulkan 1.2 with buffer addresses, on `sg.cuda` compute capability 7.0, on `sg.metal` what wgpu
    asks of each, on `sg.cpu` this machine. ``caps``: what the device has beyond that, by fields of `Capabilities`, such as ``{"int64":
    True}`` or ``{"cpu_name": "sm_90"}``.

    Raises SpirogradUnsupportedError for back ends that no code can be stored for, SpirogradValueError for unknown capabilities.
    """

    def __init__(self, arch: str | None = None, caps: Mapping[str, Any] | None = None) -> None:
        session = self._session = running()
        if session.cfg.deterministic:
            problem = "kernels of modules have no memory for the exact sums of `init(deterministic=True)`"
            raise SpirogradUnsupportedError(problem, None, "build the module in a session without it")
        self.arch = arch or session.arch
        self._target = target_of(session, self.arch, capabilities_of(self.arch, session, caps or {}))
        self._trees = Trees()
        self._kernels: dict[str, KernelRecord] = {}

    def __repr__(self) -> str:
        return f"<module for `sg.{self.arch}` with kernels {', '.join(self._kernels) or 'none'}>"

    def add_field(self, name: str, field: object) -> None:
        """Make ``field`` available as ``name`` to programs that load the module. Fields that kernels use are always in the module.

        The module contains its memory, initially zeros, and its gradient. Sparse fields have no active cells at first. Raises
        SpirogradValueError for other objects, and for a name that another field has.
        """
        _check_name(name)
        self._trees.add_field(name, field)

    def add_kernel(
        self,
        kernel: object,
        template_args: Mapping[str, object] | None = None,
        name: str | None = None,
        gradients: bool = False,
        nested_checkpoints: bool | None = None,
    ) -> None:
        """Compile ``kernel`` and add it as ``name``, by default its own.

        ``template_args``: the values of template arguments, by the name of the parameter, which are fixed in the module; also examples of
        arrays whose annotation leaves the type or number of axes open, and of huge arrays. ``gradients``: add ``kernel.grad``, too.
        ``nested_checkpoints``: also compile the gradient with nested checkpoints of its loops, for launches whose adstacks do not fit into
        memory; by default if the session limits them, `init(ad_memory_GB=)`.

        Raises SpirogradValueError if a template argument is missing, SpirogradTypeError for objects that are not kernels,
        SpirogradUnsupportedError for kernels that modules do not support, and the errors of the first call of the kernel or its gradient.
        """
        inner, first = _kernel_of(kernel)
        name = name or inner.function.__name__
        _check_name(name)
        if nested_checkpoints is None:
            nested_checkpoints = self._session.launcher.adstacks.budget is not None
        if name in self._kernels:
            raise SpirogradValueError(f"the module has a kernel `{name}` already: give this one another name, `add_kernel(..., name=...)`")
        declared, args = example_arguments(inner, first, template_args or {}, gradients)
        traced = inner.trace(self._target, args)
        if traced.captures.arrays:
            array = traced.kernel.args[-1].name
            hint = "pass it as an argument, or use a field"
            raise SpirogradUnsupportedError(f"kernel `{name}` of a module names the ndarray `{array}`", traced.kernel.loc, hint)
        placed = {self._placed(ref, field): field for ref, field in traced.fields.items()}
        kernel_ir = relocated(traced.kernel, lambda ref: self._placed(ref, traced.fields[ref]))
        specialization = Specialization(traced._replace(kernel=kernel_ir, fields=placed), _no_plan)
        result, parameters = _result(name, traced), _parameters(declared, kernel_ir.args)
        records = [KernelRecord(name, parameters, kernel_ir.args, result, self._compile(kernel_ir))]
        if gradients:
            records.append(self._gradient(records[0], inner, specialization, nested_checkpoints))
        self._kernels.update({record.name: record for record in records})

    @contextmanager
    def add_kernel_template(self, kernel: object) -> Iterator[Template]:
        """Return a builder for several versions of ``kernel``: ``with module.add_kernel_template(k) as t: t.instantiate(n=3)``. Each
        version is named after the values of its template arguments: ``k.n-3``."""
        yield Template(self, kernel)

    def save(self, path: str | os.PathLike[str], msl: bool = False) -> None:
        """Write the module: a zip archive if ``path`` ends with ``.zip`` or ``.tcm``, else a folder, which is created. The same program
        writes the same bytes. ``msl``: also write source text for Metal, by the command `spirv-cross`.

        Raises SpirogradUnsupportedError for ``msl`` of a module that is not for `sg.metal` or `sg.wgpu`, SpirogradRuntimeError if the
        command is missing or fails.
        """
        file = Path(path)
        self._write(file, file.suffix in (".zip", ".tcm"), msl)

    def archive(self, path: str | os.PathLike[str], msl: bool = False) -> None:
        """Write the module as a zip archive, regardless of the suffix of ``path``; otherwise as `save`."""
        self._write(Path(path), True, msl)

    def _write(self, path: Path, packed: bool, msl: bool) -> None:
        if msl and self.arch not in _WITH_MSL:
            hint = "build the module for `sg.metal`: `sg.aot.Module(sg.metal)`"
            raise SpirogradUnsupportedError(f"a module for `sg.{self.arch}` has no code for Metal", None, hint)
        archive.write(self.manifest(), path, packed, msl)

    def manifest(self) -> Manifest:
        """Return the manifest of the module so far."""
        kernels = tuple(self._kernels.values())
        caps = self._target.caps
        return Manifest(FORMAT, __version__, self.arch, caps, kernels, self._trees.memory(), self._trees.trees(), self._trees.fields())

    # --- compiling -------------------------------------------------------------------------------------------------------

    def _placed(self, ref: nodes.FieldRef, field: ScalarField) -> nodes.FieldRef:
        """Add the tree of a field to the module, and return the reference to the field by its numbers in the module."""
        number = self._trees.number_of_memory(field.tree)
        return replace(ref, tree=number, key=self._trees.key_of(field), name=self._trees.name_of(field))

    def _gradient(self, primal: KernelRecord, kernel: Kernel, specialization: Specialization, nested_checkpoints: bool) -> KernelRecord:
        gradient = _Gradient(self._session, self._target, kernel, specialization, self._placed)
        gradient.check_bare("have the kernel write to other memory than it reads: a module holds no tape of launches")
        derivative, short = gradient.derivative, ShortLocations()
        refusal, nested = "", []
        try:
            nested = [self._nested(gradient, nesting) for nesting in (_nestings(derivative) if nested_checkpoints else ())]
        except SpirogradUnsupportedError as refused:  # its loops keep their adstacks, as in a session
            loc = None if refused.loc is None else short(refused.loc)
            refusal = render(refused.message, loc, refused.hint)
        record = Derivative(
            *self._adstacks(derivative),
            tuple(nested),
            refusal,
            tuple([number for number in gradient.returned if number is not None]),
            len(gradient.returned) == 1 and primal.result is not None and not primal.result.element_shape and not derivative.active_outputs,
            tuple([(number, short(loc)) for number, loc in sorted(gradient.written.items())]),
            tuple(sorted(gradient.accessed)),
        )
        compiled = self._compile(derivative.kernel)
        return KernelRecord(f"{primal.name}.grad", primal.parameters, primal.arguments, primal.result, compiled, record)

    def _nested(self, gradient: _Gradient, nesting: Nesting) -> NestedGradient:
        derivative = gradient.derived(nesting)
        return NestedGradient(nesting, self._compile(derivative.kernel), *self._adstacks(derivative))

    def _adstacks(self, derivative: AutodiffDerivative) -> tuple[tuple[CompiledKernel, ...], AdstackSizing]:
        """Compile the kernels that count iterations, and return them with the record of how they give the sizes of adstacks."""
        adstacks, short = derivative.adstack_sizing, ShortLocations()
        options = replace(self._target.compile_options, opt_level=1, overlapping=True)
        counting = tuple([self._compile_version(counting.kernel, options) for counting in derivative.sizing])
        return counting, replace(adstacks, loops=tuple([replace(loop, loc=short(loop.loc)) for loop in adstacks.loops]))

    def _compile(self, kernel: nodes.Kernel) -> CompiledKernel:
        """Compile ``kernel``; for the CPU in two versions, if one assumes arrays to be disjoint. Other modules are for programs that do not
        compare arrays, too."""
        options = self._target.compile_options
        overlapping = replace(options, overlapping=True)
        if self._target.caps.target.invocations:
            return self._compile_version(kernel, overlapping)
        compiled = self._compile_version(kernel, options)
        return replace(compiled, overlapping=self._compile_version(kernel, overlapping)) if compiled.disjoint else compiled

    def _compile_version(self, kernel: nodes.Kernel, options: CompileOptions) -> CompiledKernel:
        short = ShortLocations()
        kernel = relocated(kernel, locate=short)
        try:
            return compile_kernel(kernel, self._target.caps, options, key=_NO_KEY)
        except SpirogradCompilationError as error:
            loc = None if error.loc is None else short.original.get(error.loc, error.loc)
            raise type(error)(error.message, loc, error.hint) from None


def _nestings(derivative: AutodiffDerivative) -> list[Nesting]:
    """Return the nests of all its loops with adstacks but the short ones. Their trip counts are unknown before a launch."""
    sizes = derivative.capacities
    long = {loop.number for loop in derivative.adstack_sizing.loops if not (isinstance(n := sizes[loop.capacity], int) and n <= _SHORT)}
    return [Nesting(tuple([(number, level) for number in sorted(long)]), length) for level, length in _LEVELS] if long else []


class _Gradient(SpecializedDerivative):
    """The derivative of a kernel whose fields have the numbers of a module."""

    def __init__(
        self,
        session: Session,
        target: ModuleTarget,
        kernel: Kernel,
        specialization: Specialization,
        place: Callable[[nodes.FieldRef, ScalarField], nodes.FieldRef],
    ) -> None:
        self._place = place
        super().__init__(session, kernel, specialization, "reverse", target)

    def shadow(self, ref: nodes.Ref) -> nodes.FieldRef | nodes.ArrayRef | None:
        shadow = super().shadow(ref)
        if not isinstance(shadow, nodes.FieldRef):
            return shadow
        field = self.fields.pop(shadow)
        placed = self._place(shadow, field)
        self.fields[placed] = field
        return placed


class Template:
    """A builder of versions of a kernel: see `Module.add_kernel_template`."""

    def __init__(self, module: Module, kernel: object) -> None:
        self._module, self._kernel = module, kernel
        self._name = _kernel_of(kernel)[0].function.__name__

    def instantiate(self, gradients: bool = False, **template_args: object) -> str:
        """Add the kernel for these template arguments, and return its name in the module. ``gradients``: as for `Module.add_kernel`.

        Raises SpirogradValueError for values that a name cannot contain; use `Module.add_kernel` with a name for these.
        """
        parts = [self._name]
        for key, value in template_args.items():
            if not isinstance(value, _NAMED_BY) or not _NAME.fullmatch(f"_{value}"):
                hint = "`add_kernel(kernel, template_args, name=...)`"
                raise SpirogradValueError(render(f"`{key}` is {value!r}, after which no kernel can be named", None, hint))
            parts.append(f"{key}-{value}")
        name = ".".join(parts)
        self._module.add_kernel(self._kernel, template_args, name, gradients)
        return name


def _kernel_of(kernel: object) -> tuple[Kernel, tuple[object, ...]]:
    """Return a kernel, and its object if it is a method. Raises SpirogradTypeError for objects that are not kernels."""
    inner, first = (kernel.kernel, (kernel.instance,)) if isinstance(kernel, BoundKernel) else (kernel, ())
    if not isinstance(inner, Kernel):
        raise SpirogradTypeError("`add_kernel` takes a kernel: a function decorated with `@sg.kernel`")
    return inner, first


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(".grad"):
        hint = "letters, digits, `_`, `.` and `-`, beginning with a letter or `_`; what ends with `.grad` is a gradient"
        raise SpirogradValueError(render(f"{name!r} cannot be a name in a module", None, hint))


def _parameters(declared: Sequence[Declared], args: Sequence[nodes.ScalarArg | nodes.ArrayArg]) -> tuple[Parameter, ...]:
    """Return the parameters that callers provide, in order, with their flat arguments."""
    parameters, first = [], 0
    for p in declared:
        arg = args[first]
        if isinstance(p, AggregateParameter):
            assert isinstance(p.t, MatrixType)
            parameters.append(Parameter(p.name, "vector", first, arg.dtype, 0, p.t.shape))
            first += p.t.size
            continue
        if isinstance(arg, nodes.ArrayArg):
            if arg.layout:
                problem = f"kernels of a module take row-major arrays, and argument `{p.name}` has the layout {arg.layout}"
                raise SpirogradUnsupportedError(render(problem, None, "make it without `layout`"))
            parameters.append(Parameter(p.name, "array", first, arg.dtype, arg.ndim, arg.element_shape, arg.wide))
        else:
            parameters.append(Parameter(p.name, "scalar", first, arg.dtype))
        first += 1
    return tuple(parameters)


def _result(name: str, traced: TracedKernel) -> Result | None:
    t = traced.returns
    if t is None:
        return None
    if isinstance(t, MatrixType):
        return Result(t.dtype, t.shape)
    if not isinstance(t, DType):
        hint = "return a number, a vector or a matrix, or write to a field"
        raise SpirogradUnsupportedError(f"kernel `{name}` of a module returns {t!r}", traced.kernel.loc, hint)
    return Result(t)


def _no_plan(kernel: nodes.Kernel) -> NoReturn:
    raise AssertionError(f"kernel {kernel.name} of a module is not launched where the module is built")
