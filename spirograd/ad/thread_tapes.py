"""Tapes of several threads: a tape records what its own thread does, and what other threads do must not change its gradients.

- Gradients: a tape that clears gradients on entry leaves those that tapes of other threads (that still run) used last, and clears one of
  these when it uses it itself. Two open tapes of which one clears must not use the same gradient, and `clear_all_gradients` must not clear
  one that an open tape of another thread uses.
- Tangents: one thread at a time uses them.
- Values: memory that a tape uses must not be written by another thread while the tape is open. Generations of memory tell: the tape knows
  those of its own thread's writes.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence

from spirograd.ad.entries import Launch
from spirograd.ad.memory_keys import FieldOrArray, Key
from spirograd.ad.versions import memory_identity
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.once import lock, one_at_a_time
from spirograd.base.protocols import OwnWrites
from spirograd.lang.data import shadows
from spirograd.lang.data.ndarray import Ndarray

_open: list[GradientUse] = []
_tangent_users: list[threading.Thread] = []
# Gradient -> the thread whose tape used it last.
_users: weakref.WeakKeyDictionary[FieldOrArray, weakref.ref[threading.Thread]] = weakref.WeakKeyDictionary()


class GradientUse:
    """The gradients that one tape uses, of the thread that makes this object. ``clears``: whether it sets gradients to zero on entry."""

    def __init__(self, clears: bool) -> None:
        self.thread = threading.current_thread()
        self.clears = clears
        self.reverses = False
        self.used: weakref.WeakSet[FieldOrArray] = weakref.WeakSet()
        self._kept: weakref.WeakSet[FieldOrArray] = weakref.WeakSet()  # gradients that were not cleared on entry
        self._seen: set[Key] = set()  # specializations whose fields are in ``used``

    @one_at_a_time
    def begin(self) -> None:
        """Note that the tape is opened. Raises SpirogradRuntimeError if it would clear what an open tape of another thread adds to."""
        if self.clears:
            for other in self._others():
                if not other.clears and not other.reverses:
                    raise SpirogradRuntimeError(
                        render(
                            f"this tape would clear gradients that a tape of thread `{other.thread.name}`, which is open, adds to",
                            None,
                            "open both with `Tape(clear_gradients=False)`, and call `sg.ad.clear_all_gradients()` before",
                        )
                    )
            self._kept = weakref.WeakSet([shadow for shadow, user in list(_users.items()) if self._is_foreign(user())])
            shadows.clear("grad", kept=self._kept)
        _open.append(self)

    def end(self) -> None:
        """Note that the tape is closed, and that its reverse pass, if any, has run."""
        if self in _open:
            _open.remove(self)
        self._seen.clear()

    @one_at_a_time
    def reverse(self) -> None:
        """Note that the reverse pass begins, now or after the tape was closed."""
        self.reverses = True
        if self not in _open:
            _open.append(self)

    def launch(self, launch: Launch) -> None:
        """Claim the gradients of a kernel that the tape is about to launch."""
        if launch.specialization not in self._seen:
            self.use(field for field in launch.fields if field is not None)
            self._seen.add(launch.specialization)
        if launch.arrays:
            self.use(storage for storage in launch.arrays if isinstance(storage, Ndarray))

    def use(self, memories: Iterable[FieldOrArray]) -> None:
        """Claim the gradients of these fields and ndarrays for the tape."""
        for memory in memories:
            storage = memory_identity(memory)[1]
            shadow = storage.grad if storage.has_grad() else None
            if shadow is not None and shadow not in self.used and not shadows.is_shadow(storage):
                self._use(storage, shadow)

    @one_at_a_time
    def _use(self, storage: FieldOrArray, shadow: FieldOrArray) -> None:
        for other in self._others():
            if shadow in other.used and (self.clears or other.clears):
                raise SpirogradRuntimeError(
                    render(
                        f"the gradient of {_name(storage)} is used by open tapes of two threads, `{other.thread.name}` and "
                        f"`{self.thread.name}`, and one would clear what the other needs",
                        None,
                        "open both with `Tape(clear_gradients=False)`, which add to it, or give each thread fields of its own",
                    )
                )
        if shadow in self._kept:
            self._kept.discard(shadow)
            if shadow.has_memory():
                shadow.fill(0.0)
        self.used.add(shadow)
        _users[shadow] = weakref.ref(self.thread)

    def _others(self) -> list[GradientUse]:
        return [other for other in list(_open) if self._is_foreign(other.thread)]

    def _is_foreign(self, thread: threading.Thread | None) -> bool:
        return thread is not None and thread is not self.thread and thread.is_alive()


def is_any_open() -> bool:
    """Return whether a tape, or what uses tangents, is open in any thread."""
    return bool(_open or _tangent_users)


@one_at_a_time
def clear_all(*roles: str) -> None:
    """Set all gradients (and what else has these ``roles``) to zero. Raises SpirogradRuntimeError if an open tape of another thread uses
    a gradient."""
    for other in _of_other_threads():
        _refuse(other, list(other.used))
    shadows.clear("grad", *roles)


@one_at_a_time
def refuse_used(shadow: FieldOrArray) -> None:
    """Raise SpirogradRuntimeError if an open tape of another thread uses a gradient, which is about to be cleared."""
    for other in _of_other_threads():
        _refuse(other, [shadow] if shadow in other.used else [])


def _of_other_threads() -> list[GradientUse]:
    here = threading.current_thread()
    return [other for other in list(_open) if other.thread is not here and other.thread.is_alive()]


def _refuse(other: GradientUse, used: Sequence[FieldOrArray]) -> None:
    if used:
        name = min(map(_name, used))
        problem = f"a tape of thread `{other.thread.name}` is open, and needs {name}, which this would clear"
        raise SpirogradRuntimeError(render(problem, None, "clear gradients before tapes are opened, or after they have run"))


@contextlib.contextmanager
def tangents(what: str) -> Iterator[None]:
    """Use the tangents of the session in the block. Raises SpirogradRuntimeError if another thread does: these are cleared together."""
    here = threading.current_thread()
    with lock:
        for user in _tangent_users:
            if user is not here and user.is_alive():
                problem = f"{what} cannot run while thread `{user.name}` uses tangents, which this would clear"
                raise SpirogradRuntimeError(render(problem, None, "use `FwdMode` and `hvp` in one thread at a time"))
        _tangent_users.append(here)
    try:
        yield
    finally:
        _tangent_users.remove(here)


class ForeignWrites:
    """Finds writes of other threads to the memory that a tape uses, while the tape is open. ``own``: see `Session.own_writes`."""

    def __init__(self, own: OwnWrites) -> None:
        self.own = own
        self._places: dict[Key, tuple[dict[str, int], str]] = {}  # of fields: the generations of their memory, and their part
        self.close, self.are_none = own.close, own.are_all

    def check(self, key: Key, storage: FieldOrArray | None) -> None:
        """Raise SpirogradRuntimeError if another thread wrote to memory that the tape reads as it left it, or as it was on entry."""
        place = self._places.get(key)
        if place is None:
            if storage is None or not storage.has_memory():  # an array of another library, or a field that has none yet
                return
            place = storage.tree.allocation.generations, storage.view.part
            if not isinstance(storage, Ndarray):  # the key of an array may come again, for another one
                self._places[key] = place
        generations, part = place
        if not self.own.include(max(generations[""], generations.get(part, 0))):
            raise SpirogradRuntimeError(
                render(
                    f"another thread wrote to {_name(storage)}, which an open tape of thread `{threading.current_thread().name}` uses",
                    None,
                    "a tape records what its own thread does: launch and write in this thread, or before the tape is opened",
                )
            )


def _name(storage: object) -> str:
    name = getattr(storage, "name", "")
    return f"`{name}`" if name else "an ndarray"
