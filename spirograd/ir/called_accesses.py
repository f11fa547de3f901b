"""Accesses of the functions of a kernel to memory, stated at their calls. Those of recursive functions are known once all functions are
built."""

from __future__ import annotations

from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, MemoryCall, Op, Ref, accesses_of, callee_of
from spirograd.ir.rewrite import Rewriter

Accesses = dict[tuple[str, Ref], None]
_COMPUTING = frozenset(("pure", "control", "structure", "call"))  # What a call does follows from its function.


def called_accesses(kernel: Kernel) -> dict[str, Accesses]:
    """Return the accesses of each function, by itself or by functions that it calls. What its calls state so far does not count."""
    own: dict[str, Accesses] = {}
    for function in kernel.functions:
        accesses = [access for op in function.body.walk() if callee_of(op) is None for access in accesses_of(op)]
        own[function.name] = dict.fromkeys(accesses)
    return _spread(kernel, own)


def _spread(kernel: Kernel, own: dict[str, Accesses]) -> dict[str, Accesses]:
    """Return ``own`` with the accesses of called functions added to those of their callers."""
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
    """Return the functions that do more than compute, or call such functions."""
    names = {f.name for f in kernel.functions if not f.body.results or any(_acts(op) for op in f.body.walk())}
    before = -1
    while before < len(names):
        before = len(names)
        names |= {f.name for f in kernel.functions if any(callee_of(op) in names for op in f.body.walk())}
    return names


def _acts(op: Op) -> bool:
    return op.code.effect not in _COMPUTING or op.code in ops.ARGUMENTS


def restate_calls(kernel: Kernel) -> Kernel:
    """Return ``kernel`` with each call as `call` or `call_memory`, with the present accesses of its function."""
    return _Restated(kernel).kernel(kernel) if kernel.functions else kernel


class _Restated(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.acting = acting(kernel)
        self.accesses = {name: tuple(accesses) for name, accesses in called_accesses(kernel).items()}
        self.handlers = {ops.call: self._call, ops.call_memory: self._call}

    def _call(self, op: Op) -> Op:
        name = callee_of(op)
        assert name is not None
        if name not in self.acting:
            return self.copy(op)
        attr = MemoryCall(name, self.accesses[name]) if op.code is ops.call else replace(op.attr, accesses=self.accesses[name])
        return self.b.append(Op(ops.call_memory, op.type, self.args(op), attr, (), op.loc, op.primal))
