"""Numbers that identify memory on all processes, to distinguish fields of the same type and shape.

Memory made by partitions is numbered in the order of creation. Other memory gets a number at its first use by all processes together, after
they have compared it, because processes may also make fields of their own.
"""

from __future__ import annotations

import itertools
import weakref

_texts: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
_made = itertools.count()
_used = itertools.count()


def made(memory: object) -> None:
    """Number memory that a partition has just made: a field, the members of a field of structs, or an ndarray."""
    for member in getattr(memory, "members", {"": memory}).values():
        _texts[member] = f"number {next(_made)} of those that partitions made"


def used(*memories: object) -> None:
    """Number memory without a number, which all processes have just compared."""
    for memory in memories:
        if memory not in _texts:
            _texts[memory] = f"number {next(_used)} of those in earlier calls"


def described(memory: object) -> str:
    """Return a description that identifies the memory, with the same text on all processes."""
    return _texts.get(memory, "in no earlier call")


def forget_all() -> None:
    """Delete all numbers, as all processes do together."""
    global _made, _used
    _texts.clear()
    _made, _used = itertools.count(), itertools.count()
