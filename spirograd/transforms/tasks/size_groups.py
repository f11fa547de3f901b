"""Sizes of workgroups: larger ones where the program asks for too few invocations, smaller ones for long bodies, and alternatives to the
default that measurements may choose, or the one that the options name."""

from __future__ import annotations

from spirograd.analysis.exchangeable import is_exchangeable_task
from spirograd.analysis.workgroups import TOGETHER, group_alternatives, is_half_full, preferred_size
from spirograd.base.options import FEW_GROUPS, GROUP_SIZES
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, TaskAttr
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

# The workgroups of a task whose iterations are many times as many: they fill large GPUs, and stride.
_FEW = 1024


def size_groups(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Note the alternatives of tasks whose workgroups have the default size, if any size gives the same bits. Enlarge workgroups that are
    too small for a GPU, unless their threads work together. Give long bodies small workgroups."""
    return _SizeGroups(kernel, ctx).kernel(kernel) if ctx.caps.target.invocations and ctx.options.optimize else kernel


class _SizeGroups(Rewriter):
    def __init__(self, kernel: Kernel, ctx: PassContext) -> None:
        super().__init__()
        self.ctx = ctx
        self.bodies = {f.name: f.body for f in kernel.functions}
        self.handlers = {ops.task: self._task}

    def _task(self, op: Op) -> Op:
        attr = self._sized(op) if op.attr.kind == "range_for" else op.attr
        return self.b.append(op if attr is op.attr else Op(op.code, op.type, (), attr, op.regions, op.loc))

    def _sized(self, op: Op) -> TaskAttr:
        """Return the attributes of a range task with its size and its alternatives."""
        attr, options, caps = op.attr, self.ctx.options, self.ctx.caps
        exchangeable = is_exchangeable_task(op, self.bodies)
        if exchangeable and is_half_full(attr.group_size, caps):
            return replace(attr, group_size=min(TOGETHER, caps.max_group_size))
        if attr.group_size or options.group_size:
            return attr
        preferred = preferred_size(op, caps)
        names = group_alternatives(op, caps, preferred, _FEW) if exchangeable else ()
        chosen = options.alternative if options.alternative in names else ""
        size, most = GROUP_SIZES.get(chosen, preferred), _FEW if chosen == FEW_GROUPS else attr.max_groups
        return replace(attr, alternatives=names, group_size=size, max_groups=most)
