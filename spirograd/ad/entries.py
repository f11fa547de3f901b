"""What a tape replays: launches of kernels, writes of the host, functions with gradients of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spirograd.ad.memories import Collector
from spirograd.ad.versions import Saved, Versions, field_memory
from spirograd.base.sizes import Size, evaluate
from spirograd.ir.nodes import ArrayRef, FieldRef, ref_of
from spirograd.lang.data import transfer
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.signature import Packer


@dataclass
class Event:
    """Something that happened while a tape was open. ``saved``: what it overwrote, of that ``before`` by key the own reverse needs.

    ``reverse``: its reverse, None if it has none. ``copies``: memory that it keeps besides, by name, in bytes.
    """

    saved: list[tuple[Any, Saved]] = field(default_factory=list)
    before: set[Any] = field(default_factory=set)
    reverse: Callable[[], None] | None = None
    copies: list[tuple[str, int]] = field(default_factory=list)
    launched: bool = False


class Arguments(Collector):
    """The arguments of a launch as objects: ndarrays, and arrays of NumPy and torch with what binding them takes."""

    def __init__(self, kernel: Any, specialization: Any, args: Any) -> None:
        self.external: dict[int, tuple[Any, tuple[int, ...], str]] = {}
        super().__init__(kernel, specialization, args)

    def put_external(self, array: Any, element_shape: tuple[int, ...], label: str) -> None:
        self.external[len(self.arrays)] = (array, element_shape, label)
        self.put_array(array)


class Launch:
    """One launch of a kernel, as far as its memory goes. ``packer``: its flat arguments."""

    def __init__(self, session: Any, kernel: Any, specialization: Any, packer: Packer, args: Any) -> None:
        self.session = session
        self.specialization = specialization
        self.scalars = list(packer.scalars)
        self.bindings = list(packer.arrays)
        self.arguments = Arguments(kernel, specialization, args)
        self.snapshots: dict[int, Any] = {}
        self.logs: list[Any] = []
        self.number: int | None = None

    def key(self, ref: Any) -> Any:
        """What tells the memory of ``ref`` apart in different launches."""
        if isinstance(ref, FieldRef):
            return field_memory(self.specialization.fields[ref])[0]
        array = self.arguments.arrays[ref.arg]
        if isinstance(array, Ndarray):
            return ("ndarray", id(array))
        return ("host", array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr())

    def tracked(self, ref: Any, versions: Versions) -> Any:
        """The key of memory whose versions are tracked; None for arrays of the host."""
        key = self.key(ref)
        if key[0] == "host":
            return None
        whole = field_memory(self.specialization.fields[ref])[1] if isinstance(ref, FieldRef) else self.arguments.arrays[ref.arg]
        versions.stored(key, ref.name, whole)
        return key

    def first(self, size: Size | None) -> int | None:
        """The value of a first index at this launch."""
        if size is None:
            return None
        return evaluate(size, lambda k: int(self.scalars[k]), lambda k, axis: int(self.bindings[k].shape[axis]))

    def snapshot(self, ref: ArrayRef) -> tuple[str, int] | None:
        """Keep a copy of an array of the host as it is now; its name and bytes, None if there is one."""
        if ref.arg in self.snapshots:
            return None
        array = self.arguments.external[ref.arg][0]
        binding = self.bindings[ref.arg]
        host = np.ascontiguousarray(array if isinstance(array, np.ndarray) else array.detach().cpu().numpy())
        copy = self.session.memory.allocate(max(host.nbytes, 1))
        if host.nbytes and binding.allocation is not None:
            copy.copy_from(binding.allocation, host.nbytes)
        elif host.nbytes:
            copy.write(0, transfer.bytes_of(host.reshape(-1)))
        self.snapshots[ref.arg] = copy
        return (ref.name, host.nbytes)

    def again(self) -> Packer:
        """The arguments of its derivative."""
        packer = Packer(self.session, gradients=True)
        for k, (scalar, binding) in enumerate(zip(self.scalars, self.bindings)):
            external = self.arguments.external.get(k)
            if external is not None:
                packer.put_external(*external)
                if k in self.snapshots:
                    packer.arrays[k].address = self.snapshots[k].address
                continue
            packer.scalars.append(scalar)
            packer.arrays.append(binding)
        for log in self.logs:
            packer.scalars.append(0)
            packer.arrays.append(log)
        return packer


def memory_of(kernel: Any, effects: tuple[str, ...]) -> Iterator[Any]:
    """The references to primal memory that operations of ``effects`` of kernel IR have."""
    found: dict[Any, None] = {}
    for op in kernel.walk():
        ref = ref_of(op)
        if isinstance(ref, (FieldRef, ArrayRef)) and ref.role == "primal" and op.code.effect in effects:
            found[ref] = None
    return iter(found)
