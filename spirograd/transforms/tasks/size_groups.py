"""Sizes of workgroups: larger ones where the program asks for too few invocations, and alternatives to the default that measurements may
choose, or the one that the options name."""

from __future__ import annotations

from spirograd.analysis.exchangeable import is_exchangeable_task
from spirograd.analysis.workgroups import TOGETHER, group_alternatives, is_half_full
from spirograd.base.options import FEW_GROUPS, GROUP_SIZES
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

# The workgroups of a task whose iterations are many times as many: they fill large GPUs, and stride.
_FEW = 1024


def size_groups(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Note the alternatives of tasks whose workgroups have the default size, if any size gives the same bits. Enlarge workgroups that are
    too small for a GPU, unless their threads work together."""
    return _SizeGroups(kernel, ctx).kernel(kernel) if ctx.caps.target.invocations and ctx.options.optimize else kernel


class _SizeGroups(Rewriter):
    def __init__(self, kernel: Kernel, ctx: PassContext) -> None:
        super().__init__()
        self.ctx = ctx
        self.bodies = {f.name: f.body for f in kernel.functions}
        self.handlers = {ops.task: self._task}

    def _task(self, op: Op) -> Op:
        attr, options, caps = op.attr, self.ctx.options, self.ctx.caps
        if attr.kind != "range_for" or not is_exchangeable_task(op, self.bodies):
            return self.b.append(op)
        if is_half_full(attr.group_size, caps):
            attr = replace(attr, group_size=min(TOGETHER, caps.max_group_size))
            return self.b.append(Op(op.code, op.type, (), attr, op.regions, op.loc))
        if attr.group_size or options.group_size:
            return self.b.append(op)
        names = group_alternatives(op, self.ctx.caps, _FEW)
        if not names:
            return self.b.append(op)
        chosen = options.alternative if options.alternative in names else ""
        size, most = GROUP_SIZES.get(chosen, 0), _FEW if chosen == FEW_GROUPS else attr.max_groups
        attr = replace(attr, alternatives=names, group_size=size, max_groups=most)
        return self.b.append(Op(op.code, op.type, (), attr, op.regions, op.loc))
