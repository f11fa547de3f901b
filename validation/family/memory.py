"""Remembers each field and array that a program makes, by the line that made it, and reads them all."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np


class Memory:
    """The fields and arrays of the program in file ``path``, in the order in which it created them; ``folder`` holds its other modules."""

    def __init__(self, path: str, folder: str) -> None:
        self._path = path
        self._folder = folder + os.sep
        self._made: list[tuple[str, Any]] = []
        self._depth = 0
        self.drawn: dict[str, np.ndarray] = {}

    def watch(self, taichi: Any) -> None:
        """From now on, remember what the factories of the module ``taichi`` make."""
        for name in ("field", "ndarray"):
            setattr(taichi, name, self._remembering(getattr(taichi, name)))
        vector_type, matrix_type = type(taichi.types.vector(3, taichi.f32)), type(taichi.types.matrix(2, 2, taichi.f32))
        struct_type = type(taichi.types.struct(a=taichi.f32))
        constructors = (taichi.Vector, taichi.Matrix, taichi.Struct)  # used as classes; the others make types, which are used as instances
        for owner in dict.fromkeys((*constructors, vector_type, matrix_type, struct_type)):
            for name in ("field", "ndarray"):
                factory = getattr(owner, name, None)
                if factory is not None:
                    made = self._remembering(factory)
                    setattr(owner, name, staticmethod(made) if owner in constructors else made)

    def forget(self) -> None:
        """A new session: what was made before is dead."""
        self._made.clear()

    def draw(self, name: str, given: Any) -> None:
        """Keep what the program drew last by the method ``name``, if it is an array of numbers."""
        if isinstance(given, np.ndarray) and given.dtype.kind in "fiu":
            self.drawn[f"drawn by {name}"] = given.copy()

    def read(self) -> dict[str, np.ndarray]:
        """All that is alive, as arrays: by number, line and member; gradients too."""
        found = dict(self.drawn)
        for number, (place, thing) in enumerate(self._made):
            for member, array in _arrays(thing):
                found[f"{number:03d} {place}{member}"] = array
        return found

    def _remembering(self, factory: Any) -> Any:
        @functools.wraps(factory)
        def make(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                made = factory(*args, **kwargs)
            finally:
                self._depth -= 1
            if not self._depth:
                self._made.append((self._place(), made))
            return made

        return make

    def _place(self) -> str:
        """Return the line of the program that creates memory now, with the file if that is another module of the program."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file == self._path:
                return f"line {frame.f_lineno}"
            if file.startswith(self._folder):
                return f"{file.removeprefix(self._folder)} line {frame.f_lineno}"
            frame = frame.f_back
        return "elsewhere"


def _arrays(thing: Any) -> Iterator[tuple[str, np.ndarray]]:
    try:
        yield from _flat(thing.to_numpy())
    except Exception:  # a field without a place, or of a session that has ended
        return
    try:
        if thing.grad is not None:
            yield from ((f"{member}.grad", array) for member, array in _flat(thing.grad.to_numpy()))
    except Exception:
        return


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _flat(member, f"{name}.{key}")
    else:
        yield name, np.asarray(value)
