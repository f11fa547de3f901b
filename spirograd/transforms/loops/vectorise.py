"""Make vectors of loops over chunks: as iterations in lockstep, or leave them to LLVM, or say that vectors do not pay."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.analysis.loop_costs import MASKED_LANES, has_masks, lane_count, lockstep, prefers_scalar_iterations
from spirograd.analysis.uniformity import Uniformity, is_adstack
from spirograd.base.dtypes import i64
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.chunk_loops import ChunkLoop, bound_range, note_ranges
from spirograd.ir.integer_ranges import Range
from spirograd.ir.nodes import ChunkAttr, Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.vector_functions import has_vector_forms
from spirograd.transforms.loops.vector_loops import VectorLoop, build_vector_loop
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.dce import dce


def vectorise(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Replace loops over chunks by vector loops where `analysis.loop_costs` decides so; set ``vectorise`` of the others.

    In lockstep each iteration has a thread slot of its own. Where its vectors begin at multiples of their lanes, the pool hands out whole
    vectors: the bounds of a chunk are numbers of vectors then.
    """
    rewriter = _Vectorise(kernel, ctx)
    new = rewriter.kernel(kernel)
    return dce(new, ctx) if rewriter.results else new


class _Vectorise(Rewriter):
    def __init__(self, kernel: Kernel, ctx: PassContext) -> None:
        super().__init__()
        self.ctx = ctx
        self.functions = frozenset([f.name for f in kernel.functions if has_vector_forms(f)])
        self.task: Op | None = None
        self.around: Op | None = None  # the loop over rows around the current loop
        self.chunks = ChunkAttr(0)
        self.ranges: dict[Op, Range] = {}
        self.results: dict[Op, Sequence[Op]] = {}  # of loops that were vectorised
        self.handlers = {ops.task: self._task, ops.for_: self._for, ops.result: self._result}

    def _task(self, op: Op) -> Op:
        if op.attr.kind != "chunks":
            return self.copy(op)
        self.task, self.chunks = op, op.attr.chunks
        self.ranges = dict.fromkeys(op.regions[1].params, bound_range(op))
        bodies = [self.region(op.regions[1]), *op.regions[2:]]
        if self.chunks.unit > 1:
            bodies = [_in_units(body, self.chunks.unit) for body in bodies]
        attr = replace(op.attr, chunks=self.chunks)
        return self.b.append(Op(op.code, op.type, (), attr, (op.regions[0], *bodies), op.loc))

    def _for(self, op: Op) -> Op | None:
        note_ranges(self.ranges, op)
        if not op.attr.independent:
            outer, self.around = self.around, op
            new = self.copy(op)
            self.around = outer
            return new
        assert self.task is not None
        plan = lockstep(ChunkLoop(self.task, op, self.around), self.ctx.options, has_masks(self.ctx.caps))
        if plan is not None:
            self._vectorise(op, plan)
            return None
        attr = replace(op.attr, vectorise="no" if prefers_scalar_iterations(op.regions[0]) else "")
        return self.b.append(Op(op.code, op.type, self.args(op), attr, op.regions, op.loc, op.primal))

    def _vectorise(self, op: Op, plan: Uniformity) -> None:
        """Build the vector loop of ``op`` here."""
        caps = self.ctx.caps
        adstacks = any(map(is_adstack, plan.body.walk()))
        self.chunks = replace(self.chunks, lanes=lane_count(caps) if adstacks else 1, unit=MASKED_LANES if plan.groups is not None else 1)
        loop = VectorLoop(plan, op.attr.reductions, lane_count(caps), has_masks(caps), self.functions, self.ranges)
        begin, end, *initial = self.args(op)
        self.results[op] = build_vector_loop(self.b, loop, begin, end, initial)

    def _result(self, op: Op) -> Op:
        results = self.results.get(op.args[0])
        return self.copy(op) if results is None else results[op.attr]


def _in_units(body: Region, unit: int) -> Region:
    """``body`` for bounds that count units of iterations."""
    rewriter = Rewriter()
    params = rewriter.b.begin(i64, i64)
    size = rewriter.b.const(unit, i64)
    rewriter.inline(body, tuple([rewriter.b.emit(ops.mul, p, size) for p in params]))
    return rewriter.b.end()
