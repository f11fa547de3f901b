"""Checks of relations between the fields of a manifest that was read from a file. They raise Damage.

`runtime.artifact_checks` checks each kernel by itself. The checks here relate kernels to their arguments, and to fields and memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar, Union

from spirograd.aot.manifest import Derivative, FieldRecord, KernelRecord, Manifest, NodeRecord, Parameter, PlaceRecord, TreeRecord
from spirograd.base.artifact import AdstackSizing, CompiledKernel, part_name
from spirograd.base.loc import Loc
from spirograd.base.sizes.size_nodes import Arg, Element, Extent, Size, leaves
from spirograd.ir.nodes import ArrayArg, ScalarArg
from spirograd.runtime.artifact_checks import CHECKS as OF_ARTIFACTS
from spirograd.runtime.artifact_checks import check_size
from spirograd.runtime.typed_decoding import Checks, Damage

Path = tuple[Union[str, int], ...]  # the fields that lead to a part of the manifest
A = TypeVar("A", ScalarArg, ArrayArg)
_ROLES = ("primal", "grad", "dual", "grad_dual")
_MOST_ENTRIES = 1 << 16  # of a vector or matrix
_MOST_CELLS = 1 << 62


def check_loc(loc: Loc) -> None:
    """Check that file names have no folder: messages show a line of the file, which must not be an arbitrary file of the machine."""
    if not loc.file.isprintable() or any(mark in loc.file for mark in "/\\:"):
        raise Damage(f"is {loc.file[:80]!r}, expected a name without a folder", "file")


def check_record(record: KernelRecord) -> None:
    """Check that parameters, results and gradients agree with the flat arguments and the code."""
    names = [p.name for p in record.parameters]
    if len(set(names)) < len(names):
        raise Damage("has a name twice", "parameters")
    first = 0
    for k, p in enumerate(record.parameters):
        with _inside("parameters", k):
            first = _check_parameter(p, record.arguments, first)
    if record.result is not None and record.gradient is None:
        returned = [dtype for dtype, _ in record.compiled.returns]
        if returned != [record.result.dtype] * math.prod(record.result.element_shape):
            raise Damage("is not what the kernel returns", "result")
    if record.result is not None and len(record.result.element_shape) > 2:
        raise Damage("has more than two axes", "element_shape", "result")
    _check_arguments(record)


def _check_parameter(p: Parameter, arguments: Sequence[ScalarArg | ArrayArg], first: int) -> int:
    """Check a parameter, and return the number of the next flat argument."""
    if not p.name.isidentifier():
        raise Damage(f"is {p.name[:40]!r}, expected a name of Python", "name")
    if p.first != first:
        raise Damage(f"is {p.first}, expected {first}", "first")
    entries = math.prod(p.element_shape)
    if len(p.element_shape) > 2 or entries > _MOST_ENTRIES or (p.kind == "vector") < (p.kind == "scalar" and bool(p.element_shape)):
        raise Damage(f"does not fit a parameter of kind {p.kind!r}", "element_shape")
    if p.kind == "vector" and not p.element_shape:
        raise Damage("is empty", "element_shape")
    width = entries if p.kind == "vector" else 1
    taken = arguments[first : first + width]
    if len(taken) < width:
        raise Damage(f"is {p.first}, and there are {len(arguments)} arguments", "first")
    for argument in taken:
        if argument.dtype is not p.dtype:
            raise Damage(f"is {p.dtype}, and that of the argument {argument.dtype}", "dtype")
        shape = (argument.ndim, argument.element_shape) if isinstance(argument, ArrayArg) else None
        if shape != ((p.ndim, p.element_shape) if p.kind == "array" else None):
            raise Damage(f"is {p.kind!r}, and the argument is another one", "kind")
    return first + width


def _check_arguments(record: KernelRecord) -> None:
    """Check that compiled kernels refer to arguments of the right kind. Gradients have more: adjoints of results, and the sizes of
    adstacks."""
    derivative = record.gradient
    more = 0 if derivative is None else len(derivative.returned) + 1
    for field, compiled in _compiled(record):
        with _inside(*field):
            _Arguments(record.arguments, more).check_kernel(compiled)
    if derivative is not None:
        with _inside("gradient"):
            _check_derivative(record, derivative)


def _compiled(record: KernelRecord) -> Iterator[tuple[Path, CompiledKernel]]:
    """Iterate over all compiled kernels, with the fields that lead to them."""
    yield from _versions(("compiled",), record.compiled)
    if record.gradient is not None:
        for k, counting in enumerate(record.gradient.counting):
            yield ("gradient", "counting", k), counting
        for n, nested in enumerate(record.gradient.nested):
            yield from _versions(("gradient", "nested", n, "compiled"), nested.compiled)
            for k, counting in enumerate(nested.counting):
                yield ("gradient", "nested", n, "counting", k), counting


def _versions(path: Path, compiled: CompiledKernel) -> Iterator[tuple[Path, CompiledKernel]]:
    yield path, compiled
    if compiled.overlapping is not None:
        if compiled.overlapping.overlapping is not None:
            raise Damage("has code for arrays that overlap itself", *reversed(path), "overlapping")
        yield (*path, "overlapping"), compiled.overlapping


def _check_derivative(record: KernelRecord, derivative: Derivative) -> None:
    results = 0 if record.result is None else math.prod(record.result.element_shape)
    if any(k >= results for k in derivative.returned):
        raise Damage(f"names a result, and there are {results}", "returned")
    arrays = {k for k, argument in enumerate(record.arguments) if isinstance(argument, ArrayArg)}
    for field, numbers in (("written", [k for k, _ in derivative.written]), ("accessed", derivative.accessed)):
        if not arrays.issuperset(numbers):
            raise Damage("names an argument that is no array", field)
    gradients = [((), derivative.adstacks, record.compiled, derivative.counting)]
    gradients += [(("nested", k), one.adstacks, one.compiled, one.counting) for k, one in enumerate(derivative.nested)]  # type: ignore[misc]
    for path, adstacks, compiled, counting in gradients:
        with _inside(*path, "adstacks"):
            _check_sizing(adstacks, compiled, counting, _Arguments(record.arguments, len(derivative.returned) + 1))


def _check_sizing(adstacks: AdstackSizing, compiled: CompiledKernel, counting: Sequence[CompiledKernel], arguments: _Arguments) -> None:
    """Check that there is a size for each number, and that sizes that the host does not compute are counted."""
    n = len(adstacks.sizes)
    needed = max([compiled.capacities, *[adstack.slots + 1 for adstack in compiled.adstacks if adstack.slots is not None]], default=0)
    if n < needed:
        raise Damage(f"has {n} entries, and the adstacks need {needed}", "sizes")
    for k, size in enumerate(adstacks.sizes):
        with _inside("sizes", k):
            check_size(size, memory=True)
            arguments.check_leaves(size)
    if len(adstacks.counted) != len(counting):
        raise Damage(f"has {len(adstacks.counted)} entries for {len(counting)} kernels that count", "counted")
    numbers = [k for counted in adstacks.counted for k in counted]
    if any(k >= n for k in (*numbers, *adstacks.exact)):
        raise Damage(f"names a size, and there are {n}", "counted" if any(k >= n for k in numbers) else "exact")
    if {k for k, size in enumerate(adstacks.sizes) if size is None} - set(numbers):
        raise Damage("has a size that no kernel counts", "sizes")
    if any(loop.capacity >= n for loop in adstacks.loops):
        raise Damage(f"names a size, and there are {n}", "loops")


class _Arguments:
    """The flat arguments of a kernel, and ``more`` of unknown types after them."""

    def __init__(self, arguments: Sequence[ScalarArg | ArrayArg], more: int) -> None:
        self._arguments = arguments
        self._most = len(arguments) + more

    def check(self, number: int, kind: type[A], what: str) -> A | None:
        """Return the argument; None if its type is unknown."""
        if number >= self._most:
            raise Damage(f"{what} is argument {number}, and there are {self._most}")
        argument = self._arguments[number] if number < len(self._arguments) else None
        if argument is not None and not isinstance(argument, kind):
            raise Damage(f"{what} is argument {number}, which is of another kind")
        return argument

    def check_kernel(self, compiled: CompiledKernel) -> None:
        """Check all arguments that the code uses."""
        for k, slot in enumerate(compiled.args.slots):
            with _inside("args", "slots", k):
                if slot.kind == "scalar":
                    self.check(slot.index, ScalarArg, "a scalar")
                elif slot.kind in ("array", "shape"):
                    array = self.check(slot.index, ArrayArg, "an array")
                    if slot.kind == "shape" and array is not None and slot.axis >= max(array.ndim, 1):
                        raise Damage(f"is {slot.axis}, and the array has {array.ndim} axes", "axis")
        for k, task in enumerate(compiled.tasks):
            with _inside("tasks", k):
                self.check_leaves(task.begin)
                self.check_leaves(task.end)
        for k, limit in enumerate(compiled.space_limits):
            with _inside("space_limits", k):
                for size in limit.sizes:
                    self.check_leaves(size)
        for k, compared in enumerate(compiled.disjoint):
            with _inside("disjoint", k):
                array = self.check(compared.index, ArrayArg, "an array")
                if array is not None and compared.ndim > array.ndim:
                    raise Damage(f"is {compared.ndim}, and the array has {array.ndim} axes", "ndim")
        effects = compiled.effects
        for field in ("reads", "writes", "parts_read", "parts_written"):
            with _inside("effects", field):
                for kind, number, *_ in getattr(effects, field):
                    if kind == "array":
                        self.check(number, ArrayArg, "an array")

    def check_leaves(self, size: Size | None) -> None:
        """Check the arguments that an expression refers to."""
        for leaf in () if size is None else leaves(size):
            if isinstance(leaf, Arg):
                argument = self.check(leaf.number, ScalarArg, "an operand")
                if argument is not None and argument.dtype.is_float:
                    raise Damage(f"an operand is argument {leaf.number}, which is a float")
            elif isinstance(leaf, Extent):
                array = self.check(leaf.array, ArrayArg, "an operand")
                if array is not None and leaf.axis >= array.ndim:
                    raise Damage(f"an operand is axis {leaf.axis} of an array of {array.ndim}")
            elif not leaf.dtype.is_int:
                raise Damage(f"an operand is an element of type {leaf.dtype}, expected an integer")
            elif leaf.kind == "array":
                array = self.check(leaf.number, ArrayArg, "an operand")
                if array is None or array.dtype is not leaf.dtype:
                    raise Damage(f"an operand is an element of type {leaf.dtype}, and the array has others")


# --- fields and memory ---------------------------------------------------------------------------------------------------


def check_manifest(manifest: Manifest) -> None:
    """Check that kernels have distinct names, and that the fields and memory to which they refer exist."""
    if manifest.capabilities.target_name != _TARGETS.get(manifest.arch, manifest.arch):
        raise Damage(f"is {manifest.arch[:40]!r}, and the code is for {manifest.capabilities.target_name}", "arch")
    _check_fields(manifest)
    for k, tree in enumerate(manifest.trees):
        with _inside("trees", k):
            _check_tree(tree, manifest)
    seen: dict[str, KernelRecord] = {}
    parts = {part_name(record.key, role) for record in manifest.fields for role in _ROLES}
    for k, record in enumerate(manifest.kernels):
        with _inside("kernels", k):
            if record.name in seen:
                raise Damage(f"is {record.name[:40]!r}, which another kernel has", "name")
            if record.gradient is not None and seen.get(record.name.removesuffix(".grad"), record).gradient is not None:
                raise Damage(f"is {record.name[:40]!r}, and there is no kernel of this gradient", "name")
            seen[record.name] = record
            for field, compiled in _compiled(record):
                with _inside(*field):
                    if compiled.target_name != manifest.capabilities.target_name:
                        raise Damage(f"is {compiled.target_name}, and the module is for another target", "target_name")
                    _check_trees_of(compiled, len(manifest.memory), parts)
            _check_elements(record, len(manifest.memory), {f.key for f in manifest.fields})


_TARGETS = {"metal": "wgpu"}


def _check_fields(manifest: Manifest) -> None:
    names = [name for record in manifest.fields for name in record.names]
    if len(set(names)) < len(names):
        raise Damage("have a name twice", "fields")
    for k, record in enumerate(manifest.fields):
        with _inside("fields", k):
            if record.memory >= len(manifest.memory):
                raise Damage(f"is {record.memory}, and there are {len(manifest.memory)} allocations", "memory")
            if len(record.element_shape) > 2 or math.prod(record.element_shape) > _MOST_ENTRIES:
                raise Damage("is not the shape of a vector or matrix", "element_shape")


def _check_tree(tree: TreeRecord, manifest: Manifest) -> None:
    if tree.memory >= len(manifest.memory):
        raise Damage(f"is {tree.memory}, and there are {len(manifest.memory)} allocations", "memory")
    for k, node in enumerate(tree.nodes):
        with _inside("nodes", k):
            _check_node(node, manifest.fields, 1)


def _check_node(node: NodeRecord | PlaceRecord, records: Sequence[FieldRecord], cells: int) -> None:
    if isinstance(node, PlaceRecord):
        if node.field >= len(records):
            raise Damage(f"is {node.field}, and there are {len(records)} fields", "field")
        if node.component >= math.prod(records[node.field].element_shape):
            raise Damage(f"is {node.component}, which the field does not have", "component")
        return
    if len(node.axes) != len(node.extents) or len(set(node.axes)) < len(node.axes) or not node.axes:
        raise Damage("does not fit `extents`", "axes")
    if 0 in node.extents or (node.kind == "dynamic" and len(node.axes) != 1):
        raise Damage(f"does not fit a node of kind {node.kind!r}", "extents")
    cells *= math.prod(node.extents)
    if cells > _MOST_CELLS:
        raise Damage("makes more cells than there can be", "extents")
    for k, child in enumerate(node.nodes):
        with _inside("nodes", k):
            _check_node(child, records, cells)


def _check_trees_of(compiled: CompiledKernel, count: int, parts: Collection[str]) -> None:
    for k, slot in enumerate(compiled.args.slots):
        if slot.kind == "tree" and slot.index >= count:
            raise Damage(f"is {slot.index}, and there are {count} allocations", "index", k, "slots", "args")
    effects = compiled.effects
    for field in ("reads", "writes"):
        if any(kind == "tree" and number >= count for kind, number in getattr(effects, field)):
            raise Damage(f"names an allocation, and there are {count}", field, "effects")
    for field in ("parts_read", "parts_written"):
        if any(kind == "tree" and (number >= count or part not in parts) for kind, number, part in getattr(effects, field)):
            raise Damage("names a field that is not in the module", field, "effects")


def _check_elements(record: KernelRecord, count: int, keys: Collection[int]) -> None:
    """Check that sizes of adstacks read fields of the module."""
    if record.gradient is None:
        return
    for adstacks in (record.gradient.adstacks, *[nested.adstacks for nested in record.gradient.nested]):
        for leaf in [leaf for size in adstacks.sizes if size is not None for leaf in leaves(size)]:
            if isinstance(leaf, Element) and leaf.kind == "tree" and (leaf.number >= count or leaf.key not in keys):
                raise Damage("names a field that is not in the module", "adstacks", "gradient")


class _inside:
    """Add the fields that lead to it, outermost first, to the path of damage found in the block."""

    def __init__(self, *path: str | int) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Damage):
            error.path += reversed(self._path)


CHECKS: Checks = {**OF_ARTIFACTS, Loc: check_loc, KernelRecord: check_record, Manifest: check_manifest}
