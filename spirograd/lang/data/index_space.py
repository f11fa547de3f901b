"""The index space that a field shares with its gradient and its tangents, and a field of structs with its members.

Kernels index all of them alike, and check bounds against at most one of them, so their extents and origins are equal. Their layouts may
differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.loc import Loc

if TYPE_CHECKING:
    from spirograd.lang.data.batches import Batch


class Named(Protocol):
    """A field whose name messages use."""

    @property
    def name(self) -> str: ...


class IndexSpace:
    """Extents and origin of the first placed field; fields placed later must have the same. ``batch``: the batch whose environments are the
    first axis, if there is one."""

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self._shape: tuple[int, ...] | None = None
        self._origin: tuple[int, ...] = ()
        self._first: Named
        self._loc: Loc | None = None

    def agree(self, field: Named, shape: tuple[int, ...], origin: tuple[int, ...], loc: Loc | None) -> None:
        """Check that ``field`` may be placed with these extents and this origin, at the user's line ``loc``.

        Raises SpirogradRuntimeError, with both lines, if its extents or its origin differ from those of a field placed before.
        """
        origin = origin or (0,) * len(shape)
        if self._shape is None:
            self._shape, self._origin, self._first, self._loc = shape, origin, field, loc
        elif (shape, origin) != (self._shape, self._origin):
            raise SpirogradRuntimeError(self._disagreement(field, shape, origin, loc))

    def _disagreement(self, field: Named, shape: tuple[int, ...], origin: tuple[int, ...], loc: Loc | None) -> str:
        first = self._first
        what, new, old = ("shape", shape, self._shape) if shape != self._shape else ("offset", origin, self._origin)
        names = (f"`{field.name}`", f"`{first.name}`") if field is not first else (f"another component of `{field.name}`", "the first one")
        problem = f"{names[0]} is placed with {what} {new}, {names[1]} with {what} {old}: one index must reach an element of both"
        earlier = render(f"{names[1]} is placed here:", self._loc)
        return f"{render(problem, loc)}\n{earlier}\n  hint: place both with {what} {old}; their layouts may differ"
