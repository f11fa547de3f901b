"""All gradients and tangents that there are, to be cleared together."""

from __future__ import annotations

import weakref
from typing import Any

_known: dict[str, weakref.WeakSet[Any]] = {}


def note(partner: Any, role: str) -> Any:
    """Remember a field or array that is the gradient ("grad"), tangent ("dual") or tangent of the gradient ("grad_dual") of another."""
    _known.setdefault(role, weakref.WeakSet()).add(partner)
    return partner


def clear(*roles: str) -> None:
    """Set all gradients or tangents that have memory in the running session to zero."""
    for role in roles:
        for partner in list(_known.get(role, ())):
            if partner.has_memory():
                partner.fill(0.0)
