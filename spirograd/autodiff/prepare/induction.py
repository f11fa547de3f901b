"""Induction variables: loop-carried values that can be computed from the index of their loop become values computed from it."""

from __future__ import annotations

from spirograd.analysis.loop_invariants import Invariants, contents
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.dce import dce

# A step may itself be a loop-carried value that first becomes a function of the index, so the pass repeats.
_ROUNDS = 3
# A step: the value, and whether it is added in each iteration (True) or subtracted.
_Steps = list[tuple[bool, Op]]


def induction(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Compute loop-carried integers of a serial `for` from its index, if the body adds or subtracts a loop-invariant value in every
    iteration, or sets them to the index plus or minus such a value.

    The arithmetic wraps, as the additions did; the new operations are marked so, and are not checked for overflow. `fold` handles values
    that a loop passes on unchanged.
    """
    for _ in range(_ROUNDS):
        new = _Induction().kernel(kernel)
        if new is kernel:
            break
        kernel = dce(new, ctx)
    return kernel


class _Induction(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.for_: self._for, ops.result: self._result}
        self.results: dict[tuple[Op, int], Op] = {}  # (loop, number) -> the final value

    def _result(self, op: Op) -> Op:
        final = self.results.get((op.args[0], op.attr))
        return self.copy(op) if final is None else final

    def _for(self, op: Op) -> Op:
        if op.attr.parallel or len(op.args) == 2:
            return self.copy(op)
        inside = contents(*op.regions)
        invariant = Invariants(inside)
        closed = [c for k in range(len(op.args) - 2) if (c := _closed(op, k, invariant)) is not None]
        if not closed:
            return self.copy(op)
        for c in closed:
            c.steps = [(plus, self.rematerialised(v, inside)) for plus, v in c.steps]
        args = self.args(op)
        body = op.regions[0]
        self.b.begin()
        self.b.loc = op.loc
        for c in closed:
            self.env[body.params[1 + c.number]] = self._at(c, body.params[0], args)
        for inner in body.ops[:-1]:
            self.visit(inner)
        self.b.loc = body.ops[-1].loc
        region = Region(body.params, self.b.end(self.args(body.ops[-1])).ops)
        self.b.loc = op.loc
        new = self.b.append(Op(op.code, op.type, args, op.attr, (region,), op.loc))
        for c in closed:
            self.results[op, c.number] = self._final(c, args)
        return new

    def _sum(self, start: Op, steps: _Steps) -> Op:
        for plus, value in steps:
            start = self.b.emit(ops.add if plus else ops.sub, start, value, attr="wrap")
        return start

    def _at(self, c: _Closed, index: Op, args: tuple[Op, ...]) -> Op:
        """Return the loop-carried value in the iteration ``index``."""
        initial, begin = args[2 + c.number], args[0]
        if c.of_index:
            one = self.b.const(1, _integer(index))
            last = self.b.cast(self.b.emit(ops.sub, index, one, attr="wrap"), _integer(initial))
            return self.b.emit(ops.select, self.b.emit(ops.eq, index, begin), initial, self._sum(last, c.steps))
        return self._after(c, initial, index, begin)

    def _final(self, c: _Closed, args: tuple[Op, ...]) -> Op:
        begin, end, initial = args[0], args[1], args[2 + c.number]
        if c.of_index:
            one = self.b.const(1, _integer(end))
            last = self.b.cast(self.b.emit(ops.sub, end, one, attr="wrap"), _integer(initial))
            return self.b.emit(ops.select, self.b.emit(ops.lt, begin, end), self._sum(last, c.steps), initial)
        return self._after(c, initial, self.b.emit(ops.max_, begin, end), begin)

    def _after(self, c: _Closed, initial: Op, index: Op, begin: Op) -> Op:
        """Return ``initial`` after ``index - begin`` iterations."""
        t = _integer(initial)
        count = self.b.emit(ops.sub, self.b.cast(index, t), self.b.cast(begin, t), attr="wrap")
        step = self._sum(self.b.const(0, t), c.steps)
        return self.b.emit(ops.add, initial, self.b.emit(ops.mul, count, step, attr="wrap"), attr="wrap")


class _Closed:
    """A closed form: after an iteration, loop-carried value ``number`` of a loop is its value before, or the index (``of_index``), plus the
    ``steps``."""

    def __init__(self, number: int, of_index: bool, steps: _Steps) -> None:
        self.number = number
        self.of_index = of_index
        self.steps = steps


def _closed(loop: Op, k: int, invariant: Invariants) -> _Closed | None:
    body = loop.regions[0]
    index, param = body.params[0], body.params[1 + k]
    t = param.type
    if not isinstance(t, DType) or not t.is_int:
        return None
    steps: _Steps = []
    value = body.results[k]
    while value.code in (ops.add, ops.sub):
        a, b = value.args
        plus = value.code is ops.add
        if plus and a in invariant:
            a, b = b, a
        if b not in invariant:
            return None
        steps.append((plus, b))
        value = a
    steps.reverse()
    if value is param:
        return _Closed(k, False, steps) if steps else None
    if value.code is ops.cast and value.args[0] is index:
        value = index
    return _Closed(k, True, steps) if value is index else None


def _integer(value: Op) -> DType:
    assert isinstance(value.type, DType)
    return value.type
