"""Parallel loops that do nothing in the iterations that fail a test: which iterations pass is found first, and those run in full vectors.

Lanes of which few pass the test would compute for nothing. So the loop is cut in two (stream compaction): one loop tests the iterations of
a strip and lists those that pass, the other one runs these. Iterations of a parallel loop are independent, so what one of them does changes
no test of another.
"""

from __future__ import annotations

from spirograd.base.dtypes import VOID
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region
from spirograd.ir.rewrite import Rewriter

_HARMLESS = ("pure", "read")


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """``test``: a region of the index that yields whether an iteration passes. ``body``: what those iterations do that pass."""

    test: Region
    body: Region


def find_gate(body: Region) -> Gate | None:
    """The gate of a parallel loop; None if it has none, or what is behind it has no loop."""
    gate = next((op for op in body.ops[:-1] if op.code.effect not in _HARMLESS), None)
    if gate is None or gate.code is not ops.if_:
        return None
    then, orelse = gate.regions
    if not then.codes & {ops.for_, ops.while_} or len(orelse.ops) > 1:
        return None
    if any(op.code.effect not in _HARMLESS for op in body.ops[body.ops.index(gate) + 1 : -1]):
        return None
    if not all(_stays(value, param, gate) for value, param in zip(body.results, body.params[1:])):
        return None
    condition = gate.args[0]
    test = _needed(body, {condition})
    if any(op.regions or not set(body.params[1:]).isdisjoint(op.args) for op in test):
        return None
    index = body.params[0]
    return Gate(Region((index,), (*test, Op(ops.yield_, VOID, (condition,)))), _Opened(gate).body(body))


def _stays(value: Op, param: Op, gate: Op) -> bool:
    """Whether ``value``, yielded for ``param``, is that where the test fails."""
    return value is param or (value.code is ops.result and value.args[0] is gate and gate.regions[1].results[value.attr] is param)


def _needed(body: Region, wanted: set[Op], gate: Op | None = None) -> tuple[Op, ...]:
    """The operations of ``body`` that compute what is ``wanted``, in order; for ``gate``, without its test."""
    found: list[Op] = []
    for op in reversed(body.ops[:-1]):
        if op in wanted:
            found.append(op)
            wanted.update(op.args if op is not gate else ())
            wanted.update(*[region.live_ins for region in op.regions])
    return tuple(reversed(found))


class _Opened(Rewriter):
    """Puts what is behind the gate in its place."""

    def __init__(self, gate: Op) -> None:
        super().__init__()
        self.gate = gate
        self.handlers = {ops.if_: self._if, ops.result: self._result}
        self.results: tuple[Op, ...] = ()

    def body(self, body: Region) -> Region:
        last = body.ops[-1]
        self.b.begin()
        self.visit_all(_needed(body, {self.gate, *last.args}, self.gate))
        return Region(body.params, self.b.end(self.args(last)).ops)

    def _if(self, op: Op) -> Op | None:
        if op is not self.gate:
            return self.copy(op)
        self.results = self.inline(op.regions[0], ())
        return None

    def _result(self, op: Op) -> Op:
        return self.results[op.attr] if op.args[0] is self.gate else self.copy(op)
