"""Side effects of operations and kernels: the memory that they read and write."""

from __future__ import annotations

from collections.abc import Iterator

from spirograd.base.artifact import Effects, part_name
from spirograd.ir.nodes import ArrayRef, BufferRef, FieldRef, Kernel, Op, Ref, SharedRef, TapeRef, TempRef, accesses_of, ref_of

_READING = frozenset(("read", "atomic"))
_WRITING = frozenset(("write", "atomic"))


def nested(op: Op) -> Iterator[Op]:
    """``op`` itself if it is no control operation, else everything in its regions that is none."""
    if op.code.effect != "control":
        yield op
    for region in op.regions:
        for inner in region.walk():
            if inner.code.effect != "control":
                yield inner


def reads(op: Op) -> frozenset[Ref]:
    """The memory that ``op``, or anything in its regions, may read."""
    return _refs(op, _READING)


def writes(op: Op) -> frozenset[Ref]:
    """The memory that ``op``, or anything in its regions, may write."""
    return _refs(op, _WRITING)


def orders(op: Op) -> bool:
    """Whether there is a barrier in ``op``: no access to memory may move across it."""
    return any(inner.code.effect == "barrier" for inner in nested(op))


def touches(op: Op) -> frozenset[Ref]:
    """The memory that ``op``, or anything in its regions, may read or write."""
    return _refs(op, _READING | _WRITING)


def _refs(op: Op, effects: frozenset[str]) -> frozenset[Ref]:
    return frozenset([ref for inner in nested(op) for effect, ref in accesses_of(inner) if effect in effects])


def place(ref: Ref) -> tuple[str, int]:
    """The allocation that ``ref`` lies in, as the runtime names it: ``("tree", id)``, ``("array", argument)``; else ``("temps", 0)`` ..."""
    if isinstance(ref, FieldRef):
        return ("tree", ref.tree)
    if isinstance(ref, ArrayRef):
        return ("array", ref.arg)
    if isinstance(ref, TempRef):
        return ("temps", 0)
    if isinstance(ref, TapeRef):
        return ("tapes", 0)
    if isinstance(ref, SharedRef):
        return ("shared", 0)
    return (ref.slot.kind, ref.slot.index)


def may_alias(a: Ref, b: Ref) -> bool:
    """Whether an access to ``a`` and one to ``b`` may touch the same bytes.

    Two fields never do, nor two temporaries or tapes. Arrays come from outside: the same memory may be passed twice, or be the exported
    memory of a field, so an array may alias anything but temporaries. Device references to one tree may alias each other.
    """
    return a == b or others_may_alias(a, b)


def others_may_alias(a: Ref, b: Ref) -> bool:
    """`may_alias` of references that are not equal."""
    if isinstance(a, FieldRef) and isinstance(b, FieldRef):
        return a.key == b.key and a.role == b.role
    if isinstance(a, (TempRef, TapeRef)) and isinstance(b, (TempRef, TapeRef)):
        return False
    kinds = {place(a)[0], place(b)[0]}
    if "array" in kinds:
        return kinds <= {"array", "tree"}
    return place(a) == place(b) and (isinstance(a, BufferRef) or isinstance(b, BufferRef))


def part(ref: Ref) -> str:
    """What of `place` ``ref`` is, as the runtime names it: a field, the role of an array; "" if it may be anything there."""
    if isinstance(ref, FieldRef):
        return part_name(ref.key, ref.role)
    if isinstance(ref, ArrayRef):
        return ref.role
    return ref.slot.role if isinstance(ref, BufferRef) and ref.slot.kind == "array" else ""


def effects(kernel: Kernel) -> Effects:
    """Which field trees and array arguments ``kernel`` may read and write (grad and dual count as their array), and which parts."""
    read: set[tuple[str, int, str]] = set()
    written: set[tuple[str, int, str]] = set()
    for op in kernel.walk():
        ref = ref_of(op)
        if ref is None or place(ref)[0] not in ("tree", "array"):
            continue
        if op.code.effect in _READING:
            read.add((*place(ref), part(ref)))
        if op.code.effect in _WRITING:
            written.add((*place(ref), part(ref)))
    return Effects(_wholes(read), _wholes(written), frozenset(read), frozenset(written))


def _wholes(parts: set[tuple[str, int, str]]) -> frozenset[tuple[str, int]]:
    return frozenset([(kind, index) for kind, index, _ in parts])
