"""Constant folding: algebraic identities, and removal of branches with known conditions and loops with known trip counts."""

from __future__ import annotations

from spirograd.base.dtypes import DType, u1
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.fold_rules import RULES, constant

# The largest number of cheap operations in the branches of an `if` that becomes a `select`.
_MAX_SELECT = 4
_CHEAP = frozenset((
    ops.const, ops.add, ops.sub, ops.mul, ops.neg, ops.abs_, ops.min_, ops.max_, ops.and_, ops.or_, ops.xor, ops.not_, ops.eq, ops.ne,
    ops.lt, ops.le, ops.gt, ops.ge, ops.select, ops.cast, ops.bitcast, ops.fma,
))  # fmt: skip

_PURE = tuple([code for code in ops.ALL if code.effect == "pure" and code.evaluate is not None])


def fold(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Run one round of folding, which is exact for integers and floats."""
    return _Fold().kernel(kernel)


class _Fold(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = dict.fromkeys(_PURE, self._pure)
        self.handlers |= {ops.result: self._result, ops.if_: self._if, ops.for_: self._for, ops.while_: self._while}
        self.replaced: dict[tuple[Op, int], Op] = {}  # results of control operations that are known

    def _pure(self, op: Op) -> Op:
        args = self.args(op)
        if args[0].code is ops.const:
            if isinstance(op.type, DType) and args[-1].code is ops.const and all(a.code is ops.const for a in args):
                return self._evaluate(op, args)
            if op.code.commutative:
                args = (args[1], args[0])
        rule = RULES.get(op.code)
        if rule is not None:
            new = rule(self.b, op, args)
            if new is not None:
                return new
        if self.cloning or (args is not op.args and args != op.args):
            op = Op(op.code, op.type, args, op.attr, (), op.loc, op.primal)
        self.b.ops.append(op)
        return op

    def _evaluate(self, op: Op, args: tuple[Op, ...]) -> Op:
        values = [_scalar(a).np.type(a.attr) for a in args]
        assert isinstance(op.type, DType)
        value = ops.evaluate(op.code, op.type, tuple(values))
        return self.b.const(bool(value) if op.type is u1 else value.item(), op.type)

    def _result(self, op: Op) -> Op:
        known = self.replaced.get((op.args[0], op.attr))
        return self.copy(op) if known is None else known

    def _replace(self, op: Op, results: tuple[Op, ...]) -> None:
        self.replaced.update(((op, k), value) for k, value in enumerate(results))

    # --- branches ----------------------------------------------------------------------------------------------------------

    def _if(self, op: Op) -> Op | None:
        condition = self.value(op.args[0])
        known = constant(condition)
        if known is not None:
            self._replace(op, self.inline(op.regions[0 if known else 1], ()))
            return None
        if op.type and _is_cheap(op.regions[0]) and _is_cheap(op.regions[1]):
            then, orelse = self.inline(op.regions[0], ()), self.inline(op.regions[1], ())
            self.b.at(op)
            chosen = [x if x is y else self.b.emit(ops.select, condition, x, y) for x, y in zip(then, orelse)]
            self._replace(op, tuple(chosen))
            return None
        new = self.copy(op)
        for k, (x, y) in enumerate(zip(new.regions[0].results, new.regions[1].results)):
            if x is y:
                self.replaced[op, k] = x
        return new

    # --- loops -------------------------------------------------------------------------------------------------------------

    def _unchanged(self, op: Op, region: Region, skip: int, initial: tuple[Op, ...]) -> None:
        """Replace a loop-carried value that the body passes on unchanged by its initial value."""
        for k, (param, value) in enumerate(zip(region.params[skip:], region.results)):
            if value is param:
                self.env[param] = initial[k]
                self.replaced[op, k] = initial[k]

    def _for(self, op: Op) -> Op | None:
        begin, end, *initial = self.args(op)
        first, last = constant(begin), constant(end)
        region = op.regions[0]
        if first is not None and last is not None:
            if last <= first:
                self._replace(op, tuple(initial))
                return None
            if last == first + 1 and not op.attr.parallel:
                self._replace(op, self.inline(region, (begin, *initial)))
                return None
        self._unchanged(op, region, 1, tuple(initial))
        return self.copy(op)

    def _while(self, op: Op) -> Op | None:
        initial = self.args(op)
        condition, body = op.regions
        verdict = condition.results[0]
        if len(condition.ops) == 1 and verdict in condition.params:
            verdict = initial[condition.params.index(verdict)]
        if constant(self.value(verdict)) is False and all(o.code.effect == "pure" for o in condition.ops[:-1]):
            self._replace(op, initial)
            return None
        self._unchanged(op, body, 0, initial)
        for param, twin in zip(body.params, condition.params):
            if param in self.env:
                self.env[twin] = self.env[param]
        return self.copy(op)


def _is_cheap(region: Region) -> bool:
    return len(region.ops) <= _MAX_SELECT + 1 and all(op.code in _CHEAP for op in region.ops[:-1])


def _scalar(op: Op) -> DType:
    assert isinstance(op.type, DType)
    return op.type
