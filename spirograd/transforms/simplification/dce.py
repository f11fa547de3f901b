"""Dead code elimination of values, results of control operations, loop-carried values and whole tasks."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region, called, callee_of
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

_ROOTS = frozenset(("write", "atomic", "call", "barrier", "check", "print"))
# Operations whose liveness needs more, or less, than that of their operands.
_STRUCTURE = frozenset((ops.result, ops.param, ops.if_, ops.for_, ops.while_, ops.task, ops.each_lane))
# Operands, and parameters of regions, before the loop-carried values.
_FIXED = {ops.for_: 2, ops.while_: 0}
_LEADING = {ops.for_: 1, ops.while_: 0}


def dce(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Remove operations that have no effect and on which no effect depends. Return the same object if there are none.

    A `while` without effects is also removed, even if it would never end.
    """
    live = _Liveness()
    functions = called(kernel.functions, (kernel.body,))
    for function in functions:
        live.region(function.body, None)
        for value in function.body.results:
            live.need(value)
    live.region(kernel.body, None)
    live.close()
    if live.complete and len(functions) == len(kernel.functions):
        return kernel
    return _Remove(live).kernel(kernel.with_body(kernel.body, functions))


class _Liveness:
    """A liveness analysis that marks live operations backwards from the effects, each operation once."""

    def __init__(self) -> None:
        self.live: set[Op] = set()
        self.kept: dict[Op, set[int]] = {}  # control operation -> the live results
        self.owner: dict[Op, Op] = {}  # operation -> the control operation around it
        self.place: dict[Op, tuple[Op, int]] = {}  # loop-carried parameter -> (loop, number)
        self.work: list[Op] = []
        self.total = 0
        self.results = 0
        self.params = 0  # the number of live ones

    @property
    def complete(self) -> bool:
        """Return whether everything is live."""
        if sum(map(len, self.kept.values())) != self.results:
            return False
        return len(self.live) - self.params == self.total

    def region(self, region: Region, owner: Op | None) -> None:
        """Collect the operations of ``region`` and mark its effects."""
        self.total += len(region.ops) - 1
        for op in region.ops[:-1]:
            if owner is not None:
                self.owner[op] = owner
            if op.code.effect in _ROOTS:
                self.need(op)
                self.need_owners(op)
            elif op.regions:
                self.control(op)

    def control(self, op: Op) -> None:
        self.results += len(op.type) if isinstance(op.type, tuple) else 0
        self.kept[op] = set()
        if op.code in _FIXED:
            carried, skip = len(op.args) - _FIXED[op.code], _LEADING[op.code]
            for region in op.regions:
                self.place.update((p, (op, k)) for k, p in enumerate(region.params[skip : skip + carried]))
        for region in op.regions:
            self.region(region, op)

    def need(self, op: Op) -> None:
        if op not in self.live:
            self.live.add(op)
            self.work.append(op)

    def need_owners(self, op: Op) -> None:
        around = self.owner.get(op)
        while around is not None and around not in self.live:
            self.need(around)
            around = self.owner.get(around)

    def close(self) -> None:
        """Mark everything that the marked operations use."""
        live, work = self.live, self.work
        while work:
            op = work.pop()
            code = op.code
            if code not in _STRUCTURE:
                for a in op.args:
                    if a not in live:
                        live.add(a)
                        work.append(a)
            elif code is ops.result:
                self.need_result(op.args[0], op.attr)
            elif code is ops.param:
                self.params += 1
                if op in self.place:
                    self.need_result(*self.place[op])
            elif code is ops.if_:
                self.need(op.args[0])
            elif code is ops.for_:
                self.need(op.args[0])
                self.need(op.args[1])
            elif code is ops.while_:  # the other values that a condition yields go to the body unchanged
                for value in op.regions[0].results:
                    self.need(value)
            else:
                for a in op.args:
                    self.need(a)
                if code is ops.each_lane:
                    self.kept[op].update(range(len(op.regions[0].results)))
                for region in op.regions:
                    for value in region.results:
                        self.need(value)

    def need_result(self, op: Op, k: int) -> None:
        """Mark result ``k`` of a control operation or a call. A function keeps all of its results, which other calls may use."""
        self.need(op)
        if callee_of(op) is not None:
            return
        kept = self.kept[op]
        if k in kept or op.code is ops.each_lane:
            return
        kept.add(k)
        if op.code is ops.if_:
            for region in op.regions:
                self.need(region.results[k])
            return
        self.need(op.args[_FIXED[op.code] + k])
        self.need(op.regions[-1].results[k])


class _Remove(Rewriter):
    def __init__(self, live: _Liveness) -> None:
        super().__init__()
        self.live = live.live
        self.kept = {op: sorted(ks) for op, ks in live.kept.items()}
        self.handlers = {ops.if_: self._if, ops.for_: self._loop, ops.while_: self._loop, ops.result: self._result}
        self.keep_yields: list[list[int] | None] = []

    def visit(self, op: Op) -> None:
        if op in self.live:
            super().visit(op)

    def visit_all(self, body: Sequence[Op]) -> None:
        live, handlers, done = self.live, self.handlers, self.b.ops
        is_unchanged = self.env.keys().isdisjoint
        for op in body:
            if op not in live:
                continue
            if op.code in handlers or op.regions or not is_unchanged(op.args):
                super().visit(op)
            else:
                done.append(op)

    def yielded(self, op: Op) -> tuple[Op, ...]:
        keep = self.keep_yields[-1] if self.keep_yields else None
        return self.args(op) if keep is None else tuple([self.value(op.args[k]) for k in keep])

    def region(self, region: Region) -> Region:
        return self._region(region, region.params, None)

    def _region(self, region: Region, params: tuple[Op, ...], keep: list[int] | None) -> Region:
        self.keep_yields.append(keep)
        new = super().region(region)
        self.keep_yields.pop()
        return new if len(params) == len(region.params) else Region(params, new.ops)

    def _result(self, op: Op) -> Op:
        kept = self.kept.get(op.args[0])
        k = op.attr if kept is None else kept.index(op.attr)
        source = self.value(op.args[0])
        if k == op.attr and source is op.args[0]:
            return self.b.append(op)
        return self.b.append(Op(op.code, op.type, (source,), k, (), op.loc))

    def _if(self, op: Op) -> Op:
        keep = self.kept[op]
        regions = tuple([self._region(r, (), keep) for r in op.regions])
        return self._rebuilt(op, keep, self.args(op), regions)

    def _loop(self, op: Op) -> Op:
        keep = self.kept[op]
        fixed = _FIXED[op.code]
        args = self.args(op)
        args = (*args[:fixed], *[args[fixed + k] for k in keep])
        regions = []
        for n, region in enumerate(op.regions):
            skip, end = _LEADING[op.code], _LEADING[op.code] + len(op.args) - fixed
            params = (*region.params[:skip], *[region.params[skip + k] for k in keep], *region.params[end:])
            condition = op.code is ops.while_ and n == 0
            regions.append(self._region(region, params, None if condition else keep))
        return self._rebuilt(op, keep, args, tuple(regions))

    def _rebuilt(self, op: Op, keep: list[int], args: tuple[Op, ...], regions: tuple[Region, ...]) -> Op:
        if args == op.args and regions == op.regions:
            return self.b.append(op)
        assert isinstance(op.type, tuple)
        types = tuple([op.type[k] for k in keep])
        return self.b.append(Op(op.code, types, args, op.attr, regions, op.loc, op.primal))
