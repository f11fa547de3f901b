"""Guarded loops: parallel loops whose body is one `if`. Stream compaction lets the iterations that pass the guard fill whole vectors.

If few iterations pass, most lanes of a vector would be masked out. Therefore the loop becomes two loops: one evaluates the guard for a
strip of iterations and lists those that pass, the other runs the listed ones. Iterations of a parallel loop are independent, so none
changes the guard of another.
"""

from __future__ import annotations

from spirograd.base.dtypes import VOID
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region
from spirograd.ir.rewrite import Rewriter

_HARMLESS = ("pure", "read")


@dataclass(frozen=True, slots=True, eq=False)
class GuardedLoop:
    """A parallel loop with a guard. ``guard``: a region of the index that yields whether an iteration passes. ``body``: the region that
    iterations run if they pass."""

    guard: Region
    body: Region


def find_guarded_loop(body: Region) -> GuardedLoop | None:
    """Return a parallel loop as a guard and a body, or None if it has no guard, or no serial loop behind the guard."""
    branch = next((op for op in body.ops[:-1] if op.code.effect not in _HARMLESS), None)
    if branch is None or branch.code is not ops.if_:
        return None
    then, orelse = branch.regions
    if not then.codes & {ops.for_, ops.while_} or len(orelse.ops) > 1:
        return None
    if any(op.code.effect not in _HARMLESS for op in body.ops[body.ops.index(branch) + 1 : -1]):
        return None
    if not all(_stays(value, param, branch) for value, param in zip(body.results, body.params[1:])):
        return None
    condition = branch.args[0]
    test = needed_operations(body, {condition})
    if any(op.regions or not set(body.params[1:]).isdisjoint(op.args) for op in test):
        return None
    index = body.params[0]
    return GuardedLoop(Region((index,), (*test, Op(ops.yield_, VOID, (condition,)))), _Opened(branch).body(body))


def _stays(value: Op, param: Op, branch: Op) -> bool:
    """Return whether ``value``, yielded for ``param``, equals it in iterations that fail the guard."""
    return value is param or (value.code is ops.result and value.args[0] is branch and branch.regions[1].results[value.attr] is param)


def needed_operations(body: Region, wanted: set[Op], branch: Op | None = None) -> tuple[Op, ...]:
    """Return the operations of ``body`` that compute the values ``wanted``, in order; for ``branch``, without its condition."""
    needed: list[Op] = []
    for op in reversed(body.ops[:-1]):
        if op in wanted:
            needed.append(op)
            wanted.update(op.args if op is not branch else ())
            wanted.update(*[region.live_ins for region in op.regions])
    return tuple(reversed(needed))


class _Opened(Rewriter):
    """A rewriter that replaces the branch by its first region."""

    def __init__(self, branch: Op) -> None:
        super().__init__()
        self.branch = branch
        self.handlers = {ops.if_: self._if, ops.result: self._result}
        self.results: tuple[Op, ...] = ()

    def body(self, body: Region) -> Region:
        last = body.ops[-1]
        self.b.begin()
        self.visit_all(needed_operations(body, {self.branch, *last.args}, self.branch))
        return Region(body.params, self.b.end(self.args(last)).ops)

    def _if(self, op: Op) -> Op | None:
        if op is not self.branch:
            return self.copy(op)
        self.results = self.inline(op.regions[0], ())
        return None

    def _result(self, op: Op) -> Op:
        return self.results[op.attr] if op.args[0] is self.branch else self.copy(op)
