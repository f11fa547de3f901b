"""Detects writes that no recorder sees: to memory that was handed out, by `to_numpy(copy=False)` or DLPack.

A recorder keeps a copy of the contents of such memory as it last knew them, and compares before each launch that uses the memory, and at
its end. A difference is a write of the host that happened in between; the copy holds what the write replaced. A write of the same bytes is
not detected, and what the host writes before the first launch that uses the memory counts as its start. Memory that was never handed out
costs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from spirograd.ad.entries import Access, Launch, footprint_of
from spirograd.ad.versions import Saved, Stored, memory_identity
from spirograd.lang import context
from spirograd.lang.data.transfer import Array

# Called for a write that was found: what tells the memory apart, the memory, its contents before, and which elements changed.
Found = Callable[[Any, Any, Saved, Array], None]


class Exposed:
    """Watches the memory that the launches of one recorder use.

    ``used``: fields and ndarrays that launches may have used so far, for those of them that are handed out later. ``active``: whether any
    memory was handed out: until then none of the other methods need be called.
    """

    def __init__(self, used: Callable[[], Iterable[Any]], found: Found) -> None:
        self._session = context.session()
        self._used = used
        self._found = found
        self.known: dict[Any, Saved] = {}
        self.active: bool = self._session.memory.watch(self)
        self._replaying = False
        self._accesses: dict[Any, list[Access]] = {}  # of what was compiled: arguments, and fields that were handed out

    def handed_out(self, allocation: Any, part: str) -> None:
        """A part of an allocation, or all of it, is about to be handed out."""
        if not context.has_session() or context.session() is not self._session:
            return
        self.active = True
        self._accesses = {}
        if not self._replaying:
            self._take(lambda whole: whole.tree.allocation is allocation and part in ("", whole.view.part))

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """While memory holds what it held before."""
        self._replaying = True
        try:
            yield
        finally:
            self._replaying = False
            if self.active:
                self._take(is_exposed)

    def _take(self, chosen: Callable[[Any], bool]) -> None:
        """Copy memory that launches used."""
        for memory in self._used():
            key, whole = memory_identity(memory)
            if key not in self.known and whole.has_memory() and chosen(whole):
                self.known[key] = Saved(Stored(_name(whole), whole), None)

    def before(self, launch: Launch) -> None:
        """Look for writes to what a launch is about to use."""
        specialization = launch.specialization
        found = self._accesses.get(specialization)
        if found is None:
            used = footprint_of(specialization).used
            found = self._accesses[specialization] = [a for a in used if a.arg is not None or is_exposed(a.whole)]
        for access in found:
            key, whole = launch.memory(access)
            if whole is not None and is_exposed(whole):
                self._look(key, access.name, whole)

    def after(self, launch: Launch) -> None:
        """Note what a launch wrote."""
        for access in footprint_of(launch.specialization).written if self.known else ():
            key, whole = launch.memory(access)
            if key in self.known:
                self.known[key] = Saved(Stored(access.name, whole), None)

    def look(self, key: Any = None) -> None:
        """Look for writes to the memory that goes by ``key``, or to all that is watched."""
        for one in list(self.known) if key is None else [key] if key in self.known else ():
            memory = self.known[one].memory
            self._look(one, memory.name, memory.whole)

    def _look(self, key: Any, name: str, whole: Any) -> None:
        known = self.known.get(key)
        changed = None if known is None else known.changed()
        if known is None or changed is not None:
            self.known[key] = Saved(Stored(name, whole), None)
        if known is not None and changed is not None:
            self._found(key, whole, known, changed)


def _name(whole: Any) -> str:
    return getattr(whole, "name", "an ndarray")


def is_exposed(whole: Any) -> bool:
    """Whether somebody may write to a field or ndarray unseen."""
    shared = whole.tree.allocation.shared
    return bool(shared) and ("" in shared or whole.view.part in shared)


def clear_elements(partner: Any, changed: Array) -> None:
    """Set the gradients or tangents of some elements to zero."""
    if changed.all():
        partner.fill(0.0)
    else:
        partner.from_numpy(np.where(changed, 0, partner.to_numpy()))
