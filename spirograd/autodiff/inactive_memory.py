"""Inactive memory: float memory without a gradient between active inputs and active outputs. It breaks the chain of derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spirograd.analysis.effects import may_alias
from spirograd.autodiff.activity import Activity, ShadowOf
from spirograd.autodiff.derivative import Mention, Outer
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Region, ref_of

_LOOPS = (ops.for_, ops.while_)


def inactive_writes(kernel: Kernel, activity: Activity, shadow: ShadowOf) -> tuple[Mention, ...]:
    """Return the float memory without a gradient that receives values which depend on memory with a gradient."""
    return _places(kernel, _writes_inactive(activity, shadow))


def inactive_reads(kernel: Kernel, activity: Activity, shadow: ShadowOf) -> tuple[Mention, ...]:
    """Return the float memory without a gradient on which memory with a gradient depends."""
    return _places(kernel, _reads_inactive(activity, shadow))


def broken_chain(kernel: Kernel, activity: Activity, shadow: ShadowOf) -> tuple[Mention, Mention] | None:
    """Return the first inactive read of memory that an inactive write wrote before in the same launch, as (writing, reading), or None."""
    writes, reads = _writes_inactive(activity, shadow), _reads_inactive(activity, shadow)
    written: list[tuple[Op, tuple[Op, ...]]] = []
    read: list[tuple[int, Op, tuple[Op, ...]]] = []  # with the number of writes before it
    for op, loops in _walk(kernel.body, ()):
        writer, reader = writes(op), reads(op)
        serial = tuple([loop for loop in loops if not (loop.code is ops.for_ and loop.attr.parallel)])
        if writer and reader and len(serial) < len(loops):
            return _place(op), _place(op)  # Iterations of a parallel loop share it, so the old value depends on additions of others.
        if reader:
            read.append((len(written), op, serial))
        if writer:
            written.append((op, serial))
    for before, reading, inside in read:
        for number, (writing, around) in enumerate(written):
            if may_alias(_outer(writing), _outer(reading), separate_arrays=True) and (number < before or set(inside) & set(around)):
                return _place(writing), _place(reading)
    return None


def _writes_inactive(activity: Activity, shadow: ShadowOf) -> Callable[[Op], bool]:
    return lambda op: op.code.effect in ("write", "atomic") and op.args[-1] in activity.varied and _is_inactive(op, shadow)


def _reads_inactive(activity: Activity, shadow: ShadowOf) -> Callable[[Op], bool]:
    return lambda op: op.code.effect in ("read", "atomic") and op in activity.useful and _is_inactive(op, shadow)


def _is_inactive(op: Op, shadow: ShadowOf) -> bool:
    ref = ref_of(op)
    return isinstance(ref, (FieldRef, ArrayRef)) and ref.dtype.is_float and shadow(ref) is None


def _places(kernel: Kernel, wanted: Callable[[Op], bool]) -> tuple[Mention, ...]:
    return tuple(dict.fromkeys([_place(op) for op in kernel.walk() if wanted(op)]))


def _place(op: Op) -> Mention:
    return Mention(_outer(op), op.loc)


def _outer(op: Op) -> Outer:
    ref = ref_of(op)
    assert isinstance(ref, (FieldRef, ArrayRef))
    return ref


def _walk(region: Region, loops: tuple[Op, ...]) -> Iterable[tuple[Op, tuple[Op, ...]]]:
    """Return all operations in order, with the loops around each."""
    for op in region.ops:
        yield op, loops
        for inner in op.regions:
            yield from _walk(inner, (*loops, op) if op.code in _LOOPS else loops)
