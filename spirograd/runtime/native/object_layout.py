"""The addresses of the version of a dictionary and of the content of a cell in CPython: prepared launches read them in place of calls.

CPython 3.10 to 3.13 give a dictionary a new version at each change, unique among all dictionaries (PEP 509). Both addresses are tested
before they are used; without them, prepared launches look entries up.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import types

_VERSION, _CONTENT = 24, 16  # After the object's head of two words, and for a dictionary the number of its items.


def version_address(dictionary: object) -> int:
    """Return the address of the version of a dictionary; 0 if dictionaries have none."""
    return id(dictionary) + _VERSION if _has_versions() else 0


def content_address(cell: object) -> int:
    """Return the address of the address of a cell's content: see `has_cells`."""
    return id(cell) + _CONTENT


@functools.cache
def has_cells() -> bool:
    """Return whether cells have the layout that `content_address` assumes."""
    held = object()
    cell = types.CellType(held)
    return _is_usual() and ctypes.c_uint64.from_address(content_address(cell)).value == id(held)


@functools.cache
def _has_versions() -> bool:
    if not _is_usual() or sys.version_info >= (3, 14):
        return False
    tried: dict[object, object] = {"a": 1, "b": 2}
    word = ctypes.c_uint64.from_address(id(tried) + _VERSION)
    seen = [word.value]
    for key, value in (("a", 3), ("b", 1), ("c", 1), ("a", 1)):
        tried[key] = value
        seen.append(word.value)
    del tried["c"]
    return len({*seen, word.value}) == len(seen) + 1


def _is_usual() -> bool:
    return sys.implementation.name == "cpython" and ctypes.sizeof(ctypes.c_void_p) == 8 and object.__basicsize__ == 16
