"""Chains of gradients that break inside of a kernel: it stores to memory without gradient, and reads that again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Region, ref_of

_LOOPS = (ops.for_, ops.while_)


def broken_chain(kernel: Kernel, gaps: Iterable[Any], gapped: Iterable[Any]) -> tuple[Any, Any] | None:
    """The first of ``gapped`` that reads what one of ``gaps`` wrote before, in one launch: (writing, reading). None if none does."""
    writers = {(memory_key(place.ref), place.loc): place for place in gaps}
    readers = {(memory_key(place.ref), place.loc): place for place in gapped}
    if not {key for key, _ in writers} & {key for key, _ in readers}:
        return None
    written: list[tuple[Any, tuple[Op, ...]]] = []
    read: list[tuple[int, Any, tuple[Op, ...]]] = []  # with the number of writes before it
    for op, loops in _walk(kernel.body, ()):
        ref = ref_of(op)
        if not isinstance(ref, (FieldRef, ArrayRef)) or ref.role != "primal":
            continue
        here = (memory_key(ref), op.loc)
        serial = tuple([loop for loop in loops if not _is_parallel(loop)])
        if op.code.effect == "atomic" and here in readers and here in writers and len(serial) < len(loops):
            return writers[here], readers[here]  # iterations of a parallel loop meet there: what it gives depends on what it adds
        if here in readers and op.code.effect in ("read", "atomic"):
            read.append((len(written), readers[here], serial))
        if here in writers and op.code.effect in ("write", "atomic"):
            written.append((writers[here], serial))
    for before, reader, inside in read:
        for number, (writer, around) in enumerate(written):
            if memory_key(writer.ref) == memory_key(reader.ref) and (number < before or set(inside) & set(around)):
                return writer, reader
    return None


def memory_key(ref: FieldRef | ArrayRef) -> Any:
    """What tells the memory of references of one kernel apart."""
    return ref.arg if isinstance(ref, ArrayRef) else (ref.tree, ref.key)


def _is_parallel(loop: Op) -> bool:
    return loop.code is ops.for_ and bool(loop.attr.parallel)


def _walk(region: Region, loops: tuple[Op, ...]) -> Iterable[tuple[Op, tuple[Op, ...]]]:
    """All operations in order, with the loops around each."""
    for op in region.ops:
        yield op, loops
        for inner in op.regions:
            yield from _walk(inner, (*loops, op) if op.code in _LOOPS else loops)
