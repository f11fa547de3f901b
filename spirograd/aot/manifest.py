"""`manifest.json`, the description of a module of compiled kernels. docs/aot.md describes it for readers in other languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from spirograd.base.artifact import AdstackSizing, CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.constraints import Axis, Count, Index, NBytes, Role, Within, one_of
from spirograd.base.dtypes import DType
from spirograd.base.loc import Loc
from spirograd.base.nesting import Nesting
from spirograd.base.records import dataclass
from spirograd.ir.nodes import ArrayArg, Layout, ScalarArg, Term
from spirograd.runtime.encoding import CLASSES, Classes

# Increased whenever programs that read modules must change.
FORMAT = 3
MANIFEST = "manifest.json"


ElementShape = tuple[Annotated[int, Within(1, 1 << 16)], ...]
Extents = tuple[NBytes, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel: ``kind`` "scalar", "vector" (also a matrix; by value) or "array". ``first``: the number of its first flat
    argument, as `Slot.index` counts them; an array is one flat argument, a vector one for each entry, row by row."""

    name: str
    kind: Annotated[str, one_of("scalar", "vector", "array")]
    first: Index
    dtype: DType
    ndim: Axis = 0
    element_shape: ElementShape = ()
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A value that a kernel returns: a scalar, or a vector or matrix of ``element_shape``, row by row."""

    dtype: DType
    element_shape: ElementShape = ()


@dataclass(frozen=True, slots=True)
class NestedGradient:
    """The gradient of a kernel with nested checkpoints, for launches in which the adstacks of the plain one do not fit: see
    `Derivative`."""

    nesting: Nesting
    compiled: CompiledKernel
    counting: tuple[CompiledKernel, ...] = ()
    adstacks: AdstackSizing = AdstackSizing()


@dataclass(frozen=True, slots=True)
class Derivative:
    """What the gradient of a kernel has besides. ``counting``: kernels with the same arguments that run first, in this order, and find the
    sizes of adstacks as ``adstacks`` says. ``nested``: the gradient with less and less memory for adstacks; ``refusal``: why it has no
    nested checkpoints, though they were asked for. ``returned``: which of the scalars that the kernel returns have an adjoint, each an
    argument after the others; ``seeded``: whether it is 1 if the caller gives none. ``written``: array arguments that the kernel writes,
    with a line of it that does; ``accessed``: those that it reads or writes."""

    counting: tuple[CompiledKernel, ...] = ()
    adstacks: AdstackSizing = AdstackSizing()
    nested: tuple[NestedGradient, ...] = ()
    refusal: str = ""
    returned: tuple[Index, ...] = ()
    seeded: bool = False
    written: tuple[tuple[Index, Loc | None], ...] = ()
    accessed: tuple[Index, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """A kernel, or the gradient of one (``gradient`` is not None). ``arguments``: all flat arguments."""

    name: str
    parameters: tuple[Parameter, ...]
    arguments: tuple[ScalarArg | ArrayArg, ...]
    result: Result | None
    compiled: CompiledKernel
    gradient: Derivative | None = None

    def all_compiled(self) -> Iterator[tuple[str, CompiledKernel]]:
        """Return all its compiled kernels with their names, in the order of the fields."""
        yield from _versions(self.name, self.compiled)
        if self.gradient is not None:
            yield from _counting(self.name, self.gradient.counting)
            for k, nested in enumerate(self.gradient.nested):
                name = f"{self.name}.nested{k}"
                yield from _versions(name, nested.compiled)
                yield from _counting(name, nested.counting)


def _versions(name: str, compiled: CompiledKernel) -> Iterator[tuple[str, CompiledKernel]]:
    yield name, compiled
    if compiled.overlapping is not None:
        yield f"{name}.overlapping", compiled.overlapping


def _counting(name: str, kernels: tuple[CompiledKernel, ...]) -> Iterator[tuple[str, CompiledKernel]]:
    for k, kernel in enumerate(kernels):
        yield f"{name}.count{k}", kernel


@dataclass(frozen=True, slots=True)
class FieldRecord:
    """A field, or the gradient ("grad") or tangent ("dual", of a gradient "grad_dual") of one. ``key``: shared by all of these. ``names``:
    those that `Module.add_field` gave it. ``origin``: its smallest index, () for zeros. ``layout``: where elements lie in the allocation
    number ``memory``. ``kind``: "dense"; "cells" of a field below sparse nodes, whose layout takes indices in a region of cells; "table" of
    what tells which cells of sparse nodes there are."""

    key: Index
    name: str
    names: tuple[str, ...]
    role: Role
    dtype: DType
    shape: Extents
    element_shape: ElementShape
    origin: tuple[int, ...]
    memory: Index
    layout: Layout
    kind: Annotated[str, one_of("dense", "cells", "table")] = "dense"


@dataclass(frozen=True, slots=True)
class PlaceRecord:
    """A scalar in the cells of a node: the component of a field, by the number of the field in the module."""

    field: Index
    component: Index


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node of a field tree, and what is in its cells. Of sparse nodes: ``number`` among those of the tree; ``chunk``: entries of a list
    that lie together; ``first``, ``most``: cells that there is memory for at first, and at most, two that are not used included; ``cells``:
    the user's limit."""

    axes: tuple[Axis, ...]
    extents: Extents
    nodes: tuple[NodeRecord | PlaceRecord, ...]
    kind: Annotated[str, one_of("dense", "bitmasked", "pointer", "hash", "dynamic")] = "dense"
    number: Index = 0
    chunk: Count = 0
    first: Count = 0
    most: Count = 0
    cells: Count | None = None


@dataclass(frozen=True, slots=True)
class TreeRecord:
    """A field tree. It has the allocations from number ``memory`` on: one, or, with sparse nodes, those of its regions."""

    memory: Index
    nodes: tuple[NodeRecord | PlaceRecord, ...]


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """An allocation of ``nbytes`` bytes, zeros at first but for ``words``: offset and value of each, 32 bits. More cells of sparse nodes
    lie behind it, if it is made larger."""

    nbytes: NBytes
    words: tuple[tuple[NBytes, Annotated[int, Within(0, 0xFFFFFFFF)]], ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A module. ``version``: the version of spirograd; ``capabilities``: those that its code requires of the device."""

    format: Index
    version: str
    arch: str
    capabilities: Capabilities
    kernels: tuple[KernelRecord, ...]
    memory: tuple[MemoryRecord, ...]
    trees: tuple[TreeRecord, ...]
    fields: tuple[FieldRecord, ...]


_GRADIENTS = (NestedGradient, Derivative)
_TREES = (FieldRecord, MemoryRecord, TreeRecord, NodeRecord, PlaceRecord)
_OWN = (Manifest, KernelRecord, Parameter, Result, *_GRADIENTS, *_TREES)
_OF_OTHERS = (Capabilities, Nesting, ScalarArg, ArrayArg, Layout, Term)
RECORDS: Classes = {**CLASSES, **{c.__name__: c for c in (*_OWN, *_OF_OTHERS)}}
