"""Emits a range task whose iterations run in lockstep, as lanes of vectors."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.analysis.loop_costs import has_masks, lane_count
from spirograd.analysis.uniformity import Uniformity
from spirograd.base.dtypes import Type
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Reduction, Region
from spirograd.llvmgen.iterations import TaskEmitter
from spirograd.llvmgen.module import ModuleText
from spirograd.llvmgen.op_map import OP_MAP
from spirograd.transforms.loops.vector_loops import VectorLoop, build_vector_loop


class VectorIterations(TaskEmitter):
    """Emits the function ``name``, whose parallel loop is ``plan``, with ``reductions``."""

    def __init__(self, module: ModuleText, name: str, plan: Uniformity, reductions: Sequence[Reduction]) -> None:
        super().__init__(module, OP_MAP, name, {})
        self.plan, self.reductions = plan, reductions

    def iterations(
        self, index: Type, begin: str, end: str, types: Sequence[Type], initial: Sequence[str], body: Region, suffix: str
    ) -> list[str]:
        b, caps = Builder(), self.module.caps
        params = b.begin(index, index, *types)
        loop = VectorLoop(self.plan, self.reductions, lane_count(caps), has_masks(caps), self.module.plain, dict(self.ranges))
        region = b.end(build_vector_loop(b, loop, params[0], params[1], params[2:]))
        self.bind(params, [begin, end, *initial])
        return self.region(region)
