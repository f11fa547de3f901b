"""Detection of writes that no recorder sees: to memory that was handed out, by `to_numpy(copy=False)` or DLPack.

A recorder keeps a copy of the contents of such memory as it last knew them, and compares before each launch that uses the memory, and at
its end. A difference is a write of the host that happened in between; the copy holds what the write replaced. A write of the same bytes is
not detected, and what the host writes before the first launch that uses the memory counts as its start. Memory that was never handed out
costs nothing.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ParamSpec

import numpy as np

from spirograd.ad.entries import Launch, LaunchAccess
from spirograd.ad.external_arrays import address_of, on_host
from spirograd.ad.memory_keys import FieldOrArray, Key, Part
from spirograd.ad.versions import Saved, Stored, memory_identity
from spirograd.base.protocols import Allocation
from spirograd.lang import context
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.frontend.specialization import Specialization

if TYPE_CHECKING:
    from spirograd.lang.data.device_arrays import Tensor
P = ParamSpec("P")
# Called for each detected write: the key of the memory, the memory, its contents before, and the elements that changed.
OnWrite = Callable[[Key, FieldOrArray, Saved, Array], None]


class Exposed:
    """A watch over the memory that the launches of one recorder use.

    ``used``: a method of the recorder that gives the fields and ndarrays that launches may have used so far, for those of them that are
    handed out later; ``on_write``: one that is called for each write that is found. Both are held weakly: the recorder holds this object.
    ``active``: whether any memory was handed out: until then none of the other methods need be called.
    """

    def __init__(self, used: Callable[[], Iterable[FieldOrArray]], on_write: OnWrite) -> None:
        self._session = context.session()
        self._used = weakref.WeakMethod(used)
        self._on_write = weakref.WeakMethod(on_write)
        self.known: dict[Key, Saved] = {}
        self.active: bool = self._session.memory.watch(self)
        self._replaying = False
        self._accesses: dict[Specialization, list[LaunchAccess]] = {}  # of what was compiled: arguments, and fields that were handed out

    def handed_out(self, allocation: Allocation, part: str) -> None:
        """Copy a part of an allocation, or all of it, which is about to be handed out."""
        if not context.has_session() or context.session() is not self._session:
            return
        self.active = True
        self._accesses = {}
        if not self._replaying:
            self._take(lambda storage: storage.tree.allocation is allocation and part in ("", storage.view.part))

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """Look for no writes in a block in which memory holds what it held before."""
        self._replaying = True
        try:
            yield
        finally:
            self._replaying = False
            if self.active:
                self._take(is_exposed)

    def _take(self, chosen: Callable[[FieldOrArray], bool]) -> None:
        """Copy memory that launches used."""
        used = self._used()
        for memory in () if used is None else used():
            key, storage = memory_identity(memory)
            if key not in self.known and storage.has_memory() and chosen(storage):
                self.known[key] = Saved(Stored(_name(storage), storage), None)

    def before(self, launch: Launch, accesses: Sequence[LaunchAccess]) -> None:
        """Look for writes to what a launch is about to use. ``accesses``: all of its specialization, the same at each launch."""
        watched = self._accesses.get(launch.specialization)
        if watched is None:
            watched = self._accesses[launch.specialization] = [a for a in accesses if a.arg is not None or is_exposed(a.storage)]
        for access in watched:
            key, storage = launch.memory(access)
            if key in self.known:
                self._look(key, self.known[key].memory.copied_part(launch.part(access.at)))
            elif storage is not None and is_exposed(storage):
                self.known[key] = Saved(Stored(access.name, storage), None)

    def after(self, launch: Launch, writes: Sequence[LaunchAccess]) -> None:
        """Note what a launch wrote."""
        for access in writes if self.known else ():
            known = self.known.get(launch.memory(access)[0])
            if known is not None:
                known.update(known.memory.copied_part(launch.part(access.at)))

    def look(self, key: Key, at: Part | None) -> None:
        """Look for writes to memory, in the slice ``at``, or (None) anywhere."""
        if key in self.known:
            self._look(key, self.known[key].memory.copied_part(at))

    def look_everywhere(self) -> None:
        """Look for writes to all that is watched."""
        for key in list(self.known):
            self._look(key, None)

    def _look(self, key: Key, part: Part | None) -> None:
        known = self.known[key]
        changed = known.changed(part)
        if changed is not None:
            before = Saved(known.memory, part, known)
            known.update(part)
            _call(self._on_write, key, known.memory.storage, before, changed)


class WrittenTensors:
    """A watch over tensors of torch through which gradients flow: torch may change them unseen, too.

    ``on_write``: a method that is called with the tensor, and which elements changed; held weakly.
    """

    def __init__(self, on_write: Callable[[Tensor, Array], None]) -> None:
        self._on_write = weakref.WeakMethod(on_write)
        self._known: dict[int, tuple[Tensor, Array]] = {}

    def before(self, launch: Launch) -> None:
        """Look for changes of the tensors that a launch is about to use."""
        for tensor in launch.external.values() if self._known else ():
            key = id(tensor) if isinstance(tensor, np.ndarray) else address_of(tensor)
            if key in self._known:
                self._look(key)

    def look_everywhere(self) -> None:
        """Look for changes of all tensors."""
        for key in list(self._known):
            self._look(key)

    def after(self, launch: Launch, active_outputs: Sequence[LaunchAccess]) -> None:
        """Note what a launch wrote."""
        for access in active_outputs:
            if access.arg in launch.external:
                tensor = launch.external[access.arg]
                if not isinstance(tensor, np.ndarray) and tensor.requires_grad:
                    self._known[tensor.data_ptr()] = (tensor, launch.contents(access.arg))

    def _look(self, key: int) -> None:
        tensor, then = self._known[key]
        now = on_host(tensor)
        changed = np.asarray(_bits(now) != _bits(then)).reshape(now.shape)
        if changed.any():
            self._known[key] = (tensor, now.copy())
            _call(self._on_write, tensor, changed)


def _call(method: weakref.WeakMethod[Callable[P, None]], *args: P.args, **kwargs: P.kwargs) -> None:
    call = method()
    if call is not None:
        call(*args, **kwargs)


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def _name(storage: FieldOrArray) -> str:
    return getattr(storage, "name", "an ndarray")


def is_exposed(storage: FieldOrArray) -> bool:
    """Return whether a field or ndarray may be written without a call of spirograd."""
    shared = storage.tree.allocation.shared
    return bool(shared) and ("" in shared or storage.view.part in shared)


def clear_elements(shadow: FieldOrArray, changed: Array) -> None:
    """Set the gradients or tangents of some elements to zero."""
    if changed.all():
        shadow.fill(0.0)
    else:
        shadow.from_numpy(np.where(changed, 0, shadow.to_numpy()))


def wait_for_exposed(changed: Iterable[FieldOrArray]) -> None:
    """Wait for the device if memory was ``changed`` that was handed out: the host may write to it next."""
    if any(is_exposed(storage) for storage in changed):
        context.session().sync()
