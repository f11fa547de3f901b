"""Which memory is which on all processes: without that, two fields of the same type and shape could not be told apart.

Memory that partitions make has the number in which it was made. Other memory gets one at its first use by all processes together, after
they have compared it: processes may make fields of their own, so that how many there are says nothing.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

_texts: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
_made = itertools.count()
_used = itertools.count()


def made(memory: Any) -> None:
    """Number what a partition has just made: a field, its members if it is one of structs, or an ndarray."""
    for member in getattr(memory, "members", {"": memory}).values():
        _texts[member] = f"number {next(_made)} of those that partitions made"


def used(*memories: object) -> None:
    """Number those that have no number. All processes have just compared them."""
    for memory in memories:
        if memory not in _texts:
            _texts[memory] = f"number {next(_used)} of those in earlier calls"


def described(memory: object) -> str:
    """What tells the memory apart from others, with the same text on all processes."""
    return _texts.get(memory, "in no earlier call")


def forget_all() -> None:
    """Begin anew, as all processes do together."""
    global _made, _used
    _texts.clear()
    _made, _used = itertools.count(), itertools.count()
