"""Copies for blocks of iterations, on the CPU: a parallel loop that does little but update few elements of integers, such as a histogram.

An atomic takes ten times as long as a load, an addition and a store, and threads that update the same elements wait for each other. So the
iterations are divided into large blocks. Each block updates a copy of the memory on the stack of its thread, without atomics, and then
updates the memory once for each element of the copy. This pays if there are many iterations for each element, which the loop may learn
when it runs: then there are two tasks, one over blocks and one over iterations, and one of them has none.

Results have the same bits, because updates of integers commute. An update that is out of range changes nothing.
"""

from __future__ import annotations

from spirograd.analysis.existence import constant_trips
from spirograd.analysis.loop_costs import is_dominated_by_atomics
from spirograd.base.dtypes import VOID, DType, i32, i64
from spirograd.base.records import dataclass, replace
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Region, SharedRef
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.tasks.updated_memory import Extents, Updated, length_of, only_updated

# The largest number of bytes of a copy: with the data that stream past, it stays in the second-level cache of a core.
_MOST_BYTES = 256 << 10
# The least number of iterations of a block for each element of the copy, whose atomic at the end takes as long as ten iterations, and in
# all. There are at least two blocks.
_ITERATIONS, _LEAST_ITERATIONS = 64, 1 << 15
# The largest number of operations in the body of a loop that has copies.
_LONGEST = 64
_EFFECTS = frozenset(("pure", "read", "write", "atomic", "structure"))


def block_copies(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Add a task over blocks, or put it in place of the loop, where copies pay, on targets without workgroups."""
    return kernel if ctx.caps.target.invocations or not ctx.options.optimize else _BlockCopies().kernel(kernel)


@dataclass(frozen=True, slots=True)
class _Copied:
    """Memory that a loop updates by atomics of ``kind``, and its copy. The last element of the copy takes updates out of range."""

    ref: Updated
    kind: str
    copy: SharedRef

    @property
    def most(self) -> int:
        """Return the largest number of elements that the memory may have."""
        return self.copy.length - 1


class _BlockCopies(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.copied: _Copied | None = None
        self.handlers = {ops.task: self._task, ops.atomic: self._atomic}

    def _task(self, op: Op) -> Op:
        copied = _copied(op)
        if copied is None:
            return self.b.append(op)
        known = constant_trips(*op.regions[0].results) if isinstance(copied.ref, FieldRef) else None
        if known is not None and known < 2 * max(_ITERATIONS * copied.most, _LEAST_ITERATIONS):
            return self.b.append(op)
        blocks = self._over_blocks(op, copied)
        return blocks if known is not None else self._over_iterations(op, copied)

    def _over_blocks(self, op: Op, copied: _Copied) -> Op:
        """Append the task over blocks. A block is a group of one thread, with memory of its own."""
        b, (bounds, body, _) = self.b, op.regions
        b.begin()
        plan = _Plan(self, bounds, copied)
        new_bounds = b.end([b.const(0, i64), b.emit(ops.select, plan.pays, plan.blocks, b.const(0, i64))])
        (number,) = b.begin(i64)
        plan = _Plan(self, bounds, copied)
        self._fill(copied, plan.elements)
        self._run(plan, number, body, copied)
        self._flush(copied, plan.elements)
        new_body = b.end()
        b.begin()
        attr = replace(op.attr, name=f"{op.attr.name}_blocks", grouped=True, group_size=1)
        return b.append(Op(ops.task, VOID, (), attr, (new_bounds, new_body, b.end()), op.loc))

    def _over_iterations(self, op: Op, copied: _Copied) -> Op:
        """Append the task ``op`` without iterations if those of the task over blocks have run."""
        b, (bounds, body, finish) = self.b, op.regions
        b.begin()
        plan = _Plan(self, bounds, copied)
        new_bounds = b.end([plan.begin, b.emit(ops.select, plan.pays, plan.begin, plan.end)])
        return b.append(Op(ops.task, VOID, (), op.attr, (new_bounds, body, finish), op.loc))

    def _fill(self, copied: _Copied, elements: Op) -> None:
        """Set the elements of the copy to the identity."""
        b = self.b
        zero, identity = b.const(0), self._identity(copied)
        (k,) = b.begin(i32)
        b.store(copied.copy, k, identity)
        b.for_(zero, elements, (), b.end())

    def _run(self, plan: _Plan, number: Op, body: Region, copied: _Copied) -> None:
        """Run the iterations of block ``number``."""
        b, index = self.b, plan.begin.type
        assert isinstance(index, DType)
        first = b.emit(ops.add, b.cast(plan.begin, i64), b.emit(ops.mul, number, plan.size))
        last = b.emit(ops.min_, b.emit(ops.add, first, plan.size), b.cast(plan.end, i64))
        low, high = b.cast(first, index), b.cast(last, index)
        (i,) = b.begin(index)
        self.copied = copied
        self.inline(body, (i,), clone=True)
        self.copied = None
        b.for_(low, high, (), b.end())

    def _flush(self, copied: _Copied, elements: Op) -> None:
        """Update the memory by the elements of the copy that have been updated, or that updates have left as they were."""
        b = self.b
        zero, identity = b.const(0), self._identity(copied)
        (k,) = b.begin(i32)
        value = b.load(copied.copy, k)
        updated = b.emit(ops.ne, value, identity)
        b.begin()
        b.atomic(copied.kind, copied.ref, *Extents(b, copied.ref).indices(k), value)
        then = b.end()
        b.begin()
        b.if_(updated, then, b.end())
        b.for_(zero, elements, (), b.end())

    def _identity(self, copied: _Copied) -> Op:
        t = copied.copy.dtype
        return self.b.const(ops.identity(copied.kind, t), t)

    def _atomic(self, op: Op) -> Op:
        if self.copied is None:
            return self.copy(op)
        b, (kind, ref) = self.b, op.attr
        *indices, value = self.args(op)
        number = Extents(b, ref).number(tuple(indices), self.copied.most)
        return b.update(kind, self.copied.copy, number, value)


class _Plan:
    """Values of a launch, emitted at the cursor: the bounds of the loop, the number of ``elements`` (i32), whether copies pay, and the
    number of ``blocks`` and the ``size`` of each (i64)."""

    def __init__(self, rewriter: Rewriter, bounds: Region, copied: _Copied) -> None:
        b = rewriter.b
        self.begin, self.end = rewriter.inline(bounds, (), clone=True)
        self.elements = Extents(b, copied.ref).total()
        n = b.emit(ops.sub, b.cast(self.end, i64), b.cast(self.begin, i64))
        least = b.emit(ops.mul, b.cast(self.elements, i64), b.const(_ITERATIONS, i64))
        least = b.emit(ops.max_, least, b.const(_LEAST_ITERATIONS, i64))
        self.blocks = b.emit(ops.idiv, n, least)
        self.pays = b.emit(ops.ge, self.blocks, b.const(2, i64))
        if isinstance(copied.ref, ArrayRef):
            self.pays = b.emit(ops.and_, self.pays, b.emit(ops.le, self.elements, b.const(copied.most)))
        count = b.emit(ops.max_, self.blocks, b.const(1, i64))
        rounded = b.emit(ops.add, n, b.emit(ops.sub, count, b.const(1, i64)))
        self.size = b.emit(ops.idiv, rounded, count)


def _copied(task: Op) -> _Copied | None:
    """Return the memory of which the blocks of ``task`` may have copies, or None if there is none."""
    attr = task.attr
    if attr.kind != "range_for" or attr.grouped or attr.reductions or attr.copies or len(task.regions[0].results) > 2:
        return None
    body = task.regions[1]
    everything = list(body.walk())
    if len(everything) > _LONGEST or not all(op.code is ops.if_ or op.code.effect in _EFFECTS for op in everything):
        return None
    updated = only_updated(body)
    atomics = {op.attr[1] for op in everything if op.code is ops.atomic}
    if len(atomics) != 1 or not atomics <= updated.keys() or not is_dominated_by_atomics(body):
        return None
    ((ref, kind),) = [(ref, kind) for ref, kind in updated.items() if ref in atomics]
    most = _MOST_BYTES // ref.dtype.size
    length = length_of(ref) if isinstance(ref, FieldRef) else most
    if not ref.dtype.is_int or kind not in ops.COMBINE or not 1 < length <= most:
        return None
    return _Copied(ref, kind, SharedRef(f"copy_{ref.name}", ref.dtype, length + 1))
