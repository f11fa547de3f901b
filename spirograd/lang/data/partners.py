"""All gradients and tangents that there are, to be cleared together."""

from __future__ import annotations

import weakref
from typing import Any

from spirograd.lang import context

_known: dict[str, weakref.WeakKeyDictionary[Any, weakref.ref[Any]]] = {}  # by role: partner -> what it belongs to


def note(partner: Any, role: str, primal: Any) -> Any:
    """Remember a field or array that is the gradient ("grad"), tangent ("dual") or tangent of the gradient ("grad_dual") of ``primal``."""
    _known.setdefault(role, weakref.WeakKeyDictionary())[partner] = weakref.ref(primal)
    return partner


def primals(role: str) -> list[Any]:
    """All fields and arrays with memory in the running session that have a partner of a role there."""
    found = [(partner, primal()) for partner, primal in list(_known.get(role, {}).items())]
    return [primal for partner, primal in found if primal is not None and partner.has_memory() and primal.has_memory()]


def is_partner(memory: Any) -> bool:
    """Whether a field or array is a gradient or tangent of another."""
    return any(memory in known for known in _known.values())


def host_write(memory: Any, key: Any = None, component: int | None = None, source: Any = None) -> None:
    """Called before the host writes to a field or array: to an element, one component of it, or all; from ``source``, if that is a field
    or array. An open tape saves what gradients still need, and clears the gradient of what is written when it comes by again."""
    recorder = context.recorder()
    if recorder is None:
        return

    def clear(role: str = "grad") -> None:
        partner = memory.dual if role == "dual" else memory.grad if role == "grad" else memory.grad.dual
        if key is None:
            partner.fill(0.0)
        else:
            partner.clear_element(key, component)

    recorder.host_write(memory, key, clear, source)


def clear(*roles: str) -> None:
    """Set all gradients or tangents that have memory in the running session to zero."""
    for role in roles:
        for partner in list(_known.get(role, ())):
            if partner.has_memory():
                partner.fill(0.0)
