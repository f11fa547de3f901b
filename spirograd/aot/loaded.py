"""Modules of compiled kernels in a session, which runs them without tracing, differentiation and compilation."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from spirograd.aot import archive, trees
from spirograd.aot.manifest import Derivative, KernelRecord, Manifest, NestedGradient, Parameter
from spirograd.aot.requirements import problems
from spirograd.base.artifact import NARROW, AdstackSizing, CompiledKernel, part_name
from spirograd.base.errors import (
    OutOfDeviceMemory,
    SpirogradCallError,
    SpirogradDamagedError,
    SpirogradError,
    SpirogradRuntimeError,
    SpirogradRuntimeTypeError,
    SpirogradValueError,
    render,
)
from spirograd.base.near_names import NearNames
from spirograd.base.nesting import Nesting
from spirograd.base.once import once
from spirograd.base.protocols import Allocation
from spirograd.base.records import dataclass, replace
from spirograd.base.sizes.size_nodes import Element, Node, Size
from spirograd.base.wording import did_you_mean
from spirograd.derivatives.nested_checkpoints import NestedCheckpoints
from spirograd.derivatives.nestings import fitting
from spirograd.derivatives.plan import DerivativePlan
from spirograd.derivatives.shared_arrays import refuse_shared
from spirograd.derivatives.sized_plans import derivative_plan
from spirograd.lang import context, leaves
from spirograd.lang.annotations import MatrixType, NdarrayType, element_type
from spirograd.lang.data.ndarray import BufferView, Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.data.tree import Tree
from spirograd.lang.frontend.func import bound_arguments
from spirograd.lang.frontend.guards import Path as Place
from spirograd.lang.frontend.parameters import AggregateParameter, ArrayParameter, ScalarParameter, array_signature
from spirograd.lang.frontend.steps import Pack, Packer, packing_function
from spirograd.runtime.adstack_heap import AdstacksTooLarge
from spirograd.runtime.launcher import LaunchPlan
from spirograd.session import Session, running

D = TypeVar("D", Derivative, NestedGradient)
T = TypeVar("T")


def load(path: str | os.PathLike[str]) -> LoadedModule:
    """Load the module of compiled kernels that `Module.save` wrote to ``path`` into the running session. Its fields are new, and zero.

    Only the driver compiles: SPIR-V and PTX. Raises SpirogradRuntimeError if the file is not a module, is damaged, was built for another
    back end or by another version of spirograd, or if the device lacks a feature that the code needs.
    """
    return LoadedModule(archive.read(Path(path)), Path(path), running())


class LoadedModule(NearNames):
    """A module of compiled kernels, made by `load`. ``kernels`` and ``fields``: by their names in the module; their ``grad`` is the
    gradient."""

    def __init__(self, manifest: Manifest, path: Path, session: Session) -> None:
        _check(manifest, path, session)
        self._session = session
        self._path = path
        self._memory, fields = _fields_of(manifest, path)
        self._kept = fields  # with the trees that users built
        keys = {record.key: field.key for record, field in zip(manifest.fields, fields)}
        self.fields: dict[str, ScalarField] = {name: field for record, field in zip(manifest.fields, fields) for name in record.names}
        self.kernels: dict[str, LoadedKernel] = {}
        for record in manifest.kernels:
            relocated = _relocated(record, keys)
            if record.gradient is None:
                self.kernels[record.name] = LoadedKernel(self, relocated)
            else:
                primal = self.kernels[record.name.removesuffix(".grad")]
                primal.gradient = LoadedGradient(self, relocated, primal)

    def kernel(self, name: str) -> LoadedKernel:
        """Return the kernel called ``name``. Raises SpirogradValueError if there is none."""
        return self._named(self.kernels, name, "kernel")

    def field(self, name: str) -> ScalarField:
        """Return the field called ``name``. Raises SpirogradValueError if there is none."""
        return self._named(self.fields, name, "field")

    def _named(self, objects: Mapping[str, T], name: str, what: str) -> T:
        if name not in objects:
            hint = did_you_mean(name, objects) or f"it has {', '.join(f'`{n}`' for n in objects) or 'none'}"
            raise SpirogradValueError(f"the module {self._path} has no {what} `{name}`; {hint}")
        return objects[name]

    def __repr__(self) -> str:
        return f"<module {self._path} with kernels {', '.join(self.kernels) or 'none'}>"

    def session(self) -> Session:
        """Return the session that the module was loaded in. Raises SpirogradRuntimeError if it has ended."""
        if not context.has_session() or context.session() is not self._session:
            raise SpirogradRuntimeError(f"the module {self._path} belongs to an earlier session: load it again after `init`")
        return self._session

    @once
    def allocations(self) -> dict[int, Allocation]:
        """The memory of the field trees, by number."""
        return {number: tree.allocation for number, tree in enumerate(self._memory)}


@dataclass(slots=True, eq=False)
class _Planned:
    """The launch plan of a gradient."""

    plan: DerivativePlan


class _Loaded(NearNames):
    """Base class of kernels and gradients: packs their arguments."""

    def __init__(self, module: LoadedModule, record: KernelRecord) -> None:
        self.record = record
        self._module = module
        self._parameters = [_parameter(p, record.name) for p in record.parameters]
        names = [inspect.Parameter(p.name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in record.parameters]
        self._signature = inspect.Signature(names)
        self._writes = {index for kind, index in record.compiled.effects.writes if kind == "array"}
        self._reports = bool(record.compiled.prints or record.compiled.faults)

    @property
    def name(self) -> str:
        """The name in the module."""
        return self.record.name

    def _pack(self, args: Sequence[object], kwargs: Mapping[str, object], gradients: bool) -> Packer:
        session = self._module.session()
        if context.current_trace() is not None:
            raise SpirogradRuntimeError(f"kernel `{self.name}` of a module cannot be called from a kernel: call it from Python")
        if context.recorder() is not None:
            problem = f"kernel `{self.name}` of a module is not recorded by `sg.ad.Tape`"
            raise SpirogradRuntimeError(render(problem, None, "call it outside of the tape, and its gradient as `.grad(...)`"))
        try:
            bound = bound_arguments(self._signature, args, kwargs)
        except TypeError as error:
            raise SpirogradCallError(f"kernel `{self.name}`: {error}") from None
        packer = Packer.on_trees(session, self._module.allocations, gradients)
        for parameter, record in zip(self._parameters, self.record.parameters):
            if isinstance(parameter, ArrayParameter):
                _check_array(parameter, record, bound.arguments[record.name])
        packer.scalars, packer.arrays = self._flat([bound.arguments[record.name] for record in self.record.parameters], session, packer)
        return packer

    @once
    def _flat(self) -> Pack:
        """The function that packs the arguments of a launch."""
        return packing_function([step for k, parameter in enumerate(self._parameters) for step in parameter.steps(None, Place(k))])

    def _finish(self, packer: Packer) -> None:
        if packer.transfers is not None:
            packer.transfers.finish(self._writes)
        if self._reports:
            packer.session.launched()


class LoadedKernel(_Loaded):
    """A kernel of a module, made by `load`. It is called as before, without its template arguments, which are fixed in the module.

    A call raises SpirogradRuntimeTypeError for arguments that do not fit, and what the kernel itself raises.
    """

    gradient: LoadedGradient | None = None

    def __repr__(self) -> str:
        return f"<kernel `{self.name}` of a module>"

    @once
    def plan(self) -> LaunchPlan:
        """The launch plan, loaded when it is first needed."""
        return self._module.session().launcher.prepare(self.record.compiled)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Launch it."""
        packer = self._pack(args, kwargs, gradients=False)
        values = self.plan.launch(packer)
        self._finish(packer)
        result = self.record.result
        if values is None or result is None:
            return None
        return leaves.build(_type(result.dtype, result.element_shape) if result.element_shape else result.dtype, list(values))

    @property
    def grad(self) -> LoadedGradient:
        """Return the gradient of the kernel. Raises SpirogradValueError if the module has none."""
        if self.gradient is None:
            hint = f"build the module with `add_kernel({self.name}, gradients=True)`"
            raise SpirogradValueError(render(f"the module has no gradient of kernel `{self.name}`", None, hint))
        return self.gradient


class LoadedGradient(_Loaded):
    """The gradient of a kernel of a module, made by `load`: `LoadedKernel.grad`. It takes the arguments of the kernel.

    A call adds to the gradients of the memory that the kernel reads. ``returned=`` is the adjoint of the returned value, as for
    `spirograd.derivatives.gradient.Gradient`. It raises SpirogradRuntimeError for arrays that share memory.
    """

    def __init__(self, module: LoadedModule, record: KernelRecord, primal: LoadedKernel) -> None:
        super().__init__(module, record)
        self._primal = primal
        assert record.gradient is not None
        self._derivative: Derivative = record.gradient

    def __repr__(self) -> str:
        return f"<gradient of kernel `{self._primal.name}` of a module>"

    @once
    def checkpoints(self) -> NestedCheckpoints[_Planned]:
        """The plain gradient, and those with nested checkpoints, loaded when they are needed."""
        derivative = self._derivative
        plain = self._planned(NestedGradient(Nesting((), 1), self.record.compiled, derivative.counting, derivative.adstacks))
        nested = {gradient.nesting: gradient for gradient in derivative.nested}
        make = (lambda nesting: self._planned(nested[nesting])) if nested else None
        return NestedCheckpoints(plain, make, lambda *facts: fitting(tuple(nested), *facts))

    def _planned(self, record: NestedGradient) -> _Planned:
        launcher = self._module.session().launcher
        main, counting = launcher.prepare(record.compiled), [launcher.prepare(counting) for counting in record.counting]
        return _Planned(derivative_plan(launcher, record.adstacks, main, counting))

    def __call__(self, *args: object, returned: object = None, **kwargs: object) -> None:
        """Add to the gradients of the memory that the kernel reads. ``returned``: the adjoint of the returned value; by default 1, as for
        `Gradient`."""
        packer = self._pack(args, kwargs, gradients=True)
        label = f"kernel `{self._primal.name}`"
        derivative = self._derivative
        refuse_shared(label, self.record.arguments, packer, dict(derivative.written), frozenset(derivative.accessed))
        for number in self._adjoints(returned, label):
            packer.put_scalar(number)
        try:
            self.checkpoints.launch(packer, self._primal.plan.last_number)
        except AdstacksTooLarge as error:
            if derivative.nested:
                raise
            hint = "  hint: build the module with `add_kernel(..., nested_checkpoints=True)`, which needs less memory"
            raise AdstacksTooLarge(f"{error.message}\n{derivative.refusal or hint}", error.adstack, error.share) from None
        self._finish(packer)

    def _adjoints(self, returned: object, label: str) -> list[float]:
        wanted, result = self._derivative.returned, self.record.result
        if returned is None:
            if wanted and not self._derivative.seeded:
                problem = f"{label} returns a value: its gradient starts from the adjoint of that value"
                raise SpirogradRuntimeError(render(problem, None, "`kernel.grad(..., returned=1.0)`"))
            return [1.0] * len(wanted)
        if not wanted or result is None:
            raise SpirogradRuntimeError(
                f"{label}: `returned=` is given, but nothing that the kernel returns depends on memory with gradients; omit it"
            )
        try:
            entries: list[Any] = _type(result.dtype, result.element_shape).leaves_of(returned) if result.element_shape else [returned]
            numbers = [float(entry) for entry in entries]
        except (TypeError, ValueError):
            raise SpirogradRuntimeTypeError(f"{label}: `returned=` takes what the kernel returns, got {returned!r}") from None
        return [numbers[k] for k in wanted]


def _check(manifest: Manifest, path: Path, session: Session) -> None:
    """Raise SpirogradRuntimeError unless ``session`` can run the module."""
    device = session.device.caps
    if manifest.capabilities.target_name != device.target_name:
        raise SpirogradRuntimeError(
            f"{path} is a module for `sg.{manifest.arch}`, and the session runs on `sg.{session.arch}`: `sg.init(arch=sg.{manifest.arch})`"
        )
    kernels = [compiled for record in manifest.kernels for _, compiled in record.all_compiled()]
    reasons = problems(manifest.capabilities, device, kernels)
    if reasons:
        raise SpirogradRuntimeError(f"{path} was built for a device that can do more than this one:\n  " + "\n  ".join(reasons))


def _fields_of(manifest: Manifest, path: Path) -> tuple[list[Tree], list[ScalarField]]:
    """Return the owners of the allocations, and the fields."""
    try:
        return trees.make_again(manifest.trees, manifest.memory, manifest.fields)
    except OutOfDeviceMemory:
        raise
    except SpirogradError as error:  # trees that a program cannot build
        raise SpirogradDamagedError(str(path), f"cannot be made again: {error}", "manifest.trees") from None


def _type(dtype: object, element_shape: Sequence[int]) -> MatrixType:
    return element_type(element_shape, dtype)


def _parameter(p: Parameter, kernel: str) -> ScalarParameter | AggregateParameter | ArrayParameter:
    if p.kind == "scalar":
        return ScalarParameter(p.name, kernel, p.dtype)
    if p.kind == "vector":
        return AggregateParameter(p.name, kernel, _type(p.dtype, p.element_shape))
    return ArrayParameter(p.name, kernel, NdarrayType(p.dtype, p.ndim, element_shape=p.element_shape))


def _check_array(parameter: ArrayParameter, p: Parameter, value: object) -> None:
    if isinstance(value, BufferView):
        raise parameter.error("kernels of a module take whole arrays, got a view", "copy what the view shows to an ndarray")
    if isinstance(value, Ndarray) and value.layout is not None:
        raise parameter.error(f"kernels of a module take row-major arrays, got the layout {value.layout}", "make it without `layout`")
    dtype, ndim, element_shape, _, wide, *_ = array_signature(value) if isinstance(value, Ndarray) else parameter.external(value)
    problem = parameter.t.mismatch(dtype, (0,) * ndim, element_shape)
    if problem is not None:
        raise parameter.error(problem)
    if wide and not p.wide:
        raise parameter.error(f"the array has more than {NARROW:,} numbers, and the module was built for smaller ones")


def _relocated(record: KernelRecord, keys: Mapping[int, int]) -> KernelRecord:
    """Return the record with the keys of fields in this process in place of those in the module."""
    gradient = record.gradient
    if gradient is not None:
        nested = tuple([_with_adstacks(replace(way, compiled=_compiled(way.compiled, keys)), keys) for way in gradient.nested])
        gradient = replace(_with_adstacks(gradient, keys), nested=nested)
    return replace(record, compiled=_compiled(record.compiled, keys), gradient=gradient)


def _with_adstacks(record: D, keys: Mapping[int, int]) -> D:
    sizes = tuple([None if size is None else _size(size, keys) for size in record.adstacks.sizes])
    adstacks: AdstackSizing = replace(record.adstacks, sizes=sizes)
    return replace(record, adstacks=adstacks, counting=tuple([_compiled(counting, keys) for counting in record.counting]))


def _compiled(compiled: CompiledKernel, keys: Mapping[int, int]) -> CompiledKernel:
    renamed = {part_name(old, role): part_name(new, role) for old, new in keys.items() for role in ("primal", "grad", "dual", "grad_dual")}
    effects = compiled.effects
    read, written = [
        frozenset([(kind, index, renamed[part] if kind == "tree" else part) for kind, index, part in parts])
        for parts in (effects.parts_read, effects.parts_written)
    ]
    other = None if compiled.overlapping is None else _compiled(compiled.overlapping, keys)
    return replace(compiled, effects=replace(effects, parts_read=read, parts_written=written), overlapping=other)


def _size(size: Size, keys: Mapping[int, int]) -> Size:
    if not isinstance(size, Node):
        return size
    relocated = size.rebuilt(lambda operand: _size(operand, keys))
    return replace(relocated, key=keys[relocated.key]) if isinstance(relocated, Element) and relocated.kind == "tree" else relocated
