"""Jump threading: moves a branch on a condition that an earlier branch computes into that branch.

The front end traces ``a and b``, where ``b`` loads or calls, as a branch on ``a`` that yields ``b``, else False. A later branch tests the
result. Inside of the first branch, it can use the values that this branch has computed, so common subexpressions of ``b`` and the body,
such as the distance of two particles, are computed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from spirograd.base.dtypes import u1
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

# Each round threads a branch through one more operand of a chain of ``and``.
_ROUNDS = 4


def thread_branches(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Move each branch whose else part computes nothing into the branch that computes its condition, if this condition is False in the
    other part and has no other use. Return the same object if there is no such branch."""
    for _ in range(_ROUNDS):
        if ops.if_ not in kernel.codes:
            break
        threaded = _Thread(Counter(arg for op in kernel.walk() for arg in op.args)).kernel(kernel)
        if threaded is kernel:
            break
        kernel = threaded
    return kernel


class _Thread(Rewriter):
    """A rewriter that moves branches. ``uses``: the number of uses of each value."""

    def __init__(self, uses: Counter[Op]) -> None:
        super().__init__()
        self.uses = uses
        self.conditions: dict[Op, Op] = {}  # a branch -> the branch that computes its condition
        self.moved: set[Op] = set()  # these branches, and their results
        self.handlers |= {ops.if_: self._if, ops.result: self._result}

    def visit_all(self, body: Sequence[Op]) -> None:
        """Find the pairs of branches of a region before its operations are visited."""
        first: Op | None = None
        result: Op | None = None
        for op in body:
            if op.code is ops.if_:
                if result is not None and first is not None and op.args[0] is result and _passes_on(op) and op.attr == first.attr:
                    self.conditions[op] = first
                    self.moved |= {first, result}
                    first = None
                else:
                    first = op if op.type == (u1,) and _is_false(op.regions[1]) and self.uses[op] == 1 else None
                result = None
            elif first is not None and op.code is ops.result and op.args[0] is first:
                result = op if self.uses[op] == 1 else None
            elif op.code.effect != "pure" and op.code is not ops.result:
                first = result = None
        super().visit_all(body)

    def _result(self, op: Op) -> Op | None:
        return None if op in self.moved else self.copy(op)

    def _if(self, op: Op) -> Op | None:
        if op in self.moved:
            return None
        first = self.conditions.get(op)
        if first is None:
            return self.copy(op)
        condition = self.value(first.args[0])
        self.b.begin()
        (inner,) = self.inline(first.regions[0], ())
        regions = tuple([self.region(region) for region in op.regions])
        then = self.b.end(self.b.if_(inner, *regions, attr=op.attr))
        self.b.begin()
        orelse = self.b.end(self.args(op.regions[1].ops[-1]))
        return self.b.emit(ops.if_, condition, attr=op.attr, type=op.type, regions=(then, orelse))


def _passes_on(branch: Op) -> bool:
    """Return whether the else part of a branch computes nothing."""
    return len(branch.regions[1].ops) == 1


def _is_false(region: Region) -> bool:
    (value,) = region.results
    return value.code is ops.const and value.attr is False
