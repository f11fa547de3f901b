"""Side effects of operations and kernels: the memory that they read and write."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from spirograd.base.artifact import Effects, part_name
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, ArrayRef, BufferRef, FieldRef, Kernel, Op, Ref, SharedRef, TempRef, accesses_of

_READING = frozenset(("read", "atomic"))
WRITING = frozenset(("write", "atomic"))
# The kinds of regions that may be the same memory of the program: arrays, arrays with marks (`ArrayRef.disjoint`), and field trees.
OUTSIDE = frozenset(("array", "disjoint", "tree"))


def nested(op: Op) -> Iterator[Op]:
    """Yield ``op`` itself if it is no control operation, else all operations in its regions that are none."""
    if op.code.effect != "control":
        yield op
    for region in op.regions:
        for inner in region.walk():
            if inner.code.effect != "control":
                yield inner


def reads(op: Op) -> frozenset[Ref]:
    """Return the memory that ``op``, or anything in its regions, may read."""
    return _refs(op, _READING)


def writes(op: Op) -> frozenset[Ref]:
    """Return the memory that ``op``, or anything in its regions, may write."""
    return _refs(op, WRITING)


def orders(op: Op) -> bool:
    """Return whether there is a barrier in ``op``: no access to memory may move across it."""
    return any(inner.code.effect == "barrier" for inner in nested(op))


def touches(op: Op) -> frozenset[Ref]:
    """Return the memory that ``op``, or anything in its regions, may read or write."""
    return _refs(op, _READING | WRITING)


def _refs(op: Op, effects: frozenset[str]) -> frozenset[Ref]:
    accesses = [*accesses_of(op), *[access for region in op.regions for access in region.accesses]]
    if any(ops.call_memory in region.codes for region in op.regions):
        accesses += [access for inner in nested(op) if inner.code is ops.call_memory for access in accesses_of(inner)]
    return frozenset([ref for effect, ref in accesses if effect in effects])


def place(ref: Ref) -> tuple[str, int]:
    """Return the allocation that contains ``ref``, as the runtime names it: ``("tree", id)``, ``("array", argument)``; else ``("temps",
    0)`` ..."""
    if isinstance(ref, FieldRef):
        return ("tree", ref.tree)
    if isinstance(ref, ArrayRef):
        return ("array", ref.arg)
    if isinstance(ref, TempRef):
        return ("temps", 0)
    if isinstance(ref, AdstackRef):
        return ("adstacks", 0)
    if isinstance(ref, SharedRef):
        return ("shared", 0)
    return (ref.slot.kind, ref.slot.index)


def region_of(ref: Ref, separate_arrays: bool = False) -> tuple[str, Hashable]:
    """Return the memory that ``ref`` shares with references which may alias it, as a kind and a name. Memory of two of the kinds `OUTSIDE`
    may alias, too.

    Two fields never alias, nor two temporaries or adstacks. Arrays come from outside: the same memory may be passed twice, or be the
    exported memory of a field. Device references to one tree may alias each other. ``separate_arrays``: assume that two array
    arguments never alias, nor an array and a field. The primal makes no such assumption. Derivatives need it, because memory that two
    arguments share would have two gradients.
    """
    kind, index = place(ref)
    if isinstance(ref, FieldRef):
        return ("field" if separate_arrays else "tree"), (ref.key, ref.role)
    if isinstance(ref, ArrayRef) and separate_arrays:
        return "argument", (ref.arg, ref.role)
    if kind == "array":
        return _array_region(ref)
    return kind, index if isinstance(ref, BufferRef) else ref


def _array_region(ref: Ref) -> tuple[str, Hashable]:
    if isinstance(ref, ArrayRef) and ref.disjoint:
        return "disjoint", (ref.arg, ref.role)
    if isinstance(ref, BufferRef) and ref.disjoint:
        return "disjoint", (ref.slot.index, ref.slot.role)
    return "array", None


def may_alias(a: Ref, b: Ref, separate_arrays: bool = False) -> bool:
    """Return whether an access to ``a`` and one to ``b`` may touch the same bytes. ``separate_arrays``: see `region_of`."""
    if isinstance(a, FieldRef) and isinstance(b, FieldRef):
        return a.key == b.key and a.role == b.role
    return regions_overlap(region_of(a, separate_arrays), region_of(b, separate_arrays))


def regions_overlap(a: tuple[str, Hashable], b: tuple[str, Hashable]) -> bool:
    """Return whether two regions of memory (`region_of`) may have bytes in common."""
    return a == b or (a[0] != b[0] and a[0] in OUTSIDE and b[0] in OUTSIDE)


def part(ref: Ref) -> str:
    """Return the part of `place` that ``ref`` is, as the runtime names it: a field, or the role of an array; "" if it may be anything
    there."""
    if isinstance(ref, FieldRef):
        return part_name(ref.key, ref.role)
    if isinstance(ref, ArrayRef):
        return ref.role
    return ref.slot.role if isinstance(ref, BufferRef) and ref.slot.kind == "array" else ""


def effects(kernel: Kernel) -> Effects:
    """Return the field trees and array arguments that ``kernel`` may read and write (grad and dual count as their array), and their
    parts."""
    read: set[tuple[str, int, str]] = set()
    written: set[tuple[str, int, str]] = set()
    for effect, ref in kernel.accesses:
        kind, index = place(ref)
        if kind not in ("tree", "array"):
            continue
        if effect in _READING:
            read.add((kind, index, part(ref)))
        if effect in WRITING:
            written.add((kind, index, part(ref)))
    return Effects(_wholes(read), _wholes(written), frozenset(read), frozenset(written))


def _wholes(parts: set[tuple[str, int, str]]) -> frozenset[tuple[str, int]]:
    return frozenset([(kind, index) for kind, index, _ in parts])
