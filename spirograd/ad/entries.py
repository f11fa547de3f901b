"""What a tape replays: launches of kernels, writes of the host, functions with gradients of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, TypeVar, cast
from weakref import ref as weakly

from spirograd.ad import external_arrays
from spirograd.ad.memory_keys import FieldOrArray, Key, MemoryRef, Part, Returned
from spirograd.ad.saving_rule import version_of
from spirograd.ad.versions import Saved, field_memory
from spirograd.autodiff.derivative import Slice
from spirograd.base.arguments import ArrayBinding
from spirograd.base.loc import Loc
from spirograd.base.protocols import Allocation, Place
from spirograd.base.records import dataclass
from spirograd.base.sizes.evaluate import evaluate
from spirograd.derivatives.slices_of_accesses import accesses_by_slice
from spirograd.derivatives.specialized import SpecializedDerivative
from spirograd.ir.nodes import ArrayArg, ArrayRef, FieldRef, ref_of
from spirograd.ir.nodes import Kernel as KernelIR
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import Packer, objects_of

if TYPE_CHECKING:
    from spirograd.ad.external_arrays import ExternalArray
    from spirograd.lang.session_protocol import Session
T = TypeVar("T")
_WRITES = ("write", "atomic")
_ALL = ("read", "write", "atomic")


@dataclass
class TapeEvent:
    """An event while a tape was open. ``saved``: copies of what it overwrote; ``before``: the keys of those that its own reverse reads.

    ``reverse``: its reverse, None if it has none. ``copies``: memory that it keeps besides, by name, in bytes. ``used``: the launches whose
    memory the reverse is about. ``launches``: how many of them are recorded. ``is_read``: whether it is a read of numbers. ``step``: the
    launch and its derivative, in recordings that keep everything.
    """

    saved: Sequence[tuple[Key, Saved]] = ()
    before: Set[Key] = frozenset()
    reverse: Callable[[], None] | None = None
    copies: Sequence[tuple[str, int]] = ()
    used: Sequence[Launch] = ()
    launches: int = 0
    is_read: bool = False
    step: tuple[Launch, SpecializedDerivative] | None = None

    def save(self, saved: Iterable[tuple[Key, Saved]]) -> None:
        """Add copies of what the event overwrites."""
        self.saved = _extended(self.saved, saved)

    def keep(self, copies: Iterable[tuple[str, int]]) -> None:
        """Add memory that the event keeps besides."""
        self.copies = _extended(self.copies, copies)


def _extended(items: Sequence[T], more: Iterable[T]) -> Sequence[T]:
    """Return ``items`` and then ``more``: most events have none, and no list for them."""
    added = [*more]
    if not added or not isinstance(items, list):
        return added or items
    items += added
    return items


class LaunchAccess:
    """Memory that a kernel uses: a field, with its ``key`` and ``storage``, or the array argument number ``arg`` of each launch.

    ``at``: the slice that is accessed, where the host can know it. The field is not kept alive.
    """

    __slots__ = ("_storage", "arg", "at", "key", "loc", "name")

    def __init__(self, ref: MemoryRef, fields: Mapping[FieldRef, ScalarField], loc: Loc | None = None, at: Slice | None = None) -> None:
        self.name = ref.name
        self.loc = loc
        self.at = at
        self.arg: int | None = ref.arg if isinstance(ref, ArrayRef) else None
        self.key: Key = None
        self._storage: Callable[[], ScalarField | None] = _nothing
        if not isinstance(ref, ArrayRef):
            self.key, storage = field_memory(fields[ref])
            self._storage = weakly(storage)

    @property
    def storage(self) -> ScalarField:
        """The field, which launches keep alive."""
        return cast(ScalarField, self._storage())


def _nothing() -> None:
    return None


class Footprint:
    """The memory that a compiled kernel uses. ``arrays``: whether it takes any. ``fields``: weak references to those that it uses.
    ``used``, ``written``: one access for each memory that it uses, or writes; ``accesses``, ``writes``: the same for each memory and
    slice. ``shadows``: the gradients and tangents that it writes."""

    def __init__(self, specialization: Specialization) -> None:
        kernel = specialization.kernel
        self.arrays = any(isinstance(arg, ArrayArg) for arg in kernel.args)
        self.fields = [weakly(field) for field in specialization.fields.values()]
        self.used = [LaunchAccess(ref, specialization.fields) for ref in memory_of(kernel, _ALL)]
        self.written = [LaunchAccess(ref, specialization.fields) for ref in memory_of(kernel, _WRITES)]
        self.accesses, self.writes = (
            [LaunchAccess(ref, specialization.fields, None, at) for ref, at in accesses_by_slice(kernel, effects)]
            for effects in (_ALL, _WRITES)
        )
        self.shadows = [ref.name for ref in memory_of(kernel, _WRITES, primal=False)]


class DerivativeFootprint:
    """The memory of a kernel that its derivative is about. ``residuals``: with the version of each that it reads, see
    `saving_rule`. ``constant_writes``: writes of values that depend on no memory with a gradient. ``relays``: see `Derivative`."""

    def __init__(self, gradient: SpecializedDerivative) -> None:
        derivative, fields = gradient.derivative, gradient.primal.fields
        residuals = gradient.residuals if gradient.acts else ()
        self.residuals = [(LaunchAccess(r.ref, fields, r.loc, r.at), version_of(r)) for r in residuals]
        self.writes = [LaunchAccess(write.ref, fields, write.loc, write.at) for write in derivative.writes]
        self.reads = [LaunchAccess(read.ref, fields, read.loc, read.at) for read in derivative.reads]
        self.accesses = self.reads + self.writes
        places_of = (derivative.active_outputs, derivative.inactive_writes, derivative.inactive_reads)
        self.active_outputs, self.inactive_writes, self.inactive_reads = (
            [LaunchAccess(place.ref, fields, place.loc) for place in places] for places in places_of
        )
        self.relays = [
            (LaunchAccess(read.ref, fields, read.loc), LaunchAccess(write.ref, fields, write.loc)) for read, write in derivative.relays
        ]
        active = {place.ref for place in derivative.active_outputs} if gradient.acts else set()
        self.constant_writes = [access for write, access in zip(derivative.writes, self.writes) if write.ref not in active]


def footprint_of(specialization: Specialization) -> Footprint:
    """Return the `Footprint` of a compiled kernel, computed once."""
    footprint: Footprint | None = specialization.footprint
    if footprint is None:
        footprint = specialization.footprint = Footprint(specialization)
    return footprint


def derivative_footprint_of(gradient: SpecializedDerivative) -> DerivativeFootprint:
    """Return the `DerivativeFootprint` of a derivative, computed once."""
    footprint = gradient.footprint
    if not isinstance(footprint, DerivativeFootprint):
        footprint = gradient.footprint = DerivativeFootprint(gradient)
    return footprint


class Launch:
    """A launch of a kernel, with the memory that it uses and keeps alive: ``fields`` and ``arrays``, as objects. ``packer``: its flat
    arguments."""

    __slots__ = ("args", "arrays", "buffers", "external", "fields", "kernel", "number", "packer", "session", "snapshots", "specialization")

    has_run = False  # whether it ran before it is recorded

    def __init__(self, session: Session, kernel: Kernel, specialization: Specialization, packer: Packer, args: Sequence[object]) -> None:
        self.session = session
        self.kernel = kernel
        self.specialization = specialization
        self.packer = packer
        self.args = args
        self.arrays: list[Ndarray | ExternalArray | None] = []
        self.external: dict[int, ExternalArray] = _NO_ARRAYS  # of NumPy and torch
        footprint = footprint_of(specialization)
        self.fields = [field() for field in footprint.fields]
        if footprint.arrays:
            self.arrays = objects_of(specialization.steps, args)
            if packer.transfers is not None:
                self.external = {k: array for k, array in enumerate(self.arrays) if array is not None and not isinstance(array, Ndarray)}
        self.snapshots: Mapping[int, Allocation] = _NO_ALLOCATIONS
        self.buffers: Sequence[Place] = ()
        self.number: int | None = None

    def run(self) -> Returned:
        """Launch the kernel; returns what it returns. Later runs draw the same random numbers as the first."""
        if self.number is None:
            self.number = self.session.launcher.next_number()
        plan = self.specialization.plan
        returned: Returned = plan.launch(self.packer, drawn=self.number)
        return returned

    def fresh(self) -> Launch:
        """Return the same launch, without what a recording keeps for its reverse."""
        copied = copy.copy(self)
        copied.snapshots, copied.buffers = _NO_ALLOCATIONS, ()
        return copied

    def key(self, access: LaunchAccess) -> Key:
        """Return the key of memory, as `memory` does."""
        return access.key if access.arg is None else self.memory(access)[0]

    def memory(self, access: LaunchAccess) -> tuple[Key, FieldOrArray | None]:
        """Return the key of memory, the same in all launches, and the field or ndarray; None for arrays of the host."""
        if access.arg is None:
            return access.key, access.storage
        array = self.arrays[access.arg]
        if isinstance(array, Ndarray):
            return ("ndarray", id(array)), array
        assert array is not None
        return ("host", external_arrays.address_of(array)), None

    def used(self) -> Iterator[FieldOrArray]:
        """Yield the fields and ndarrays that it uses."""
        storages = (self.memory(access)[1] for access in footprint_of(self.specialization).used)
        return (storage for storage in storages if storage is not None)

    def part(self, at: Slice | None) -> Part | None:
        """Return the axis and the index of a slice at this launch."""
        if at is None:
            return None
        return at.axis, evaluate(at.index, self.packer.scalars, self.packer.arrays)

    def snapshot(self, access: LaunchAccess) -> Iterator[tuple[str, int]]:
        """Keep a copy of an array of the host as it is now, unless there is one; gives its name and bytes."""
        assert access.arg is not None
        if access.arg in self.snapshots:
            return
        array = self.external[access.arg]
        copied = external_arrays.device_copy(self.session, array, self.packer.array(access.arg))
        self.snapshots = {**self.snapshots, access.arg: copied}
        yield access.name, external_arrays.nbytes_of(array)

    def contents(self, k: int) -> Array:
        """Return a copy of an array of the host as the launch left it. Waits for the launch."""
        return external_arrays.host_copy(self.external[k], self.packer.array(k))

    def again(self) -> Packer:
        """Return the arguments of its derivative."""
        packer = Packer.on_trees(self.session, self.packer.trees, gradients=True)
        if not self.external and not self.buffers:
            packer.scalars, packer.arrays = self.packer.scalars, self.packer.arrays
            return packer
        packer.scalars = [*self.packer.scalars, *(0 for _ in self.buffers)]
        places: list[Place | None] = [*self.packer.arrays, *self.buffers]
        packer.arrays = places
        externals = [external for step in self.specialization.steps for external in step.externals()] if self.external else []
        for k, array in self.external.items():
            places[k] = binding = packer.bind(array, k, externals[k])
            if k in self.snapshots:
                assert isinstance(binding, ArrayBinding)
                binding.address, binding.allocation = self.snapshots[k].address, self.snapshots[k]
        return packer


# Of launches without such arrays. Launches share them, because what a tape allocates for a launch costs time twice: Python's garbage
# collector looks at it again and again.
_NO_ARRAYS: dict[int, ExternalArray] = {}
_NO_ALLOCATIONS: Mapping[int, Allocation] = {}


def memory_of(kernel: KernelIR, effects: tuple[str, ...], primal: bool = True) -> Iterator[MemoryRef]:
    """Return the references of operations with ``effects`` in kernel IR: to primal memory, or to shadows."""
    refs: dict[MemoryRef, None] = {}
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, (FieldRef, ArrayRef)) and (ref.role == "primal") == primal and op.code.effect in effects:
            refs[ref] = None
    return iter(refs)
