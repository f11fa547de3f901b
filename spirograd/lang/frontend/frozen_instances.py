"""What launches need of instances of frozen dataclasses, found once for each: kernels are called with the same ones again and again, which
may hold hundreds of arrays or fields.

An instance is *steady* if all its members are, through all levels: nothing of it can change but the contents of memory. What is found holds
for the present time (see `validity`), since arrays may get other gradients. Nothing is kept alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from spirograd.base import validity
from spirograd.base.records import dataclass

if TYPE_CHECKING:
    from spirograd.base.protocols import Place, Scalar

_known: dict[tuple[type, int], Facts] = {}


class HashedKey(tuple[Hashable, ...]):
    """A tuple that is hashed once: one with hundreds of items takes longer to hash than a launch."""

    def __init__(self, _: object) -> None:
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


@dataclass(slots=True, eq=False)
class Facts:
    """``key``, as a parameter gives it. ``flat``: the flat scalars and bindings, ``objects``: the arrays themselves, see `steps`. Each is
    None until it was asked for. ``number``: of the epoch that they are of."""

    number: int
    instance: weakref.ref[object]
    steady: bool
    key: HashedKey | None = None
    flat: tuple[tuple[Scalar, ...], tuple[Place | None, ...]] | None = None
    objects: list[object] | None = None


def facts(cls: type, value: object, is_steady: Callable[[], bool]) -> Facts | None:
    """Return the facts about ``value``, whose members are as ``cls`` declares them; None if they may differ at each launch."""
    place = cls, id(value)
    facts = _known.get(place)
    if facts is None or facts.number != validity.number() or facts.instance() is not value:
        if not type(value).__weakrefoffset__:
            return None
        number = validity.number()
        facts = _known[place] = Facts(number, weakref.ref(value, lambda _: _known.pop(place, None)), is_steady())
    return facts if facts.steady else None
