"""Choose for each loop over a chunk how it is vectorised: by LLVM, not at all, or as iterations in lockstep."""

from __future__ import annotations

from spirograd.analysis.chunk_loops import ChunkLoop
from spirograd.analysis.loop_costs import MASKED_LANES, has_masks, lane_count, lockstep, prefers_scalar_iterations
from spirograd.analysis.uniformity import is_adstack
from spirograd.base.dtypes import i64
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import ChunkAttr, Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def choose_vectors(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Set ``vectorise`` of loops over chunks, as `analysis.loop_costs` decides.

    In lockstep each iteration has a thread slot of its own. Where its vectors begin at multiples of their lanes, the pool hands out whole
    vectors: the bounds of a chunk are numbers of vectors then.
    """
    return _ChooseVectors(ctx).kernel(kernel)


class _ChooseVectors(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self.ctx = ctx
        self.task: Op | None = None
        self.around: Op | None = None  # the loop over rows around the current loop
        self.chunks = ChunkAttr(0)
        self.handlers = {ops.task: self._task, ops.for_: self._for}

    def _task(self, op: Op) -> Op:
        if op.attr.kind != "chunks":
            return self.copy(op)
        self.task, self.chunks = op, op.attr.chunks
        body = self.region(op.regions[1])
        if self.chunks.unit > 1:
            body = _in_units(body, self.chunks.unit)
        attr = replace(op.attr, chunks=self.chunks)
        return self.b.append(Op(op.code, op.type, (), attr, (op.regions[0], body, *op.regions[2:]), op.loc))

    def _for(self, op: Op) -> Op:
        if not op.attr.independent:
            outer, self.around = self.around, op
            new = self.copy(op)
            self.around = outer
            return new
        attr = replace(op.attr, vectorise=self._choice(op))
        return self.b.append(Op(op.code, op.type, self.args(op), attr, op.regions, op.loc, op.primal))

    def _choice(self, op: Op) -> str:
        assert self.task is not None
        (body,) = op.regions
        found = lockstep(ChunkLoop(self.task, op, self.around), self.ctx.options, has_masks(self.ctx.caps))
        if found is not None:
            lanes = lane_count(self.ctx.caps) if any(map(is_adstack, body.walk())) else 1
            self.chunks = replace(self.chunks, lanes=lanes, unit=MASKED_LANES if found.groups is not None else 1)
            return "lockstep"
        return "no" if prefers_scalar_iterations(body) else ""


def _in_units(body: Region, unit: int) -> Region:
    """``body`` for bounds that count units of iterations."""
    rewriter = Rewriter()
    params = rewriter.b.begin(i64, i64)
    size = rewriter.b.const(unit, i64)
    rewriter.inline(body, tuple([rewriter.b.emit(ops.mul, p, size) for p in params]))
    return rewriter.b.end()
