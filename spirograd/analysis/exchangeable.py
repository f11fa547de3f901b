"""Exchangeable loops: parallel loops whose results have the same bits whether or not their iterations run as lanes of vectors.

An iteration computes the same in a lane as alone. Differences come from between iterations, and from functions:

| what differs | why |
|---|---|
| sums and products of floats that are marked "reassoc" | lanes, LLVM's vectors, and scalars add in different orders |
| atomics of floats, atomics whose result is used | lanes update memory in another order |
| elementary functions of f64 | LLVM calls those of a vector library, which round differently |
| reports of faults | if several lanes fail, any of them reports |
| adstacks | each lane has a thread slot, which changes their memory |
"""

from __future__ import annotations

from collections.abc import Mapping

from spirograd.analysis.uniformity import is_adstack, is_report
from spirograd.base.dtypes import DType, Lanes, Type, scalar_of
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region, callee_of


def is_exchangeable(body: Region, functions: Mapping[str, Region]) -> bool:
    """Return whether the loop over ``body`` gives the same bits with lanes and without. ``functions``: bodies of the kernel's functions, by
    name."""
    if any(_is_float(p.type) for p in body.params[1:]):
        return False
    used = {a for op in body.walk() for a in op.args}
    for op in body.walk():
        if is_adstack(op) or is_report(op) or (op.code is ops.atomic and (op in used or op.attr[1].dtype.is_float)):
            return False
        if not _rounds_alike(op):
            return False
    callees = {name for op in body.walk() if (name := callee_of(op)) is not None}
    return all(map(_rounds_alike, _reached(callees, functions)))


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
