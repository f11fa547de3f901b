"""Legality of loop fusion: whether two parallel loops may run as one, in which each iteration of the first precedes the same iteration of
the second.

Fusion is legal if every element that one of them writes and the other accesses belongs to one iteration of both, so that the order of
accesses to an element stays the same. The analysis is conservative: loops that it cannot prove safe stay apart.
"""

from __future__ import annotations

from spirograd.analysis.dependence import Alias, Dependence, Iterations, access_of, accesses_in, iterations_of, private_updates
from spirograd.analysis.effects import may_alias, nested, orders, touches, writes
from spirograd.analysis.running_sums import may_accumulate
from spirograd.analysis.value_numbers import ValueNumbers
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, Op, Region

# Two arrays, in order.
Arrays = tuple[ArrayRef, ArrayRef]
# Updates of integers, which give the same bits in any order.
_COMMUTING = frozenset(("add", "mul", "min", "max", "and", "or", "xor"))
# Reports, which appear in the order of execution. They change nothing else: after a failed check a kernel continues.
_ORDERED = {"check": "checks", "print": "prints"}


def obstacle(loop: Op, fast_math: bool, ordered_sums: bool, same_partition: bool) -> str | None:
    """Return why a parallel loop is fused with no other, or None if it may be. ``fast_math``: sums that a loop carries may be taken in any
    order. ``ordered_sums``: the code generator takes them in the same order, whatever else the loop contains. ``same_partition``: the same
    iterations are then summed together, too."""
    body = loop.regions[0]
    if any(op.code is ops.clock for op in body.walk()):
        return "reads the clock"
    if loop.attr.grouped or _has(loop, "barrier"):
        return "runs in groups with barriers or shared memory"
    if any(op.code is ops.call_memory for op in body.walk()):
        return "calls a function that accesses memory"
    sums = [op for op in _shared_updates(loop) if _is_inexact_sum(op)]
    if not same_partition and any(_is_reduction(op, body) for op in sums):
        return "sums floats into one element, in an order that depends on what else the loop contains"
    if ordered_sums:
        return None
    inner = [op for op in body.walk() if op.code in (ops.for_, ops.while_)]
    if sums and (inner or len({op.attr[1] for op in sums}) < len(sums)):
        return "adds floats to shared elements in several places, in an order that depends on what else the loop contains"
    if fast_math and any(op.code is ops.for_ and may_accumulate(op) for op in inner):
        return "has an inner loop that sums floats, with fast math in an order that depends on what else the loop contains"
    return None


def conflict(a: Op, b: Op, disjoint_by: str = "", assumed: set[Arrays] | None = None) -> str | None:
    """Return why loop ``b`` cannot be fused with loop ``a``, which runs before it, or None if it can. Neither has an `obstacle`.
    ``disjoint_by``: the setting that forbids to fuse loops of which one writes what the other touches, or "" if nothing forbids it.
    ``assumed``: receives the pairs of arrays that must not overlap; None if launches do not check this."""
    query = Dependence(ValueNumbers({b.regions[0].params[0]: a.regions[0].params[0]}))
    if query.numbers.all(a.args) != query.numbers.all(b.args):
        return "the index spaces may differ"
    if a.attr.group_size != b.attr.group_size:
        return "the sizes of their workgroups differ"
    effect = next((effect for effect in _ORDERED if _has(a, effect) and _has(b, effect)), None)
    if effect is not None:
        return f"both have {_ORDERED[effect]}, those of the first come first"
    if _mix(a, b) or _mix(b, a):
        return "both update shared elements, one of them by adding floats"
    iterations = iterations_of(a)
    used = [_used(loop.regions[0]) for loop in (a, b)]
    others = list(accesses_in(b.regions))
    for x in accesses_in(a.regions):
        for y in others:
            if not (x.writes or y.writes) or query.alias(x, y, iterations.invariant) is Alias.NO:
                continue
            if isinstance(x.ref, ArrayRef) and isinstance(y.ref, ArrayRef) and x.ref != y.ref and assumed is not None:
                assumed.add((x.ref, y.ref) if (x.ref.arg, x.ref.role) < (y.ref.arg, y.ref.role) else (y.ref, x.ref))
                continue
            if x.ref != y.ref:
                return f"`{x.ref.name}` and `{y.ref.name}` may overlap"
            if not query.carried(x, y, iterations):
                if disjoint_by:
                    return f"both access `{x.ref.name}`, which one of them writes, and {disjoint_by} keeps such loops apart"
            elif not _commute(x.op, y.op, used):
                return f"an iteration of one may access what another iteration of the other accesses in `{x.ref.name}`"
    return None


def commutes(loop: Op, op: Op) -> bool:
    """Return whether a parallel loop without an `obstacle` may run after ``op``, which follows it, rather than before."""
    if orders(op) or any(_has(loop, effect) and any(inner.code.effect == effect for inner in nested(op)) for effect in _ORDERED):
        return False
    mine, written = touches(loop), writes(loop)
    changed, seen = writes(op), touches(op)
    return not any(may_alias(x, y) for x in mine for y in changed) and not any(may_alias(x, y) for x in written for y in seen)


def _used(body: Region) -> set[Op]:
    return {a for op in body.walk() for a in op.args}


def _commute(x: Op, y: Op, used: list[set[Op]]) -> bool:
    """Return whether two accesses update memory in the same way, and the values in between are not used."""
    if x.code is not ops.atomic or y.code is not ops.atomic or x.attr[0] != y.attr[0] or x in used[0] or y in used[1]:
        return False
    return x.attr[0] in _COMMUTING and not x.attr[1].dtype.is_float


def _is_inexact_sum(op: Op) -> bool:
    return op.code is ops.atomic and op.attr[0] in ("add", "mul") and op.attr[1].dtype.is_float


def _shared_updates(loop: Op) -> list[Op]:
    """Return the atomics at elements that several iterations may update."""
    body = loop.regions[0]
    if not any(code.effect == "atomic" for code in body.codes):
        return []
    private = private_updates(body, loop.args[:2])
    return [op for op in body.walk() if op.code.effect == "atomic" and op not in private]


def _is_reduction(op: Op, body: Region) -> bool:
    """Return whether all iterations update one element."""
    access = access_of(op)
    return Dependence().alias(access, access, Iterations([body]).invariant) is Alias.MUST


def _has(loop: Op, effect: str) -> bool:
    return any(code.effect == effect for code in loop.regions[0].codes)


def _mix(a: Op, b: Op) -> bool:
    """Return whether ``a`` adds floats to shared elements and ``b`` updates shared elements: together they may be lowered in another
    way."""
    return bool(any(_is_inexact_sum(op) for op in _shared_updates(a)) and _shared_updates(b))
