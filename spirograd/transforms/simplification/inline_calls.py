"""Inlining of functions, for passes that must see every operation of a kernel where it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.loc import Loc
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, callee_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

# Limits for functions that access memory: the number of calls up to which they are always inlined, and the number of operations that
# inlining may add in total.
_FEW = 8
_SMALL = 400


def inline_calls(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Inline all functions except recursive ones. Return the same object if there are none. Locations get the chain of calls through which
    they are inlined."""
    return without_functions(kernel)


def inline_some(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Inline the calls that cannot stay, and those whose inlining gains more than it costs.

    Functions cannot contain checks, so functions that get checks are inlined: all if bounds or overflow are checked, and those with loops
    on devices that end loops early. Functions that access memory are also inlined if the interpreter would check them, if they have atomics
    on devices where atomics may be loops over locks, and if they are small or have few calls, because no pass looks into a call.
    """
    _refuse_recursion(kernel, ctx)
    if ctx.options.check_bounds or ctx.options.check_overflow:
        return without_functions(kernel)
    names = kernel.looping() if ctx.caps.loop_limit else set()
    accesses = {f.name: f.accesses for f in kernel.functions}
    for function in kernel.functions:
        effects = {effect for effect, _ in accesses[function.name]}
        if effects and (ctx.caps.target.checks_accesses or ("atomic" in effects and not ctx.caps.atomic_cas)):
            names.add(function.name)
    if len(names) < len(kernel.functions):
        names |= _cheap(kernel, names, {name for name, accessed in accesses.items() if accessed})
    return _without(kernel, names)


def _refuse_recursion(kernel: Kernel, ctx: PassContext) -> None:
    if ctx.caps.target.call_stack or not (recursive := kernel.recursive()):
        return
    for op in kernel.walk():
        if callee_of(op) in recursive:
            name = str(callee_of(op)).partition(".")[0]
            message = f"`{name}` calls itself, but this device (target {ctx.caps.target_name}) has no call stack"
            raise SpirogradUnsupportedError(message, op.loc, "use a loop, or the CPU or CUDA")


def _cheap(kernel: Kernel, inlined: Collection[str], candidates: Collection[str]) -> set[str]:
    """Return the functions among ``candidates`` that add little code when they are inlined in addition to ``inlined``."""
    sizes = {f.name: sum([1 for _ in f.body.walk()]) for f in kernel.functions}
    # The operations in the bodies of inlined functions, and the number of copies of each body.
    calls = Counter([name for op in kernel.body.walk() if (name := callee_of(op)) is not None])
    small: set[str] = set()
    for function in reversed(kernel.functions):
        name, count = function.name, calls[function.name]
        is_cheap = name in candidates and (count <= _FEW or count * sizes[name] <= _SMALL)
        if is_cheap:
            small.add(name)
        for op in function.body.walk():
            if (inner := callee_of(op)) is not None:
                calls[inner] += count if is_cheap or name in inlined else 1
    return small


def without_functions(kernel: Kernel) -> Kernel:
    """Inline all functions like `inline_calls`, without a context."""
    return _without(kernel, {f.name for f in kernel.functions})


def _without(kernel: Kernel, names: Collection[str]) -> Kernel:
    """Inline the functions ``names``, except recursive ones."""
    names = set(names) - kernel.recursive() if names else names
    if not names:
        return kernel
    inline = _Inline(kernel, names)
    functions = [f.with_body(inline.region(f.body)) for f in kernel.functions if f.name not in names]
    body = inline.region(kernel.body)
    inline.release()
    return kernel.with_body(body, tuple(functions))


class _Inline(Rewriter):
    def __init__(self, kernel: Kernel, names: Collection[str]) -> None:
        super().__init__()
        self.bodies = {f.name: f.body for f in kernel.functions if f.name in names}
        self.results: dict[Op, tuple[Op, ...]] = {}  # call -> the replacements of its results
        self.caller: Loc | None = None  # the location of the call that is being inlined
        self.handlers = {ops.call: self._call, ops.call_memory: self._call, ops.result: self._result}

    def _call(self, op: Op) -> Op | None:
        body, outer = self.bodies.get(callee_of(op) or ""), self.caller
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
        """Return ``loc`` with the call of the function being inlined."""
        if loc is None or self.caller is None:
            return loc or self.caller
        return replace(loc, caller=self.caller if loc.caller is None else self._located(loc.caller))
