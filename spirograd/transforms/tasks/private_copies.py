"""Private copies: atomics of a parallel loop on few elements first update a copy for each workgroup; then one atomic follows for each
element and workgroup.

Histograms are an example. If many invocations update few elements, atomics on memory wait for each other; those on shared memory are much
faster, and less contended. Clearing the copies and adding them up pays if there are many iterations for each of their elements. If the
number of iterations is not known at compile time, copies are small.

The number of elements of an array argument is known at launch only. Its copy is small, and is used if the array fits into it.

If a field has somewhat more elements than fit, and the loop does nothing but update it, each workgroup has a copy of one of several ranges
of elements. All iterations then run once for each range, because reading a few bytes several times takes less time than an atomic on
memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.analysis.existence import constant_trips
from spirograd.analysis.workgroups import MOST_AT_A_TIME, group_size
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, i32, u32
from spirograd.base.records import dataclass, replace
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, PrivateCopy, Region, SharedRef, TaskAttr
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.tasks.carriers import Carrier, carrier
from spirograd.transforms.tasks.updated_memory import Extents, Updated, length_of, only_updated

# The largest number of elements of the copies of a task: 32 KiB, with which a multiprocessor of an H100 holds seven workgroups.
_MOST_ELEMENTS = 8192
# The number of iterations for each element of the copies of all workgroups, and the smallest and largest number of workgroups.
_ITERATIONS, _LEAST_GROUPS, _MOST_GROUPS = 8, 256, 1024
# The largest number of elements of copies if the number of iterations or of elements is not known, and the largest number of updates with
# two versions (for arrays) in a body.
_MOST_UNKNOWN, _MOST_UPDATES = 1024, 8
# The largest number of ranges of a field, and of operations in the body of a loop over ranges. Workgroups are large, so that a
# multiprocessor holds many invocations with few copies. Histogram of 256M with 65,536 bins on an H200: 2.9 ms without copies.
_MOST_RANGES, _RANGED_LENGTH, _RANGED_SIZE, _RANGED_GROUPS = 8, 24, 1024, 512


def private_copies(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Add copies that pay to tasks (`TaskAttr.copies`), on targets that have workgroups.

    Conditions: the results of the atomics are unused, all atomics on a field or array are of one kind, and nothing else in the task
    accesses it. Array arguments are assumed not to overlap, because a loop that updates an element and also reads it has no defined result.
    An update that is out of range changes nothing.
    """
    return _PrivateCopies(ctx).kernel(kernel) if ctx.caps.target.invocations and ctx.options.optimize else kernel


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Ranges of elements: ``count`` ranges of ``length`` elements each (the last one may be shorter), for workgroups of ``group_size``."""

    count: int
    length: int
    group_size: int

    def first(self, b: Builder) -> Op:
        """Return the number of the first element of the workgroup's range (i32)."""
        workgroup = b.emit(ops.idiv, b.emit(ops.thread_slot, type=i32), b.const(self.group_size))
        return b.emit(ops.mul, b.emit(ops.irem, workgroup, b.const(self.count)), b.const(self.length))


class _PrivateCopies(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self.ctx = ctx
        self.caps = ctx.caps
        self.copies: dict[Updated, PrivateCopy] = {}
        self.ranges: _Ranges | None = None
        self.handlers = {ops.task: self._task, ops.atomic: self._atomic}

    def _task(self, op: Op) -> Op:
        groups = 0
        if op.attr.kind == "range_for" and not op.attr.grouped:
            self.copies, groups = _worthwhile(op, self.caps)
            if not self.copies:
                self.copies, groups, self.ranges = _ranged(op, self.ctx)
        if not self.copies:
            return self.b.append(op)
        bounds, body, finish = op.regions
        body = self.region(body)
        flushes = [self._flush(ref, copy) for ref, copy in self.copies.items()]
        attr = replace(op.attr, copies=tuple(self.copies.values()), max_groups=groups)
        if self.ranges is not None:
            attr = replace(attr, shares=self.ranges.count, group_size=self.ranges.group_size)
        self.copies, self.ranges = {}, None
        return self.b.append(Op(ops.task, VOID, (), attr, (bounds, body, finish, *flushes), op.loc))

    def _atomic(self, op: Op) -> Op:
        kind, ref = op.attr
        copy = self.copies.get(ref) if isinstance(ref, (FieldRef, ArrayRef)) else None
        if copy is None:
            return self.copy(op)
        b = self.b
        *indices, value = self.args(op)
        if isinstance(ref, ArrayRef):
            self._of_array(copy, ref, tuple(indices), value)
            return value  # nothing uses the result
        held = self._carrier(ref, kind).hold(b, value)
        number = Extents(b, ref).number(tuple(indices), length_of(ref))
        if self.ranges is None:
            return b.atomic(kind, copy.shared, number, held)
        within = b.emit(ops.sub, number, self.ranges.first(b))
        ours = b.emit(ops.lt, b.emit(ops.bitcast, within, type=u32), b.const(self.ranges.length, u32))
        if self.ranges.count * self.ranges.length > length_of(ref):  # an element out of range would be in the last range
            ours = b.emit(ops.and_, ours, b.emit(ops.lt, number, b.const(length_of(ref))))
        b.begin()
        b.atomic(kind, copy.shared, within, held)
        then = b.end([])
        b.begin()
        b.if_(ours, then, b.end([]))
        return held

    def _of_array(self, copy: PrivateCopy, ref: ArrayRef, indices: tuple[Op, ...], value: Op) -> None:
        """Update the copy if the array fits into it, else the array."""
        b, room = self.b, copy.shared.length - 1
        extents = Extents(b, ref)
        fits = b.emit(ops.le, extents.total(), b.const(room))
        b.begin()
        held = self._carrier(ref, copy.kind).hold(b, value)
        b.atomic(copy.kind, copy.shared, extents.number(indices, room), held)
        then = b.end([])
        b.begin()
        b.atomic(copy.kind, ref, *indices, value)
        b.if_(fits, then, b.end([]))

    def _flush(self, ref: Updated, copy: PrivateCopy) -> Region:
        """Return a region that updates memory by an element of a copy, given its number and value."""
        b = self.b
        number, held = b.begin(i32, copy.shared.dtype)
        if self.ranges is not None:
            number = b.emit(ops.add, number, self.ranges.first(b))
        value = self._carrier(ref, copy.kind).element(b, held)
        if isinstance(ref, FieldRef):
            b.atomic(copy.kind, ref, *Extents(b, ref).indices(number), value)
            return b.end()
        extents = Extents(b, ref)
        there = b.emit(ops.lt, number, extents.total())
        b.begin()
        b.atomic(copy.kind, ref, *extents.indices(number), value)
        then = b.end([])
        b.begin()
        b.if_(there, then, b.end([]))
        return b.end()

    def _carrier(self, ref: Updated, kind: str) -> Carrier:
        result = carrier(kind, ref.dtype, self.caps)
        assert result is not None, "`_candidates` takes no others"
        return result


def _worthwhile(task: Op, caps: Capabilities) -> tuple[dict[Updated, PrivateCopy], int]:
    """Return the copies that ``task`` should have, and the largest number of workgroups with them."""
    bounds, body = task.regions[:2]
    count = constant_trips(*bounds.results[:2])
    most = _MOST_UNKNOWN if count is None else count // (_ITERATIONS * _LEAST_GROUPS)
    room = min(_MOST_ELEMENTS, (caps.shared_memory - _shared_bytes(task)) // 4, most)
    if room <= 0 or not _may_have_copies(body, caps):
        return {}, 0
    copies: dict[Updated, PrivateCopy] = {}
    elements, left = 0, _MOST_UNKNOWN
    candidates = _candidates(body, caps)
    arrays = [ref for ref in candidates if isinstance(ref, ArrayRef)]
    for ref in sorted(candidates, key=lambda ref: isinstance(ref, ArrayRef)):
        kind, held = candidates[ref]
        if isinstance(ref, FieldRef):
            length = length_of(ref) + 1  # the last element takes updates out of range
        elif _updates(body, arrays) <= _MOST_UPDATES:
            length = min(left, room - elements) // (len(arrays) - arrays.index(ref))
            left -= length
        else:
            continue
        if 1 < length <= room - elements:
            elements += length
            copies[ref] = PrivateCopy(kind, SharedRef(f"copy_{len(copies)}_{ref.name}", held, length))
    if not copies:
        return {}, 0
    return copies, _MOST_GROUPS if count is None else min(count // (_ITERATIONS * elements), _MOST_GROUPS)


def _updates(body: Region, arrays: Sequence[ArrayRef]) -> int:
    """Return the number of operations that update these arrays."""
    return sum(op.code is ops.atomic and op.attr[1] in arrays for op in body.walk())


def _may_have_copies(body: Region, caps: Capabilities) -> bool:
    # On llvmpipe, which runs few threads, copies make a histogram take 1.15 times as long.
    if caps.cpu_driver or ops.atomic not in body.codes:
        return False
    # If drivers end loops early, each iteration of a body with loops runs in an invocation of its own.
    return not caps.loop_limit or body.codes.isdisjoint((ops.for_, ops.while_))


def _ranged(task: Op, ctx: PassContext) -> tuple[dict[Updated, PrivateCopy], int, _Ranges | None]:
    """Return the copy of a range of elements that each workgroup of ``task`` should have, the largest number of workgroups, and the ranges.
    There are no copies, and None, if ranges do not pay."""
    bounds, body = task.regions[:2]
    count, caps = constant_trips(*bounds.results[:2]), ctx.caps
    nothing: tuple[dict[Updated, PrivateCopy], int, _Ranges | None] = ({}, 0, None)
    if count is None or len(bounds.results) > 2 or task.attr.reductions or not _may_have_copies(body, caps):
        return nothing
    candidates = _candidates(body, caps)
    others = [op for op in body.ops[:-1] if op.code is not ops.atomic]
    alone = not any(op.regions or op.code.effect not in ("pure", "read", "structure") for op in others)
    atomics = sum(op.code is ops.atomic for op in body.ops)
    if not alone or len(candidates) != 1 or atomics != 1 or len(body.ops) > _RANGED_LENGTH:
        return nothing
    ((ref, (kind, held)),) = candidates.items()
    if isinstance(ref, ArrayRef):
        return nothing
    total = length_of(ref)
    room = min(caps.shared_memory // 4, count // (_ITERATIONS * _LEAST_GROUPS)) - 1
    ranges = -(-total // room) if room > 0 else 0
    if not 1 < ranges <= _MOST_RANGES:
        return nothing
    length = -(-total // ranges)
    size = group_size(task, caps, ctx.options)
    if not task.attr.group_size and not ctx.options.group_size:
        size = max(size, min(_RANGED_SIZE, caps.max_group_size))
    groups = min(count // (_ITERATIONS * length), _RANGED_GROUPS, count // (size * MOST_AT_A_TIME))
    if groups < 2 * ranges:
        return nothing
    copy = PrivateCopy(kind, SharedRef(f"copy_0_{ref.name}", held, length + 1))
    return {ref: copy}, groups, _Ranges(ranges, length, size)


def _shared_bytes(task: Op) -> int:
    """Return the bytes of shared memory that the reductions of ``task`` may take."""
    attr: TaskAttr = task.attr
    return 1024 * sum(r.dtype.size for r in attr.reductions)


def _candidates(body: Region, caps: Capabilities) -> dict[Updated, tuple[str, DType]]:
    """Return the memory that ``body`` only updates (`only_updated`), with the kind of the atomics and the type of their carrier."""
    carriers = {ref: (kind, carrier(kind, ref.dtype, caps)) for ref, kind in only_updated(body).items()}
    return {ref: (kind, held.dtype) for ref, (kind, held) in carriers.items() if held is not None}
