"""Vectorisation of loops over chunks: they become vector loops, are left to LLVM, or are marked as scalar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spirograd.analysis.exchangeable import is_exchangeable
from spirograd.analysis.loop_costs import MASKED_LANES, LaneGain, has_masks, lane_count, lane_gain, lanes_of, prefers_scalar_iterations
from spirograd.analysis.uniformity import Uniformity, is_adstack
from spirograd.base.dtypes import i64
from spirograd.base.options import LANES, NO_LANES
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.chunk_loops import ChunkLoop, index_ranges
from spirograd.ir.nodes import ChunkAttr, Kernel, LoopAttr, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.vector_functions import has_vector_forms
from spirograd.transforms.loops.chunk_loop_rewriter import ChunkLoopRewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.dce import dce

if TYPE_CHECKING:
    from spirograd.transforms.loops.list_iterations import ListedNest


def vectorise(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Replace loops over chunks by vector loops where `analysis.loop_costs` says so, and set ``vectorise`` of the others.

    In a vector loop each iteration has a thread slot of its own. If vectors begin at multiples of their lanes, the pool assigns whole
    vectors, so the bounds of a chunk count vectors.
    """
    rewriter = _Vectorise(kernel, ctx)
    new = rewriter.kernel(kernel)
    return dce(new, ctx) if rewriter.results or rewriter.lists else new


class _Vectorise(ChunkLoopRewriter):
    def __init__(self, kernel: Kernel, ctx: PassContext) -> None:
        super().__init__()
        self.ctx = ctx
        self.functions = kernel.functions
        self.bodies = {f.name: f.body for f in kernel.functions}
        self.alternatives: set[str] = set()  # of the current task
        self.chunks = ChunkAttr(0)
        self.lists = False
        self.results: dict[Op, Sequence[Op]] = {}  # results of loops that were vectorised
        self.handlers[ops.result] = self._result

    def chunk_task(self, op: Op) -> Op:
        self.chunks = op.attr.chunks
        self.alternatives = set()
        bodies = [self.region(body) for body in op.regions[1:]]
        if self.chunks.unit > 1:
            bodies = [_in_units(body, self.chunks.unit) for body in bodies]
        attr = replace(op.attr, chunks=self.chunks, alternatives=tuple(sorted(self.alternatives)))
        return self.b.append(Op(op.code, op.type, (), attr, (op.regions[0], *bodies), op.loc))

    def chunk_loop(self, loop: ChunkLoop) -> Op | None:
        op = loop.loop
        fixed = self.chunks.fixed
        nests = [] if fixed else self._listed_nests(loop)
        if nests and self._lists(loop):
            return self._list(loop, nests)
        if not op.attr.independent or (nests and not is_exchangeable(loop.body, self.bodies)):
            return self.keep(op)
        plan = lanes_of(loop, self.ctx.options, has_masks(self.ctx.caps), sums=fixed)
        # The number of lanes with adstacks depends on the memory, and so would the order of their sums.
        in_order = fixed and any(map(is_adstack, loop.body.walk()))
        if plan is not None and not in_order and (fixed or self._runs_in_lanes(loop, plan)):
            self._vectorise(loop, plan)
            return None
        if not prefers_scalar_iterations(loop.body):
            return self.keep(op)
        return self.b.append(Op(op.code, op.type, self.args(op), replace(op.attr, vectorise="no"), op.regions, op.loc, op.primal))

    def _listed_nests(self, loop: ChunkLoop) -> list[ListedNest]:
        """See `find_listed_nests`, which is imported when a loop has an inner loop."""
        if ops.for_ not in loop.body.codes:
            return []
        from spirograd.transforms.loops.list_iterations import find_listed_nests

        return find_listed_nests(loop, self.ctx.options, self.ctx.caps)

    def _lists(self, loop: ChunkLoop) -> bool:
        """Return whether to list iterations of the guarded nests of ``loop``, unless the options name an alternative. Note the
        alternatives: lists keep the order of atomics, as iterations one by one do, but lanes do not."""
        if not is_exchangeable(loop.body, self.bodies, in_order=True):
            return True
        others = {NO_LANES}
        if loop.loop.attr.independent and is_exchangeable(loop.body, self.bodies):
            masks = has_masks(self.ctx.caps)
            plan = lanes_of(loop, self.ctx.options, masks)
            gain = LaneGain(False, False) if plan is None else lane_gain(plan, masks)
            others = {LANES, NO_LANES} if gain.is_unsure else {LANES if gain.runs_in_lanes else NO_LANES}
        self.alternatives |= others
        return self.ctx.options.alternative not in others

    def _list(self, loop: ChunkLoop, nests: Sequence[ListedNest]) -> Op:
        """Build ``loop`` with its ``nests`` listed."""
        from spirograd.transforms.loops.list_iterations import ListIterations

        op = loop.loop
        rewriter = ListIterations(self.b, nests, lane_count(self.ctx.caps), self._vector_functions(), index_ranges(loop))
        attr = LoopAttr(vectorise="vectors")
        self.lists = True
        body = rewriter.region(loop.body)
        rewriter.release()
        return self.b.append(Op(op.code, op.type, self.args(op), attr, (body,), op.loc, op.primal))

    def _vector_functions(self) -> frozenset[str]:
        return frozenset([f.name for f in self.functions if has_vector_forms(f)])

    def _runs_in_lanes(self, loop: ChunkLoop, plan: Uniformity) -> bool:
        """Decide by the cost model, unless the options select the alternative. Record the alternative if it is worth a measurement."""
        gain = lane_gain(plan, has_masks(self.ctx.caps))
        alternative = NO_LANES if gain.runs_in_lanes else LANES
        if not gain.is_unsure or not is_exchangeable(loop.body, self.bodies):
            return gain.runs_in_lanes
        self.alternatives.add(alternative)
        return gain.runs_in_lanes != (self.ctx.options.alternative == alternative)

    def _vectorise(self, loop: ChunkLoop, plan: Uniformity) -> None:
        """Build the vector loop of ``loop`` here. Imported here because many loops are vectorised by LLVM, or not at all."""
        from spirograd.transforms.loops.vector_loops import VectorLoop, build_vector_loop

        op, caps = loop.loop, self.ctx.caps
        adstacks = any(map(is_adstack, plan.body.walk()))
        self.chunks = replace(self.chunks, lanes=lane_count(caps) if adstacks else 1, unit=MASKED_LANES if plan.groups is not None else 1)
        vectors = VectorLoop(plan, op.attr.reductions, lane_count(caps), has_masks(caps), self._vector_functions(), index_ranges(loop))
        begin, end, *initial = self.args(op)
        self.results[op] = build_vector_loop(self.b, vectors, begin, end, initial)

    def _result(self, op: Op) -> Op:
        results = self.results.get(op.args[0])
        return self.copy(op) if results is None else results[op.attr]


def _in_units(body: Region, unit: int) -> Region:
    """Return ``body`` for bounds that count units of iterations."""
    rewriter = Rewriter()
    params = rewriter.b.begin(i64, i64)
    size = rewriter.b.const(unit, i64)
    rewriter.inline(body, tuple([rewriter.b.emit(ops.mul, p, size) for p in params]))
    return rewriter.b.end()
