"""Where chains of derivatives break: memory of floats without gradient that gets, or gives, values which derivatives flow through."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spirograd.autodiff.activity import Activity, Partner
from spirograd.autodiff.derivative import Outer, Place
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Region, ref_of

_LOOPS = (ops.for_, ops.while_)


def gaps(kernel: Kernel, found: Activity, partner: Partner) -> tuple[Place, ...]:
    """Memory of floats without gradient that gets values which depend on memory with one."""
    return _places(kernel, _writes_gap(found, partner))


def gapped(kernel: Kernel, found: Activity, partner: Partner) -> tuple[Place, ...]:
    """Memory of floats without gradient on which memory with one depends."""
    return _places(kernel, _reads_gap(found, partner))


def broken_chain(kernel: Kernel, found: Activity, partner: Partner) -> tuple[Place, Place] | None:
    """The first access of `gapped` that reads what one of `gaps` wrote before, in one launch: (writing, reading). None if none does."""
    writes, reads = _writes_gap(found, partner), _reads_gap(found, partner)
    written: list[tuple[Op, tuple[Op, ...]]] = []
    read: list[tuple[int, Op, tuple[Op, ...]]] = []  # with the number of writes before it
    for op, loops in _walk(kernel.body, ()):
        writer, reader = writes(op), reads(op)
        serial = tuple([loop for loop in loops if not (loop.code is ops.for_ and loop.attr.parallel)])
        if writer and reader and len(serial) < len(loops):
            return _place(op), _place(op)  # iterations of a parallel loop meet there: what it gives depends on what it adds
        if reader:
            read.append((len(written), op, serial))
        if writer:
            written.append((op, serial))
    for before, reading, inside in read:
        for number, (writing, around) in enumerate(written):
            if _memory(writing) == _memory(reading) and (number < before or set(inside) & set(around)):
                return _place(writing), _place(reading)
    return None


def _writes_gap(found: Activity, partner: Partner) -> Callable[[Op], bool]:
    return lambda op: op.code.effect in ("write", "atomic") and op.args[-1] in found.varied and _is_gap(op, partner)


def _reads_gap(found: Activity, partner: Partner) -> Callable[[Op], bool]:
    return lambda op: op.code.effect in ("read", "atomic") and op in found.useful and _is_gap(op, partner)


def _is_gap(op: Op, partner: Partner) -> bool:
    ref = ref_of(op)
    return isinstance(ref, (FieldRef, ArrayRef)) and ref.dtype.is_float and partner(ref) is None


def _places(kernel: Kernel, wanted: Callable[[Op], bool]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys([_place(op) for op in kernel.walk() if wanted(op)]))


def _memory(op: Op) -> tuple[object, ...]:
    """What tells the memory of accesses of one kernel apart."""
    ref = _outer(op)
    return (ref.arg, ref.role) if isinstance(ref, ArrayRef) else (ref.tree, ref.key, ref.role)


def _place(op: Op) -> Place:
    return Place(_outer(op), op.loc)


def _outer(op: Op) -> Outer:
    ref = ref_of(op)
    assert isinstance(ref, (FieldRef, ArrayRef))
    return ref


def _walk(region: Region, loops: tuple[Op, ...]) -> Iterable[tuple[Op, tuple[Op, ...]]]:
    """All operations in order, with the loops around each."""
    for op in region.ops:
        yield op, loops
        for inner in op.regions:
            yield from _walk(inner, (*loops, op) if op.code in _LOOPS else loops)
