"""Put the bodies of functions in the place of their calls, for passes that must see every operation of a kernel where it runs."""

from __future__ import annotations

from collections.abc import Collection

from spirograd.base.loc import Loc
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.context import PassContext


def inline_calls(kernel: Kernel, ctx: PassContext) -> Kernel:
    """``kernel`` without functions; the same object if it has none. Locations get the chain of calls that they are inlined by."""
    return without_functions(kernel)


def inline_checked(kernel: Kernel, ctx: PassContext) -> Kernel:
    """``kernel`` without the functions that checks go into, which are effects: any of them if bounds or overflow are checked; those with
    loops on devices that end loops early."""
    if ctx.options.check_bounds or ctx.options.check_overflow:
        return without_functions(kernel)
    return _without(kernel, kernel.looping()) if ctx.caps.loop_limit else kernel


def without_functions(kernel: Kernel) -> Kernel:
    """As `inline_calls`, which needs nothing of its context."""
    return _without(kernel, {f.name for f in kernel.functions})


def _without(kernel: Kernel, names: Collection[str]) -> Kernel:
    """``kernel`` without the functions ``names``, among which is everything that calls one of them."""
    if not names:
        return kernel
    return kernel.with_body(_Inline(kernel, names).region(kernel.body), tuple([f for f in kernel.functions if f.name not in names]))


class _Inline(Rewriter):
    def __init__(self, kernel: Kernel, names: Collection[str]) -> None:
        super().__init__()
        self.bodies = {f.name: f.body for f in kernel.functions if f.name in names}
        self.results: dict[Op, tuple[Op, ...]] = {}  # call -> what stands for its results
        self.caller: Loc | None = None  # of the function being inlined
        self.handlers = {ops.call: self._call, ops.result: self._result}

    def _call(self, op: Op) -> Op | None:
        body, outer = self.bodies.get(op.attr), self.caller
        if body is None:
            return self.copy(op)
        args = self.args(op)
        self.caller = self._located(op.loc)
        results = self.inline(body, args, clone=True)
        self.caller = outer
        if not isinstance(op.type, tuple):
            return results[0]
        self.results[op] = results
        return None

    def _result(self, op: Op) -> Op:
        results = self.results.get(op.args[0])
        return self.copy(op) if results is None else results[op.attr]

    def copy(self, op: Op) -> Op:
        if self.caller is not None:
            op = Op(op.code, op.type, op.args, op.attr, op.regions, self._located(op.loc), op.primal)
        return super().copy(op)

    def _located(self, loc: Loc | None) -> Loc | None:
        """``loc``, called from where the function being inlined is called."""
        if loc is None or self.caller is None:
            return loc or self.caller
        return replace(loc, caller=self.caller if loc.caller is None else self._located(loc.caller))
