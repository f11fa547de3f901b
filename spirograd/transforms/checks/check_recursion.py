"""Checks that the stack has space for each call of a recursive function."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.artifact import FaultSite
from spirograd.base.dtypes import VOID, DType, Type, Vec, u1
from spirograd.base.loc import Loc
from spirograd.ir import ops
from spirograd.ir.called_accesses import restate_calls
from spirograd.ir.nodes import Function, Kernel, Op, Region, callee_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def check_recursion(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Begin recursive functions with a `check`, and return zeros where it fails. Stacks are limited: without the check, a CPU would end the
    process, and a GPU would lose its context."""
    recursive = kernel.recursive()
    if not recursive:
        return kernel
    functions = tuple([_Guarded(recursive).function(f) if f.name in recursive else f for f in kernel.functions])
    return restate_calls(kernel.with_body(kernel.body, functions))


class _Guarded(Rewriter):
    def __init__(self, recursive: set[str]) -> None:
        super().__init__()
        self.recursive = recursive

    def function(self, function: Function) -> Function:
        b, body = self.b, function.body
        b.loc = self._call_in(body)
        name = function.name.partition(".")[0]
        params = b.begin(*[p.type for p in body.params])
        room = b.emit(ops.stack_room, type=u1)
        site = FaultSite("stack", f"`{name}` recurses too deeply: the stack has no room for another call", (), b.loc)
        b.emit(ops.check, room, attr=site, type=VOID)
        b.begin()
        then = b.end(self.inline(body, params))
        b.begin()
        results = b.if_(room, then, b.end([self._zero(value.type) for value in body.results]))
        return function.with_body(b.end(results))

    def _call_in(self, body: Region) -> Loc | None:
        """Return the location where the function calls itself, directly or through another one, or None."""
        return next((op.loc for op in body.walk() if callee_of(op) in self.recursive), None)

    def _zero(self, t: Type) -> Op:
        if isinstance(t, Vec):
            zeros: Sequence[Op] = [self.b.const(0, t.elem)] * t.n
            return self.b.emit(ops.vec, *zeros)
        assert isinstance(t, DType), t
        return self.b.const(0, t)
