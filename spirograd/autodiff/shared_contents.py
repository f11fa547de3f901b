"""Shared memory in reverse mode: the contents that an operation needs when it is swept again.

The reverse sweep sweeps the body of a branch or a loop forwards again, before it sweeps it backwards. Loads of shared memory must then find
what they found in the primal, although later operations may have overwritten it. So an array is saved where the primal reaches the
operation, and restored before its reverse: before the operation, or at the start of each iteration of a loop that writes the array. An
array that is not written from the operation on is as it was, and needs no copy; nor does one of which each iteration first writes the same
elements, such as the tiles of a product of matrices: no iteration reads what an earlier one has written.

Threads restore an array together, between barriers. So an operation inside of a branch or loop without barriers cannot have its contents
restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from spirograd.analysis.loop_invariants import contents
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region, SharedRef, ref_of

_LOOPS = (ops.for_, ops.while_)


@dataclass(slots=True)
class SharedContents:
    """The arrays whose contents are saved. ``before``: by control operation, those that are saved once, before it. ``each``: by loop, those
    that are saved at the start of each iteration. ``lost``: by control operation, those that would have to be restored where no barrier
    may stand. ``waiting``: the control operations that contain barriers of the group.

    ``acting``: the control operations that contain barriers or write shared memory, so that operations after them depend on them."""

    before: dict[Op, list[SharedRef]] = field(default_factory=dict)
    each: dict[Op, list[SharedRef]] = field(default_factory=dict)
    lost: dict[Op, list[SharedRef]] = field(default_factory=dict)
    waiting: set[Op] = field(default_factory=set)
    acting: set[Op] = field(default_factory=set)


def shared_contents(kernel: Kernel) -> SharedContents:
    """Find the shared arrays of the grouped loops of ``kernel`` that reverse mode saves and restores."""
    found = SharedContents()
    for op in kernel.body.ops:
        if op.code is ops.for_ and op.attr.grouped:
            _Contents(op.regions[0], found).region(op.regions[0], True, None)
    return found


def acts(op: Op) -> bool:
    """Return whether ``op`` is a barrier, exchanges values with other threads, or changes shared memory, so that sweeping a region again
    must repeat it."""
    return op.code.effect == "barrier" or (isinstance(ref_of(op), SharedRef) and op.code.effect in ("write", "atomic"))


class _Contents:
    """A walk over the ``body`` of a grouped loop, which adds to ``found``."""

    def __init__(self, body: Region, found: SharedContents) -> None:
        self.found = found
        self.stores: dict[SharedRef, list[Op]] = {}
        self.around: dict[Op, tuple[Op, ...]] = {}  # access of shared memory -> control operations around it, the outermost first
        for op, around in _walk(body, ()):
            ref = ref_of(op)
            if isinstance(ref, SharedRef):
                self.around[op] = around
                if op.code is not ops.load:
                    self.stores.setdefault(ref, []).append(op)
            if acts(op):
                found.acting.update(around)
            if op.code is ops.workgroup_barrier:
                found.waiting.update(around)

    def region(self, region: Region, together: bool, outermost: Op | None) -> None:
        """Handle a region. ``together``: whether all threads of the group run it together. ``outermost``: the outermost serial loop around
        it."""
        written: set[SharedRef] = set()
        for op in reversed(region.ops[:-1]):
            here = {ref for inner in (op, *_inside(op)) if (ref := _written(inner)) is not None}
            written |= here
            if not op.regions:
                continue
            outer = outermost or (op if op.code in _LOOPS else None)
            for ref in sorted(_read_in(op) & written, key=lambda ref: ref.name):
                self._keep(op, ref, ref in here, together, outer)
            for inner_region in op.regions:
                self.region(inner_region, together and op in self.found.waiting, outer)

    def _keep(self, op: Op, ref: SharedRef, inside: bool, together: bool, outermost: Op | None) -> None:
        """Decide how ``op``, which reads ``ref``, finds its contents again. ``inside``: whether it also writes the array."""
        found = self.found
        if op.code in _LOOPS and inside:
            assert outermost is not None
            if _Rewriting(op, outermost).first(self.stores[ref], ref, self.around):
                return
            place = found.each if together and op in found.waiting else found.lost
        else:
            place = found.before if together else found.lost
        place.setdefault(op, []).append(ref)


def _walk(region: Region, around: tuple[Op, ...]) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    for op in region.ops:
        yield op, around
        for inner in op.regions:
            yield from _walk(inner, (*around, op))


def _inside(op: Op) -> Iterator[Op]:
    for region in op.regions:
        yield from region.walk()


def _written(op: Op) -> SharedRef | None:
    ref = ref_of(op)
    return ref if isinstance(ref, SharedRef) and op.code is not ops.load else None


def _read_in(op: Op) -> set[SharedRef]:
    """Return the arrays that the reverse of ``op`` may read again. The condition of a `while` is not evaluated again."""
    regions = op.regions[-1:] if op.code is ops.while_ else op.regions
    return {inner.attr for region in regions for inner in region.walk() if inner.code is ops.load and isinstance(inner.attr, SharedRef)}


class _Rewriting:
    """The test whether each iteration of ``loop`` first writes the same elements of an array. ``outermost``: the outermost serial loop
    around it."""

    def __init__(self, loop: Op, outermost: Op) -> None:
        self.loop = loop
        self.changing = contents(*outermost.regions)
        self.known: dict[Op, bool] = {}

    def first(self, writes: list[Op], ref: SharedRef, around: dict[Op, tuple[Op, ...]]) -> bool:
        """Return whether all ``writes`` of ``ref``, which are stores, are in the loop before all loads, at places that no iteration
        changes."""
        inside = {op: number for number, op in enumerate(_inside(self.loop))}
        reads = [op for op in inside if op.code is ops.load and op.attr == ref]
        if any(op.code is not ops.store or op not in inside for op in writes):
            return False
        if max(inside[op] for op in writes) > min(inside[op] for op in reads):
            return False
        reading = {outer for op in reads for outer in around[op]}
        return all(self._is_fixed_store(op, around[op], reading) for op in writes)

    def _is_fixed_store(self, store: Op, around: tuple[Op, ...], reading: set[Op]) -> bool:
        """Return whether ``store`` runs for the same indices in each iteration."""
        for outer in around[around.index(self.loop) + 1 :]:
            if outer.code is ops.while_ or not all(self._is_fixed(value) for value in outer.args[: 2 if outer.code is ops.for_ else 1]):
                return False
            if outer.code is ops.for_ and outer not in reading:
                self.known[outer.regions[0].params[0]] = True  # the indices of a loop that runs for all its indices before the first load
        return self._is_fixed(store.args[0])

    def _is_fixed(self, value: Op) -> bool:
        """Return whether a value is the same whenever the program reaches it."""
        if value not in self.changing:
            return True
        if value not in self.known:
            pure = value.code.effect == "pure" and not value.regions and value.code not in (ops.param, ops.result)
            self.known[value] = pure and all(self._is_fixed(a) for a in value.args)
        return self.known[value]
