"""Estimates the work of one iteration, so that small tasks run without waking the workers."""

from __future__ import annotations

from collections.abc import Mapping

from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region, callee_of

# Units: roughly one scalar instruction. What is not listed counts 1; operations that are no instruction count 0.
_WEIGHTS = {
    **dict.fromkeys((ops.const, ops.result, ops.thread_slot, ops.slot, ops.bitcast), 0),
    **dict.fromkeys((ops.div, ops.idiv, ops.irem, ops.sqrt, ops.rsqrt), 6),
    **dict.fromkeys(ops.ELEMENTARY, 25),
    **dict.fromkeys((ops.atomic, ops.cas), 80),  # 20 cycles in which nothing else goes on
    ops.barrier: 20,
    **dict.fromkeys((ops.extract, ops.insert), 3),
}
# An atomic as a load, an operation and a store.
_UPDATE = 10
# Iterations assumed of a loop whose bounds are not constants: rather many, because waking workers for nothing costs microseconds, leaving
# them asleep may cost any amount.
_UNKNOWN_TRIPS = 256
# Beyond this every launch is worth distributing anyway; keeps products far from overflow.
_LIMIT = 1 << 24


def trips(op: Op) -> int:
    """The trip count of the loop ``op``, or a guess."""
    if op.code is ops.for_ and op.args[0].code is ops.const and op.args[1].code is ops.const:
        return max(int(op.args[1].attr) - int(op.args[0].attr), 0)
    return _UNKNOWN_TRIPS


def costs_of_calls(kernel: Kernel) -> dict[str, int]:
    """Units of work of a call of each function of ``kernel``."""
    calls: dict[str, int] = {}
    for function in kernel.functions:
        calls[function.name] = cost_of(function.body, calls)
    return calls


def cost_of(region: Region, calls: Mapping[str, int], uncontended: bool = False) -> int:
    """Units of work of running ``region`` once (at least 1); both branches of an `if` count. ``calls``: those of functions (see
    `costs_of_calls`). ``uncontended``: as if no update were atomic."""
    total = 0
    for op in region.ops[:-1]:
        work = sum(cost_of(r, calls, uncontended) for r in op.regions)
        if op.code in (ops.for_, ops.while_):
            work *= trips(op)
        elif (called := callee_of(op)) is not None:
            work = calls.get(called, _LIMIT)  # those that are not known yet call themselves
        total += work + (_UPDATE if uncontended and op.code is ops.atomic else _WEIGHTS.get(op.code, 1))
    return min(max(total, 1), _LIMIT)
