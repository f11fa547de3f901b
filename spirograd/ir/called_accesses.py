"""What the functions of a kernel do to memory, stated at their calls: of functions that call themselves it is known once all are there."""

from __future__ import annotations

from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, MemoryCall, Op, Ref, accesses_of, callee_of
from spirograd.ir.rewrite import Rewriter

Accesses = dict[tuple[str, Ref], None]
_COMPUTING = frozenset(("pure", "control", "structure", "call"))  # what a call does is that of its function


def called_accesses(kernel: Kernel) -> dict[str, Accesses]:
    """What each function does to memory, by itself or by functions that it calls, whatever its calls say so far."""
    own: dict[str, Accesses] = {}
    for function in kernel.functions:
        found = [access for op in function.body.walk() if callee_of(op) is None for access in accesses_of(op)]
        own[function.name] = dict.fromkeys(found)
    return _spread(kernel, own)


def _spread(kernel: Kernel, own: dict[str, Accesses]) -> dict[str, Accesses]:
    """``own``, to which those of a function that is called are added."""
    calls = {f.name: {callee for op in f.body.walk() if (callee := callee_of(op)) is not None} for f in kernel.functions}
    changed = True
    while changed:
        changed = False
        for name, callees in calls.items():
            before = len(own[name])
            for callee in callees:
                own[name].update(own[callee])
            changed = changed or len(own[name]) > before
    return own


def acting(kernel: Kernel) -> set[str]:
    """The functions that do more than compute, or call some that do."""
    found = {f.name for f in kernel.functions if not f.body.results or any(_acts(op) for op in f.body.walk())}
    before = -1
    while before < len(found):
        before = len(found)
        found |= {f.name for f in kernel.functions if any(callee_of(op) in found for op in f.body.walk())}
    return found


def _acts(op: Op) -> bool:
    return op.code.effect not in _COMPUTING or op.code in ops.ARGUMENTS


def restate_calls(kernel: Kernel) -> Kernel:
    """``kernel`` with each call as `call` or `call_memory`, and with the accesses of its function as it is now."""
    return _Restated(kernel).kernel(kernel) if kernel.functions else kernel


class _Restated(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.acting = acting(kernel)
        self.accesses = {name: tuple(found) for name, found in called_accesses(kernel).items()}
        self.handlers = {ops.call: self._call, ops.call_memory: self._call}

    def _call(self, op: Op) -> Op:
        name = callee_of(op)
        assert name is not None
        if name not in self.acting:
            return self.copy(op)
        attr = MemoryCall(name, self.accesses[name]) if op.code is ops.call else replace(op.attr, accesses=self.accesses[name])
        return self.b.append(Op(ops.call_memory, op.type, self.args(op), attr, (), op.loc, op.primal))
