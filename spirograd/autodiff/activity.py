"""Activity analysis: values that depend on memory with a gradient, and values that memory with a gradient depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Union

from spirograd.autodiff.rules import differentiable
from spirograd.base.dtypes import DType, Type, Vec
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, Kernel, Op, Ref, SharedRef, TempRef, ref_of

ShadowOf = Callable[[Ref], "Ref | None"]
# A value, or memory that is private to a launch.
Node = Union[Op, TempRef, AdstackRef, SharedRef]

# Memory of the kernel itself, as opposed to memory of the program.
OWN = (TempRef, AdstackRef, SharedRef)
# Operands that the results of structural operations depend on.
_FLOWS: dict[ops.OpCode, Callable[[Op], tuple[Op, ...]]] = {
    ops.vec: lambda op: op.args,
    ops.extract: lambda op: op.args[:1],
    ops.insert: lambda op: (op.args[0], op.args[2]),
    ops.select: lambda op: op.args[1:],
    ops.with_partial: lambda op: op.args[:2],
    ops.subgroup_read: lambda op: op.args[:1],
}
# Operands of a loop before its loop-carried values, and the region that yields these.
FIXED = {ops.for_: 2, ops.while_: 0}


def is_float(t: Type | tuple[Type, ...]) -> bool:
    """Return whether values of type ``t`` have derivatives: floats, and vectors of them."""
    if isinstance(t, Vec):
        return t.elem.is_float
    return isinstance(t, DType) and t.is_float


@dataclass(slots=True)
class Activity:
    """The result of `activity`.

    ``flows``: for each float value (and temporary), the values that it depends on differentiably. ``varied`` values depend on an active
    input (a read of memory with a gradient). ``useful`` values are those that an active output (a write of such memory, a returned value)
    depends on. An active value is varied and useful.
    """

    flows: dict[Node, list[Node]] = field(default_factory=dict)
    varied: set[Node] = field(default_factory=set)
    useful: set[Node] = field(default_factory=set)

    def active(self, node: Node) -> bool:
        return node in self.varied and node in self.useful


def activity(kernel: Kernel, shadow: ShadowOf) -> Activity:
    """Find the active values of kernel IR. ``shadow``: returns the gradient of outer memory, or None if it has none."""
    result = Activity()
    active_inputs: list[Node] = []
    active_outputs: list[Node] = list(kernel.returns)
    for op in kernel.walk():
        result.flows.update(_control(op))
        ref = ref_of(op)
        if ref is None:
            if is_float(op.type) and op.code is not ops.result:
                result.flows[op] = [a for a in _operands(op) if is_float(a.type)]
            continue
        value = _value(op)
        if isinstance(ref, OWN):
            if value is not None:
                result.flows.setdefault(ref, []).append(value)
            if is_float(op.type):
                result.flows[op] = [ref]
        elif shadow(ref) is not None:
            if value is not None:
                active_outputs.append(value)
            if is_float(op.type):
                active_inputs.append(op)
    result.useful = _reach(active_outputs, result.flows)
    result.varied = _reach(active_inputs, _inverted(result.flows))
    return result


def _value(op: Op) -> Op | None:
    """Return the float that ``op`` puts into memory, or None."""
    return op.args[-1] if op.code.effect in ("write", "atomic") and is_float(op.args[-1].type) else None


def _operands(op: Op) -> tuple[Op, ...]:
    """Return the operands of a pure operation on which its derivative depends. For results of control operations see `_control`."""
    flow = _FLOWS.get(op.code)
    if flow is not None:
        return flow(op)
    return op.args if differentiable(op.code) else ()


def _control(op: Op) -> dict[Node, list[Node]]:
    """Return the flows into the parameters of the regions of ``op``, or into ``op`` if it is a result."""
    if op.code is ops.result and is_float(op.type):
        owner, k = op.args[0], op.attr
        if owner.code is ops.if_:
            return {op: [region.results[k] for region in owner.regions]}
        return {op: [owner.args[FIXED[owner.code] + k], owner.regions[-1].results[k]]}
    if op.code not in FIXED:
        return {}
    initial, yielded = op.args[FIXED[op.code] :], op.regions[-1].results
    flows: dict[Node, list[Node]] = {}
    for region in op.regions:  # the condition of a `while` takes the loop-carried values, too
        params = region.params[len(region.params) - len(initial) :]
        flows |= {p: [a, r] for p, a, r in zip(params, initial, yielded) if is_float(p.type)}
    return flows


def _inverted(flows: dict[Node, list[Node]]) -> dict[Node, list[Node]]:
    users: dict[Node, list[Node]] = {}
    for node, inputs in flows.items():
        for a in inputs:
            users.setdefault(a, []).append(node)
    return users


def _reach(start: Iterable[Node], edges: dict[Node, list[Node]]) -> set[Node]:
    """Return all nodes that can be reached from ``start``."""
    seen = set(start)
    work = list(seen)
    while work:
        for other in edges.get(work.pop(), ()):
            if other not in seen:
                seen.add(other)
                work.append(other)
    return seen
