"""The registry of all gradients and tangents, by which they are cleared together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

from spirograd.lang import context

if TYPE_CHECKING:
    from spirograd.lang.data.ndarray import Ndarray
    from spirograd.lang.data.scalar_field import ScalarField

    Memory = Union[ScalarField, Ndarray]
    M = TypeVar("M", bound=Memory)

_known: dict[str, weakref.WeakKeyDictionary[Memory, weakref.ref[Memory]]] = {}  # By role: shadow -> its primal.


def register(shadow: M, role: str, primal: Memory) -> M:
    """Register a field or array that is the gradient ("grad"), tangent ("dual") or tangent of the gradient ("grad_dual") of ``primal``."""
    known = _known.get(role) or _known.setdefault(role, weakref.WeakKeyDictionary())
    known[shadow] = weakref.ref(primal)
    return shadow


def primals(role: str) -> list[Memory]:
    """Return all fields and arrays with memory in the running session that have a shadow of a role there."""
    shadowed = [(shadow, primal()) for shadow, primal in list(_known.get(role, {}).items())]
    return [primal for shadow, primal in shadowed if primal is not None and shadow.has_memory() and primal.has_memory()]


def is_shadow(memory: object) -> bool:
    """Return whether a field or array, or the array of a view, is a gradient or tangent of another."""
    # Not by `getattr`: for an object without the attribute, that formats a message first.
    owner = getattr(memory, "__dict__", {}).get("arr", memory)
    return any(owner in known for known in _known.values())


def host_write(
    memory: Any,
    key: object = None,
    component: int | None = None,
    source: Any = None,
    repeat: Callable[[], None] | None = None,
    numbers: Sequence[object] = (),
) -> None:
    """Prepare a write of the host to an element, a component or all of a field or array; from ``source``, if that is a field or array.

    ``repeat`` writes the same again, if that needs no data of the host. ``numbers``: see `traced_numbers.split`. An open tape saves values
    that gradients still need, and clears the gradient of the written memory in its reverse pass.
    """
    recorder = context.recorder()
    if recorder is None:
        return

    def clear(role: str = "grad") -> None:
        shadow = memory.dual if role == "dual" else memory.grad if role == "grad" else memory.grad.dual
        if key is None:
            shadow.fill(0.0)
        else:
            shadow.clear_element(key, component)

    reverse = recorder.numbers_written(memory, key, component, numbers, clear) if numbers else clear
    is_view = hasattr(memory, "arr")  # A view is a part of its array: its indices are not those of the array.
    recorder.host_write(memory, () if is_view else key, reverse, source, repeat)
    if numbers:
        recorder.numbers_kept(memory)


def host_read(memory: object, how: str) -> None:
    """Tell the recorder that the host reads all numbers of a field or array, by the method ``how``."""
    recorder = context.recorder()
    if recorder is not None:
        recorder.host_read(cast("Memory", memory), how)


def clear(*roles: str, kept: Container[object] = ()) -> None:
    """Set all gradients or tangents that have memory in the running session to zero, except those that are ``kept``."""
    recorded = context.recorder() is not None
    for role in roles:
        for shadow in list(_known.get(role, ())):
            if not shadow.has_memory() or shadow in kept:
                continue
            if recorded:
                shadow.fill(0.0)
            else:
                shadow.clear_memory()
