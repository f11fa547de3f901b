"""Turns range tasks into loops over a chunk of their range, whose bounds the thread pool chooses."""

from __future__ import annotations

from spirograd.analysis.loop_costs import cost_of, costs_of_calls
from spirograd.base.dtypes import DType, i64
from spirograd.ir import ops
from spirograd.ir.nodes import ChunkAttr, Kernel, LoopAttr, Op, TaskAttr, accesses_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

_UPDATING = frozenset([*[code for code in ops.ALL if code.effect == "atomic"], ops.call_memory])


def chunk_tasks(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Make every range task one of kind "chunks".

    The body takes the bounds of a chunk and runs its iterations in a `for`, which carries the accumulators; ``finish`` follows the loop.
    Iterations of a parallel loop are independent by definition, so the `for` is marked as independent, except in grouped tasks, whose
    iterations use the same shared memory one after the other. Under `CompileOptions.deterministic`, chunks that are summed in floats are
    fixed.
    """
    return _ChunkTasks(kernel, ctx.options.deterministic).kernel(kernel)


class _ChunkTasks(Rewriter):
    def __init__(self, kernel: Kernel, deterministic: bool) -> None:
        super().__init__()
        self.deterministic = deterministic
        self.calls = costs_of_calls(kernel)
        self.handlers = {ops.task: self._task}

    def _task(self, op: Op) -> Op:
        if op.attr.kind != "range_for":
            return self.copy(op)
        b, grouped, reductions, (bounds, body, finish) = self.b, op.attr.grouped, op.attr.reductions, op.regions
        index = body.params[0].type
        assert isinstance(index, DType)
        begin, end = [b.cast(bound, index) for bound in b.begin(i64, i64)]
        initial = [b.const(r.start, r.dtype) for r in reductions]
        loop = LoopAttr(independent=not grouped, reductions=reductions, vectorise="no" if grouped else "")
        self.inline(finish, b.for_(begin, end, initial, body, loop))
        chunk = b.end()
        uncontended = cost_of(body, self.calls, uncontended=True) if _updates_memory(op) else 0
        fixed = self.deterministic and any(r.dtype.is_float and r.kind in ("add", "mul") for r in reductions)
        chunks = ChunkAttr(cost_of(body, self.calls), uncontended, fixed=fixed)
        attr = TaskAttr("chunks", op.attr.name, grouped=grouped, chunks=chunks)
        return b.append(Op(ops.task, op.type, (), attr, (bounds, chunk), op.loc))


def _updates_memory(task: Op) -> bool:
    """Return whether a range task has atomics, so that no other launch may update memory without them at the same time."""
    accessing = [op for region in task.regions[1:] for op in region.having(_UPDATING)]
    return any(effect == "atomic" for op in accessing for effect, _ in accesses_of(op))
