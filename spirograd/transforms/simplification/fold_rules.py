"""Algebraic identities: the replacement of an operation, given its operands. They hold for every value, including NaN and -0."""

from __future__ import annotations

import math
from collections.abc import Callable

from spirograd.base.dtypes import DType, Vec, u1
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode

# A rule takes the operation and its current operands (constants on the right of commutative operations). It returns None if there is no
# replacement.
Rule = Callable[[Builder, Op, tuple[Op, ...]], Op | None]


def constant(op: Op) -> bool | int | float | None:
    """Return the value of a constant, or None for anything else."""
    return op.attr if op.code is ops.const else None


def _ones(t: DType) -> int | bool:
    if t is u1:
        return True
    return -1 if t.is_signed else int(t.max)


def _type(op: Op) -> DType:
    assert isinstance(op.type, DType), op
    return op.type


def _positive_zero(value: object) -> bool:
    return bool(value == 0 and math.copysign(1.0, value) > 0)


def _reassociated(b: Builder, op: Op, a: Op, c: object) -> Op | None:
    """Fold (x op c1) op c2 to x op (c1 op c2), for integers."""
    if a.code is not op.code or a.attr != op.attr:
        return None
    inner = constant(a.args[1])
    if inner is None:
        return None
    t = _type(op)
    value = ops.evaluate(op.code, t, (t.np.type(inner), t.np.type(c)))
    return b.emit(op.code, a.args[0], b.const(int(value), t), attr=op.attr)


def _add(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    a, c = args[0], constant(args[1])
    if c is None:
        return None
    if _type(op).is_float:
        # A sum with 0 that is marked "exact" stays: it hides the computation of its operand from a driver (`fuse`), unless that is also
        # marked.
        hides = op.attr == "exact" and a.attr != "exact"
        return a if c == 0 and not _positive_zero(c) and not hides else None
    return a if c == 0 else _reassociated(b, op, a, c)


def _sub(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    a, c = args[0], constant(args[1])
    t = _type(op)
    if t.is_float:
        return a if c is not None and _positive_zero(c) else None
    if c == 0:
        return a
    return b.const(0, t) if args[0] is args[1] else None


def _mul(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    a, c = args[0], constant(args[1])
    if c is None:
        return None
    if c == 1:
        return a
    if _type(op).is_float:
        return None
    return args[1] if c == 0 else _reassociated(b, op, a, c)


def _div(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    a, c = args[0], constant(args[1])
    if c is None:
        return None
    if c == 1:
        return a
    # Division by a power of two whose reciprocal is a normal number of the type is exact as a product. Division by zero equals a product
    # with the infinity of its sign for every dividend (lavapipe computes divisions by a constant 0 wrong).
    t = _type(op)
    if c == 0:
        return b.emit(ops.mul, a, b.const(math.copysign(math.inf, c), t), attr=op.attr)
    if not math.isfinite(c) or abs(math.frexp(c)[0]) != 0.5:
        return None
    reciprocal = 1.0 / c
    smallest = {16: 2.0**-14, 32: 2.0**-126, 64: 2.0**-1022}[t.bits]
    fits = smallest <= abs(reciprocal) <= float(t.max) and abs(c) >= smallest
    return b.emit(ops.mul, a, b.const(reciprocal, t)) if fits else None


def _quotient(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    """Fold idiv and floordiv. 0 divided by anything, 0 included, is 0."""
    return args[0] if constant(args[1]) == 1 or constant(args[0]) == 0 else None


def _remainder(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    return b.const(0, _type(op)) if constant(args[1]) == 1 or constant(args[0]) == 0 else None


def _involution(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    return args[0].args[0] if args[0].code is op.code else None


_OPPOSITE = {ops.eq: ops.ne, ops.ne: ops.eq}
_OPPOSITE_ORDER = {ops.lt: ops.ge, ops.ge: ops.lt, ops.gt: ops.le, ops.le: ops.gt}


def _not(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    a = args[0]
    opposite = _OPPOSITE.get(a.code)
    if opposite is None and a.code in _OPPOSITE_ORDER and not _type(a.args[0]).is_float:
        opposite = _OPPOSITE_ORDER[a.code]
    if opposite is not None:
        return b.emit(opposite, *a.args)
    return _involution(b, op, args)


def _abs(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    a = args[0]
    if a.code is ops.abs_ or not _type(op).is_signed:
        return a
    return b.emit(ops.abs_, a.args[0]) if a.code is ops.neg else None


def _same_operands(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    return args[0] if args[0] is args[1] else None


def _and(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    c = constant(args[1])
    if c is not None:
        return args[0] if c == _ones(_type(op)) else args[1] if c == 0 else None
    return _same_operands(b, op, args)


def _or(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    c = constant(args[1])
    if c is not None:
        return args[1] if c == _ones(_type(op)) else args[0] if c == 0 else None
    return _same_operands(b, op, args)


def _xor(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    c = constant(args[1])
    if c is not None:
        return args[0] if c == 0 else b.emit(ops.not_, args[0]) if c == _ones(_type(op)) else None
    return b.const(0, _type(op)) if args[0] is args[1] else None


def _shift(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    return args[0] if constant(args[1]) == 0 or constant(args[0]) == 0 else None


def _comparison(of_equals: bool) -> Rule:
    def rule(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
        """Fold x == x and similar comparisons, except of floats, and comparisons of u1 with a constant."""
        t = _type(args[0])
        if args[0] is args[1] and not t.is_float:
            return b.const(of_equals, u1)
        c = constant(args[1])
        if t is u1 and c is not None:
            return args[0] if (op.code is ops.eq) == c else b.emit(ops.not_, args[0])
        return None

    return rule


def _select(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    condition, x, y = args
    chosen = constant(condition)
    if chosen is not None:
        return x if chosen else y
    if x is y:
        return x
    if condition.code is ops.not_:
        return b.emit(ops.select, condition.args[0], y, x)
    if op.type is u1:
        return _select_flag(b, condition, x, y)
    return None


def _select_flag(b: Builder, condition: Op, x: Op, y: Op) -> Op | None:
    """Return a selection between truth values, one of which is known, as a logical operation."""
    if constant(x) is True:
        return condition if constant(y) is False else b.emit(ops.or_, condition, y)
    if constant(y) is False:
        return b.emit(ops.and_, condition, x)
    if constant(x) is False:
        other = b.emit(ops.not_, condition)
        return other if constant(y) is True else b.emit(ops.and_, other, y)
    if constant(y) is True:
        return b.emit(ops.or_, b.emit(ops.not_, condition), x)
    return None


def _keeps(source: DType, target: DType) -> bool:
    """Return whether ``target`` can represent every integer of ``source``."""
    if source is u1:
        return True
    return target is source or (target.bits > source.bits and (target.is_signed or not source.is_signed))


def _cast(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    a = args[0]
    if a.type is op.type:
        return a
    if a.code is not ops.cast:
        return None
    source, middle, target = _type(a.args[0]), _type(a), _type(op)
    if source is u1 and target is u1:
        return a.args[0]
    integral = (source.is_int or source is u1) and middle.is_int and target is not u1
    if integral and (_keeps(source, middle) or (target.is_int and target.bits <= middle.bits)):
        return b.cast(a.args[0], target)
    return None


def _bitcast(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    a = args[0]
    if a.code is ops.bitcast:
        a = a.args[0]
        return a if a.type is op.type else b.emit(ops.bitcast, a, type=op.type)
    return a if a.type is op.type else None


def _pow(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    """Fold small integer exponents."""
    x, c = args[0], constant(args[1])
    if c == 0:
        return b.const(1.0, _type(op))
    if c == 1:
        return x
    if c in (2, 3, 4):
        square = b.emit(ops.mul, x, x)
        return square if c == 2 else b.emit(ops.mul, square, x if c == 3 else square)
    return b.emit(ops.div, b.const(1.0, _type(op)), x) if c == -1 else None


def _extract(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    vector, at = args[0], constant(args[1])
    if at is None or not isinstance(vector.type, Vec) or not 0 <= at < vector.type.n:
        return None
    while vector.code is ops.insert and constant(vector.args[1]) is not None:
        if constant(vector.args[1]) == at:
            return vector.args[2]
        vector = vector.args[0]
    if vector.code is ops.vec:
        return vector.args[int(at)]
    return b.emit(ops.extract, vector, args[1]) if vector is not args[0] else None


def _vec(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    """Fold a vector of all elements of another vector, in order."""
    first = args[0]
    if first.code is not ops.extract or not isinstance(first.args[0].type, Vec) or first.args[0].type.n != len(args):
        return None
    vector: Op = first.args[0]
    elements = (x.code is ops.extract and x.args[0] is vector and constant(x.args[1]) == k for k, x in enumerate(args))
    return vector if all(elements) else None


def _insert(b: Builder, op: Op, args: tuple[Op, ...]) -> Op | None:
    vector, at = args[0], constant(args[1])
    if at is None or vector.code is not ops.vec or not 0 <= at < len(vector.args):
        return None
    return b.emit(ops.vec, *[args[2] if k == at else x for k, x in enumerate(vector.args)])


RULES: dict[OpCode, Rule] = {
    ops.add: _add, ops.sub: _sub, ops.mul: _mul, ops.div: _div, ops.idiv: _quotient, ops.floordiv: _quotient, ops.irem: _remainder,
    ops.floormod: _remainder, ops.neg: _involution, ops.not_: _not, ops.abs_: _abs, ops.min_: _same_operands, ops.max_: _same_operands,
    ops.and_: _and, ops.or_: _or, ops.xor: _xor, ops.shl: _shift, ops.shr: _shift, ops.eq: _comparison(True), ops.ne: _comparison(False),
    ops.lt: _comparison(False), ops.le: _comparison(True), ops.gt: _comparison(False), ops.ge: _comparison(True), ops.select: _select,
    ops.cast: _cast, ops.bitcast: _bitcast, ops.pow_: _pow, ops.extract: _extract, ops.insert: _insert, ops.vec: _vec,
}  # fmt: skip
