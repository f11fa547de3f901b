"""Whether indices of an access tell the iteration: then no two iterations of a loop meet at one element."""

from __future__ import annotations

from collections.abc import Iterable

from spirograd.ir import ops
from spirograd.ir.nodes import Op


def determines(indices: Iterable[Op], index: Op, invariant: set[Op]) -> bool:
    """Whether the values ``indices`` together fix the value of ``index``, given those in ``invariant`` (the same in every iteration).

    Knows sums with invariants, negation and bitwise not, exclusive or with invariants, widening casts, and quotient and remainder of one value by
    one divisor, as flat loops over several axes compute them. Unknown means no.
    """
    known = set(indices)
    waiting = list(known)
    divided: dict[tuple[Op, object], set[object]] = {}
    while waiting:
        op = waiting.pop()
        if op is index:
            return True
        for found in _implied(op, invariant, divided):
            if found not in known:
                known.add(found)
                waiting.append(found)
    return False


def _implied(op: Op, invariant: set[Op], divided: dict[tuple[Op, object], set[object]]) -> list[Op]:
    """The values that knowing ``op`` (and what ``divided`` has collected) fixes."""
    if op.code in (ops.idiv, ops.irem):
        key = (op.args[0], _identity(op.args[1]))
        parts = divided.setdefault(key, set())
        parts.add(op.code)
        return [op.args[0]] if len(parts) == 2 and (op.args[1] in invariant or op.args[1].code is ops.const) else []
    if op.code in (ops.neg, ops.not_):
        return [op.args[0]]
    if op.code in (ops.add, ops.sub, ops.xor):
        a, b = op.args
        return [x for x, other in ((a, b), (b, a)) if other in invariant or other.code is ops.const]
    if op.code is ops.cast and op.type.is_int and op.type.bits >= op.args[0].type.bits:  # type: ignore[union-attr]
        return [op.args[0]]
    return []


def _identity(op: Op) -> object:
    """Equal for values that are equal: constants by value, others by being the same operation."""
    return (op.type, op.attr) if op.code is ops.const else op
