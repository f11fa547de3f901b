"""Atomics of a parallel loop on few elements: on a copy for each workgroup first, then one atomic for each element and workgroup.

Histograms are such loops. Where many invocations update few elements, atomics on memory wait for each other; those on shared memory are
faster by far, and less contended. To clear the copies and to add them up pays where there are many iterations for each of their elements,
so both numbers must be known when the kernel is compiled.
"""

from __future__ import annotations

import math

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, i32, u32
from spirograd.base.records import dataclass, replace
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import FieldRef, Kernel, Op, PrivateCopy, Region, SharedRef, TaskAttr, accesses_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.context import PassContext
from spirograd.transforms.tasks.carriers import Carrier, carrier

# The most elements of the copies of a task: 32 KiB, with which a multiprocessor of an H100 holds seven workgroups.
_MOST_ELEMENTS = 8192
# Iterations for each element of the copies of all workgroups, and how many workgroups there must be then, and may be.
_ITERATIONS, _LEAST_GROUPS, _MOST_GROUPS = 8, 256, 1024


def private_copies(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Give tasks the copies that pay (`TaskAttr.copies`), on targets that have workgroups.

    Needs: the results of the atomics are unused, all of one field are of one kind, and nothing else of the task accesses the field. An
    array argument is taken not to overlap the field: a loop that updates an element and reads it as well has no defined result. An update
    that is out of range changes nothing.
    """
    return _PrivateCopies(ctx.caps).kernel(kernel) if ctx.caps.target.invocations and ctx.options.optimize else kernel


@dataclass(frozen=True, slots=True)
class _Extents:
    """The elements of a field, numbered in row-major order."""

    ref: FieldRef

    @property
    def all(self) -> tuple[int, ...]:
        return (*self.ref.shape, *self.ref.element_shape)

    @property
    def origin(self) -> tuple[int, ...]:
        return (*(self.ref.layout.origin or (0,) * len(self.ref.shape)), *(0,) * len(self.ref.element_shape))

    def number(self, b: Builder, indices: tuple[Op, ...]) -> Op:
        """The number of an element (i32); the number of elements if some index is far out of range."""
        total: Op | None = None
        for index, extent, first in zip(indices, self.all, self.origin):
            term = _plus(b, b.cast(index, i32), -first)
            total = term if total is None else b.emit(ops.add, b.emit(ops.mul, total, b.const(extent)), term)
        total = total or b.const(0)
        inside = b.emit(ops.min_, b.emit(ops.bitcast, total, type=u32), b.const(math.prod(self.all), u32))
        return b.emit(ops.bitcast, inside, type=i32)

    def indices(self, b: Builder, number: Op) -> tuple[Op, ...]:
        """Those of an element."""
        found: list[Op] = []
        for extent, first in reversed(list(zip(self.all, self.origin))):
            last = len(found) == len(self.all) - 1
            index = number if last else b.emit(ops.irem, number, b.const(extent))
            number = number if last else b.emit(ops.idiv, number, b.const(extent))
            found.insert(0, _plus(b, index, first))
        return tuple(found)


def _plus(b: Builder, index: Op, offset: int) -> Op:
    return b.emit(ops.add, index, b.const(offset)) if offset else index


class _PrivateCopies(Rewriter):
    def __init__(self, caps: Capabilities) -> None:
        super().__init__()
        self.caps = caps
        self.copies: dict[FieldRef, PrivateCopy] = {}
        self.handlers = {ops.task: self._task, ops.atomic: self._atomic}

    def _task(self, op: Op) -> Op:
        groups = 0
        if op.attr.kind == "range_for" and not op.attr.grouped:
            self.copies, groups = _worthwhile(op, self.caps)
        if not self.copies:
            return self.b.append(op)
        bounds, body, finish = op.regions
        body = self.region(body)
        flushes = [self._flush(ref, copy) for ref, copy in self.copies.items()]
        attr = replace(op.attr, copies=tuple(self.copies.values()), max_groups=groups)
        self.copies = {}
        return self.b.append(Op(ops.task, VOID, (), attr, (bounds, body, finish, *flushes), op.loc))

    def _atomic(self, op: Op) -> Op:
        kind, ref = op.attr
        copy = self.copies.get(ref) if isinstance(ref, FieldRef) else None
        if copy is None:
            return self.copy(op)
        *indices, value = self.args(op)
        held = self._carrier(ref, kind).hold(self.b, value)
        return self.b.atomic(kind, copy.shared, _Extents(ref).number(self.b, tuple(indices)), held)

    def _flush(self, ref: FieldRef, copy: PrivateCopy) -> Region:
        """Updates memory by an element of a copy, given its number and value."""
        b = self.b
        number, held = b.begin(i32, copy.shared.dtype)
        value = self._carrier(ref, copy.kind).element(b, held)
        b.atomic(copy.kind, ref, *_Extents(ref).indices(b, number), value)
        return b.end()

    def _carrier(self, ref: FieldRef, kind: str) -> Carrier:
        found = carrier(kind, ref.dtype, self.caps)
        assert found is not None, "`_candidates` takes no others"
        return found


def _worthwhile(task: Op, caps: Capabilities) -> tuple[dict[FieldRef, PrivateCopy], int]:
    """The copies that ``task`` shall have, and how many workgroups it shall have at most then."""
    bounds, body = task.regions[:2]
    count = _count(bounds)
    room = min(_MOST_ELEMENTS, (caps.shared_memory - _shared_bytes(task)) // 4, count // (_ITERATIONS * _LEAST_GROUPS))
    if not room or ops.atomic not in body.codes:
        return {}, 0
    # On llvmpipe, which runs few threads, a histogram takes 1.15 times as long with copies.
    if caps.cpu_driver or (caps.loop_limit and not body.codes.isdisjoint((ops.for_, ops.while_))):
        return {}, 0  # where loops end early, a body with loops runs in an invocation of its own for each iteration
    copies: dict[FieldRef, PrivateCopy] = {}
    elements = 0
    for ref, (kind, held) in _candidates(body, caps).items():
        length = math.prod(_Extents(ref).all) + 1  # the last is for what is out of range
        if elements + length <= room:
            elements += length
            copies[ref] = PrivateCopy(kind, SharedRef(f"copy_{len(copies)}_{ref.name}", held, length))
    return copies, min(count // (_ITERATIONS * elements), _MOST_GROUPS) if copies else 0


def _count(bounds: Region) -> int:
    """The number of iterations; 0 if it is not constant."""
    begin, end = bounds.results[:2]
    return max(int(end.attr) - int(begin.attr), 0) if begin.code is ops.const and end.code is ops.const else 0


def _shared_bytes(task: Op) -> int:
    """Shared memory that the reductions of ``task`` may take."""
    attr: TaskAttr = task.attr
    return 1024 * sum(r.dtype.size for r in attr.reductions)


def _candidates(body: Region, caps: Capabilities) -> dict[FieldRef, tuple[str, DType]]:
    """The fields that ``body`` accesses by atomics of one kind only, with that kind, and the type of what holds their elements."""
    everything = list(body.walk())
    used = {a for op in everything for a in op.args}
    found: dict[FieldRef, set[str]] = {}
    for op in everything:
        for _, ref in accesses_of(op):
            if isinstance(ref, FieldRef):
                found.setdefault(ref, set()).add(op.attr[0] if op.code is ops.atomic and op not in used else "")
    keys = [(ref.key, ref.role) for ref in found]
    candidates = {}
    for ref, kinds in found.items():
        held = carrier(min(kinds), ref.dtype, caps) if len(kinds) == 1 and keys.count((ref.key, ref.role)) == 1 else None
        if held is not None:
            candidates[ref] = min(kinds), held.dtype
    return candidates
