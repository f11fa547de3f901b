"""Sums and products of floats that a serial loop accumulates, which fast math may take in any order."""

from __future__ import annotations

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op

# Operations that may form one chain from a loop-carried value to its next one.
FAMILIES = (frozenset((ops.add, ops.sub)), frozenset((ops.mul,)))


def is_link(op: Op, family: frozenset[ops.OpCode]) -> bool:
    """Return whether ``op`` may be part of a chain of ``family``."""
    return op.code in family and isinstance(op.type, DType) and op.type.is_float and op.attr is None


def may_accumulate(loop: Op) -> bool:
    """Return whether a `for` carries a value to the next iteration through sums alone, or products alone."""
    region = loop.regions[0]
    own = set(region.ops)
    for carried, following in zip(region.params[1:], region.results):
        for family in FAMILIES:
            reached, waiting = {following}, [following]
            while waiting:
                op = waiting.pop()
                if op in own and is_link(op, family):
                    waiting += set(op.args) - reached
                    reached.update(op.args)
            if carried in reached and carried is not following:
                return True
    return False
