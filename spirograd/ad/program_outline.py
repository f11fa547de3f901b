"""The outline of a program that a tape has recorded: its kernels, with the number of their launches, and the memory that they use."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from spirograd.ad import external_arrays
from spirograd.ad.entries import DerivativeFootprint, Launch, LaunchAccess, footprint_of
from spirograd.ad.memory_keys import FieldOrArray, Key
from spirograd.ad.versions import memory_identity
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField

if TYPE_CHECKING:
    from spirograd.ad.external_arrays import ExternalArray


@dataclass(slots=True, eq=False)
class MemoryUse:
    """A field or array: its name, its bytes, and whether it has a gradient."""

    name: str
    nbytes: int
    has_grad: bool


@dataclass(slots=True, eq=False)
class StepUse:
    """Equal launches of a kernel, or writes of Python to one memory (``kernel`` is "" then). ``acts``: whether it has a gradient."""

    kernel: str
    loc: Loc | None
    acts: bool
    reads: Sequence[Key]
    writes: Sequence[Key]
    count: int = 0


class ProgramOutline:
    """The steps of a program, equal ones together, in the order of the first of each. ``memories``: by key."""

    def __init__(self) -> None:
        self.memories: dict[Key, MemoryUse] = {}
        self._steps: dict[Hashable, StepUse] = {}
        self._unnamed: set[Key] = set()  # memory whose name in kernels is not known yet

    @property
    def steps(self) -> list[StepUse]:
        """The steps in order."""
        return list(self._steps.values())

    def launch(self, launch: Launch, memory: DerivativeFootprint, acts: bool) -> None:
        """Add a launch."""
        key = (id(memory), *[id(array) for array in launch.arrays]) if launch.arrays else id(memory)
        step = self._steps.get(key)
        if step is None:
            kernel = launch.specialization.kernel
            reads, writes = ([*self._keys(launch, accesses)] for accesses in (_reads(launch, memory), memory.writes))
            step = self._steps[key] = StepUse(launch.kernel.function.__name__, kernel.loc, acts, reads, writes)
        step.count += 1

    def host_write(self, memory: FieldOrArray) -> None:
        """Add a write of Python."""
        key, storage = memory_identity(memory)
        step = self._steps.get(("write", key))
        if step is None:
            if key not in self.memories:
                self._add(key, getattr(memory, "name", "an ndarray"), storage)
                self._unnamed.add(key)
            step = self._steps["write", key] = StepUse("", None, False, (), [key])
        step.count += 1

    def _keys(self, launch: Launch, accesses: Sequence[LaunchAccess]) -> Iterator[Key]:
        found: dict[Key, None] = {}
        for access in accesses:
            key, storage = launch.memory(access)
            if key not in found:
                found[key] = None
                if storage is not None:
                    self._add(key, access.name, storage)
                elif access.arg is not None:
                    self._add(key, access.name, launch.external[access.arg])
        return iter(found)

    def _add(self, key: Key, name: str, storage: FieldOrArray | ExternalArray) -> None:
        if key in self.memories:
            if key in self._unnamed:
                self._unnamed.remove(key)
                self.memories[key].name = name
            return
        if isinstance(storage, (ScalarField, Ndarray)):
            nbytes = math.prod((*storage.shape, *storage.element_shape)) * storage.dtype.size
            self.memories[key] = MemoryUse(name, nbytes, storage.has_grad())
        else:
            self.memories[key] = MemoryUse(name, external_arrays.nbytes_of(storage), bool(getattr(storage, "requires_grad", False)))


def _reads(launch: Launch, memory: DerivativeFootprint) -> Sequence[LaunchAccess]:
    """Return what a launch reads; of memory that it adds to, the derivative knows only the write."""
    written = {(access.key, access.arg) for access in memory.writes}
    read = {(access.key, access.arg) for access in memory.reads}
    others = [access for access in footprint_of(launch.specialization).used if (access.key, access.arg) not in written | read]
    return [*memory.reads, *others]
