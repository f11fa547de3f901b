"""Outlining: kernels with runs of operations moved into functions, which mean the same."""

from __future__ import annotations

import random

from spirograd.base.dtypes import VOID, DType
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Function, Kernel, MemoryCall, Op, Region, ref_of
from spirograd.ir.rewrite import Rewriter

_LONGEST = 12


def outlined(kernel: Kernel, seed: int) -> Kernel:
    """``kernel`` with about half of what functions may hold in functions, nested ones among them."""
    outline = _Outline(random.Random(seed))
    body = outline.region(kernel.body)
    return kernel.with_body(body, (*kernel.functions, *outline.functions))


def _may_move(op: Op) -> bool:
    """Whether ``op`` with what is in its regions may stand in a function."""
    if op.code.effect in ("read", "write", "atomic") and not isinstance(ref_of(op), (FieldRef, ArrayRef)):
        return False
    if op.code.effect in ("check", "print", "barrier") or (op.code in ops.OUTSIDE and op.code not in ops.ARGUMENTS):
        return False
    if op.code is ops.task or (op.code is ops.for_ and op.attr.parallel):
        return False
    return all(_may_move(inner) for region in op.regions for inner in region.ops)


class _Outline(Rewriter):
    def __init__(self, r: random.Random) -> None:
        super().__init__()
        self.r = r
        self.functions: list[Function] = []

    def region(self, region: Region) -> Region:
        self.b.begin()
        ops_, last = region.ops[:-1], region.ops[-1]
        k = 0
        while k < len(ops_):
            end = k
            while end < len(ops_) and end - k < _LONGEST and _may_move(ops_[end]):
                end += 1
            if end - k > 1 and self.r.random() < 0.7:
                end = self.r.randint(k + 1, end)
                # A value that is made of several does not leave a function.
                while end < len(ops_) and ops_[end].code is ops.result and ops_[end].args[0] in ops_[k:end]:
                    end += 1
                if self.outline(ops_[k:end], (*ops_[end:], last)):
                    k = end
                    continue
            self.visit(ops_[k])
            k += 1
        return Region(region.params, self.b.end(self.args(last)).ops)

    def outline(self, inside: tuple[Op, ...], after: tuple[Op, ...]) -> bool:
        """Emit a call of a function that holds ``inside``; False if they cannot be in one."""
        used = {a for op in after for a in (*op.args, *[v for region in op.regions for v in region.live_ins])}
        leaving = [op for op in inside if op in used]
        taken = dict.fromkeys([a for op in inside for a in (*op.args, *[v for region in op.regions for v in region.live_ins])])
        live_ins = [a for a in taken if a not in inside]
        if not all(isinstance(op.type, DType) for op in (*leaving, *live_ins)):  # vectors are passed as their scalars
            return False
        plain = Region((), (*inside, Op(ops.yield_, VOID, tuple(leaving))))
        accesses = Function("", plain).accesses
        if not (accesses or (leaving and ops.OUTSIDE.isdisjoint(plain.codes))):
            return False
        params = tuple([Op(ops.param, a.type) for a in live_ins])
        inner = _Outline(self.r)
        inner.functions, inner.env = self.functions, dict(zip(live_ins, params))
        body = inner.region(plain)
        function = Function(f"part{len(self.functions)}", Region(params, body.ops))
        self.functions.append(function)
        code, attr = (ops.call_memory, MemoryCall(function.name, accesses)) if accesses else (ops.call, function.name)
        call = self.b.emit(code, *[self.value(a) for a in live_ins], attr=attr, type=function.result)
        results = self.b.results(call) if isinstance(call.type, tuple) else (call,)
        for old, new in zip(leaving, results):
            self.env[old] = new
        return True
