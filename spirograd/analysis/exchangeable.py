"""Exchangeable loops and tasks: parallel code whose results have the same bits however its iterations are mapped to lanes or invocations.

An iteration computes the same in a lane or another workgroup as alone. Differences come from between iterations, and from functions:

| what differs on the CPU, with lanes and without | why |
|---|---|
| sums and products of floats that are marked "reassoc" | lanes, LLVM's vectors, and scalars add in different orders |
| atomics of floats, atomics whose result is used | lanes update memory in another order |
| elementary functions of f64 | LLVM calls those of a vector library, which round differently |
| reports of faults | if several lanes fail, any of them reports |
| adstacks | each lane has a thread slot, which changes their memory |

| what differs on GPUs, with other workgroups | why |
|---|---|
| sums and products of floats over the iterations of a task | workgroups of another size add in another order |
| those in a loop of an iteration | the assembler may add in another order, if an invocation runs another number of iterations at a time |
| atomics of floats, atomics whose result is used, `exchange` | invocations update memory in another order |
| reports of faults, prints | they come in another order |
| adstacks | each invocation has a thread slot |
| private copies of memory, groups of threads | their code is for workgroups of one size |
"""

from __future__ import annotations

from collections.abc import Mapping

from spirograd.analysis.uniformity import is_adstack, is_report
from spirograd.base.dtypes import DType, Lanes, Type, scalar_of
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, Op, Region, callee_of, ref_of


def is_exchangeable(body: Region, functions: Mapping[str, Region], in_order: bool = False) -> bool:
    """Return whether the loop over ``body`` gives the same bits with lanes and without. ``functions``: bodies of the kernel's functions, by
    name. ``in_order``: whether atomics keep the order of the loop with lanes, too."""
    if any(_is_float(p.type) for p in body.params[1:]):
        return False
    used = {a for op in body.walk() for a in op.args}
    for op in body.walk():
        if is_adstack(op) or is_report(op):
            return False
        if op.code is ops.atomic and not in_order and (op in used or op.attr[1].dtype.is_float):
            return False
        if not _rounds_alike(op):
            return False
    callees = {name for op in body.walk() if (name := callee_of(op)) is not None}
    return all(map(_rounds_alike, _reached(callees, functions)))


def is_exchangeable_task(task: Op, functions: Mapping[str, Region]) -> bool:
    """Return whether a range task of a GPU (kernel IR) gives the same bits in workgroups of any number and size."""
    attr = task.attr
    inner = [op for region in task.regions for op in region.walk()]
    if attr.grouped or attr.copies or attr.shares > 1 or len(task.regions[0].results) > 2 or any(r.dtype.is_float for r in attr.reductions):
        return False
    used = {a for op in inner for a in op.args}
    if any(op in used for op in inner if op.code is ops.atomic):
        return False
    return all(map(_commutes, (*inner, *_reached({name for op in inner if (name := callee_of(op)) is not None}, functions))))


def is_exact(region: Region) -> bool:
    """Return whether no sum or product of floats in ``region`` may be computed in another order."""
    return not any(op.attr == "reassoc" and _is_float(op.type) for op in region.walk())


def _commutes(op: Op) -> bool:
    """Return whether ``op``, whose result nothing uses if it is an atomic, has the same effect whichever invocation is first."""
    if op.code in _OF_AN_INVOCATION or isinstance(ref_of(op), AdstackRef):
        return False
    if op.code is ops.atomic:
        kind, ref = op.attr
        return kind != "exchange" and not ref.dtype.is_float
    return op.code.effect in _ORDERLESS


# Races between stores and loads of several iterations have no defined result.
_ORDERLESS = frozenset(("pure", "read", "write", "control", "structure", "call", "label"))
_OF_AN_INVOCATION = frozenset((ops.thread_slot, ops.builtin, ops.adstack_word, ops.lane_slots))


def _rounds_alike(op: Op) -> bool:
    return not op.code.elementary and not (op.attr == "reassoc" and _is_float(op.type))


def _is_float(t: Type) -> bool:
    return isinstance(t, (DType, Lanes)) and scalar_of(t).is_float


def _reached(names: set[str], functions: Mapping[str, Region]) -> list[Op]:
    """Return the operations of the functions ``names``, and of those that they call."""
    waiting, found = list(names), list[Op]()
    for name in waiting:
        inner = list(functions[name].walk())
        found += inner
        waiting += [called for op in inner if (called := callee_of(op)) is not None and called not in waiting]
    return found
