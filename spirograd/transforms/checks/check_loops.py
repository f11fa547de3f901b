"""Checks that loops ran to completion, for drivers that end loops early."""

from __future__ import annotations

import math

from spirograd.analysis.existence import constant_trips
from spirograd.base.artifact import FaultSite
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, i32
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.lowering.native_atomics import strategies_of
from spirograd.transforms.pass_context import PassContext

# If memory limits the number of thread slots, an invocation may run the iterations of many.
_REMEDY = (
    "; give adstacks more memory with `init(ad_memory_GB=)`, so that more invocations share the iterations, or run fewer iterations in a "
    "launch"
)


def check_loops(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Record a fault if a loop ended early, in tasks that may run ``caps.loop_limit`` iterations in one invocation.

    Mesa's llvmpipe ends all loops of an invocation after 65,535 iterations in total (seen with 22.3), and reports nothing.
    """
    limit = ctx.caps.loop_limit
    if not limit:
        return kernel
    message = f"this driver ends loops after {limit:,} iterations in one invocation, before this loop was complete"
    if any(isinstance(op.attr, AdstackRef) for op in kernel.walk()):
        message += _REMEDY
    return _CheckLoops(ctx.caps, message).kernel(kernel)


class _CheckLoops(Rewriter):
    def __init__(self, caps: Capabilities, message: str) -> None:
        super().__init__()
        self.message = message
        self.caps = caps
        self.limit = caps.loop_limit
        self.handlers = {ops.task: self._task, ops.for_: self._for, ops.while_: self._while}

    def _task(self, op: Op) -> Op:
        waits = any(strategy.loops for strategy in strategies_of(op, self.caps).values())
        if not waits and sum(inner_iterations(region) for region in op.regions) < self.limit:
            return self.b.append(op)
        return self.copy(op)

    def _for(self, op: Op) -> Op:
        """Carry the index that the next iteration would have."""
        begin, end, *initial = self.args(op)
        region = op.regions[0]
        following = Op(ops.param, begin.type)
        self.b.begin()
        for inner in region.ops[:-1]:
            self.visit(inner)
        step = self.b.emit(ops.add, region.params[0], self.b.const(1, _scalar(begin)), attr="wrap")
        body = Region((*region.params, following), self.b.end([*self.args(region.ops[-1]), step]).ops)
        assert isinstance(op.type, tuple)
        self.b.loc = op.loc
        new = self.b.append(Op(ops.for_, (*op.type, begin.type), (begin, end, *initial, begin), op.attr, (body,), op.loc))
        reached = self.b.emit(ops.result, new, attr=len(op.type), type=begin.type)
        self._check(self.b.emit(ops.ge, reached, end), op)
        return new

    def _while(self, op: Op) -> Op:
        """Move the condition into the body, and carry its result: the loop is complete once the condition has failed.

        The result is an integer, tested in two ways, because drivers assume the condition itself to be false after a loop.
        """
        condition, body = op.regions
        types = tuple(p.type for p in condition.params)
        *_, going = self.b.begin(*types, i32)
        test = self.b.end([self.b.emit(ops.ne, going, self.b.const(0))])
        *values, _ = self.b.begin(*types, i32)
        (holds,) = self.inline(condition, tuple(values))
        self.b.begin()
        once = self.b.end(self.inline(body, tuple(values)))
        self.b.begin()
        final = self.b.if_(holds, once, self.b.end(values))
        turn = self.b.end([*final, self.b.cast(holds, i32)])
        self.b.loc = op.loc
        initial = (*self.args(op), self.b.const(1))
        new = self.b.append(Op(ops.while_, (*types, i32), initial, op.attr, (test, turn), op.loc))
        going = self.b.emit(ops.result, new, attr=len(types), type=i32)
        self._check(self.b.emit(ops.lt, going, self.b.const(1)), op)
        return new

    def _check(self, done: Op, loop: Op) -> None:
        self.b.emit(ops.check, done, attr=FaultSite("loop", self.message, (), loop.loc), type=VOID)


def _scalar(op: Op) -> DType:
    assert isinstance(op.type, DType)
    return op.type


def inner_iterations(region: Region) -> float:
    """Return an upper bound of the iterations of all loops in ``region``, or infinity if none is known."""
    total = 0.0
    for op in region.ops:
        inside = sum(inner_iterations(r) for r in op.regions)
        if op.code is ops.for_:
            trips = constant_trips(*op.args[:2])
            total += math.inf if trips is None else trips * (1 + inside)
        else:
            total += math.inf if op.code is ops.while_ else inside
    return total
