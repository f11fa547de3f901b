"""The rewriter: every transformation of IR rebuilds it in order, and shares what does not change."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.ops import OpCode, param

# A handler takes the original operation, whose operands are still the old ones (see Rewriter.args). It returns the replacement, or None to
# drop the operation.
Handler = Callable[[Op], "Op | None"]

# Methods that take every operation or region, also where there is no handler.
_HOOKS = ("args", "copy", "terminator", "visit", "yielded")


class Rewriter:
    """A traversal that rebuilds a kernel in order.

    Subclasses fill ``handlers``: code -> method. A handler may emit any number of operations through ``self.b`` and returns the value that
    stands for the old operation. Operations without a handler are copied, or shared if nothing below them changed. Regions without
    operations to handle are shared entirely, unless a subclass overrides one of `_HOOKS`.
    """

    _sparse = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._sparse = all(getattr(cls, name) is getattr(Rewriter, name) for name in _HOOKS)

    def __init__(self) -> None:
        self.b = Builder()
        self.env: dict[Op, Op] = {}
        self.handlers: dict[OpCode, Handler] = {}
        # While positive, nothing is shared: every operation and parameter is created anew, so that a region may be emitted twice.
        self.cloning = 0

    def value(self, old: Op) -> Op:
        """Return the value that replaces ``old``."""
        return self.env.get(old, old)

    def args(self, op: Op) -> tuple[Op, ...]:
        env, args = self.env, op.args
        if env.keys().isdisjoint(args):
            return args
        return tuple([env.get(a, a) for a in args])

    def visit(self, op: Op) -> None:
        handler = self.handlers.get(op.code)
        if handler is None:
            new: Op | None = self.copy(op)
        else:
            self.b.at(op)
            new = handler(op)
        if new is not None and new is not op:
            self.env[op] = new

    def copy(self, op: Op) -> Op:
        """Append ``op`` with its operands and regions rewritten, or ``op`` itself if that changes nothing."""
        args, regions = self.args(op), op.regions
        if regions:
            regions = tuple([self.region(r) for r in regions])
        if self.cloning or (args is not op.args and args != op.args) or (regions and regions != op.regions):
            op = Op(op.code, op.type, args, op.attr, regions, op.loc, op.primal)
        self.b.ops.append(op)
        return op

    def keep(self, op: Op) -> Op:
        """Append ``op`` with its operands rewritten. Operations in its regions are not handled."""
        replaced = self.env.keys()
        changed = replaced and not (replaced.isdisjoint(op.args) and all(replaced.isdisjoint(region.live_ins) for region in op.regions))
        if self.cloning or changed:
            return self.copy(op)
        self.b.ops.append(op)
        return op

    def region(self, region: Region) -> Region:
        """Rewrite a nested region. Return the same object if nothing changed. Its parameters stay the same objects, except in a clone."""
        if self._sparse and self.is_untouched(region):
            return region
        params = region.params
        if self.cloning:
            params = tuple(Op(param, p.type, attr=p.attr, loc=p.loc) for p in params)
            self.env.update(zip(region.params, params))
        self.b.begin()
        body = region.ops[:-1]
        self.visit_all(body)
        last = region.ops[-1]
        self.b.loc = last.loc
        self.terminator(last)
        results = self.yielded(last)
        if results == last.args and tuple(self.b.ops) == body and not self.cloning:
            self.b.suspend()
            return region
        return Region(params, self.b.end(results).ops)

    def visit_all(self, body: Sequence[Op]) -> None:
        """Visit each operation of a region. Most of them do not change, and this method finds such operations without a call for each."""
        if not self._sparse or self.cloning:
            for op in body:
                self.visit(op)
            return
        env, handler_of, b = self.env, self.handlers.get, self.b
        is_unchanged, done = env.keys().isdisjoint, b.ops
        for op in body:
            handler = handler_of(op.code)
            if handler is not None:
                b.loc, b.primal = op.loc, op.primal
                new = handler(op)
                if new is not None and new is not op:
                    env[op] = new
            elif op.regions:
                new = self.copy(op)
                if new is not op:
                    env[op] = new
            elif is_unchanged(op.args):
                done.append(op)
            else:
                args = tuple([env.get(a, a) for a in op.args])
                new = op
                if args != op.args:
                    new = env[op] = Op(op.code, op.type, args, op.attr, (), op.loc, op.primal)
                done.append(new)

    def is_untouched(self, region: Region) -> bool:
        """Return whether ``region`` does not change: no operation in it has a handler, and all values from outside are the same."""
        if self.cloning or not self.handlers.keys().isdisjoint(region.codes):
            return False
        return not self.env or self.env.keys().isdisjoint(region.live_ins)

    def terminator(self, op: Op) -> None:
        """Emit further operations before a region is closed. Subclasses override this."""

    def yielded(self, op: Op) -> tuple[Op, ...]:
        """Return the results of the region that ends with ``op``."""
        return self.args(op)

    def inline(self, region: Region, params: tuple[Op, ...], clone: bool = False) -> tuple[Op, ...]:
        """Emit the operations of ``region`` here, with ``params`` for its parameters. Return its results.

        ``clone``: create every operation anew. This is necessary wherever the region is emitted more than once, or also stays in place.
        """
        self.env.update(zip(region.params, params))
        self.cloning += clone
        self.visit_all(region.ops[:-1])
        self.cloning -= clone
        return self.args(region.ops[-1])

    def rematerialised(self, value: Op, inside: Container[Op]) -> Op:
        """Recompute ``value`` here from values that are not among ``inside``. Loads and control operations are not recomputed."""
        if value not in inside:
            return self.value(value)
        args = tuple([self.rematerialised(a, inside) for a in value.args])
        return self.b.append(Op(value.code, value.type, args, value.attr, (), value.loc))

    def kernel(self, kernel: Kernel) -> Kernel:
        """Rewrite a kernel, or return it unchanged if no operation in it has a handler. A rewriter is for one kernel."""
        new = self._rewritten(kernel)
        self.release()
        return new

    def release(self) -> None:
        """Drop the handlers, after the last operation. They are methods of this object: without these references, it and all IR that it
        refers to are freed at once, not by the cycle collector."""
        self.handlers = {}

    def _rewritten(self, kernel: Kernel) -> Kernel:
        if type(self).visit is Rewriter.visit and self.handlers.keys().isdisjoint(kernel.codes):
            return kernel
        functions = tuple([f.with_body(self.region(f.body)) for f in kernel.functions])
        return kernel.with_body(self.region(kernel.body), functions)


def copied(b: Builder, operations: Iterable[Op]) -> dict[Op, Op]:
    """Append copies of ``operations``, which have no regions. Return the copy of each."""
    copies: dict[Op, Op] = {}
    for op in operations:
        copies[op] = b.append(Op(op.code, op.type, tuple([copies.get(a, a) for a in op.args]), op.attr, (), op.loc, op.primal))
    return copies
