"""The table of derivatives: the local partial derivatives of each operation, from which forward and reverse mode follow.

At points without a derivative, the derivative of `abs` at 0 is 0; `min` and `max` have the derivative of the operand that they take (of
equal operands the first, of NaN and a number the number); the derivative of rounding is 0; a power of 0 does not depend on the exponent.
Where a partial derivative is infinite or undefined at the edge of the domain (`sqrt` at 0, division by 0, `log` at 0 ...), a flow of 0
stays 0: an adjoint (or tangent) of 0 gives 0 there, not NaN, so that a branch that was not taken, or a `norm` of zero weight, does not turn
sums into NaN.
"""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode

# A partial derivative as a function of a flow (an adjoint or a tangent): (builder, operands, result, flow) -> its product with the flow.
Partial = Callable[[Builder, "tuple[Op, ...]", Op, Op], Op]


@dataclass(frozen=True, slots=True)
class Rule:
    """The partial derivatives of an operation by each operand, None for an operand without a derivative. ``text``: the same for readers.
    ``guarded``: they can be infinite or undefined, so a flow of 0 is guarded."""

    partials: tuple[Partial | None, ...]
    text: str
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class NoGradient:
    """The end of derivatives at an operation."""

    reason: str


@dataclass(frozen=True, slots=True)
class Structural:
    """An operation that the transformations handle themselves."""

    reason: str


def _f(b: Builder, value: float, like: Op) -> Op:
    assert isinstance(like.type, DType)
    return b.const(value, like.type)


def _mul(b: Builder, x: Op, y: Op) -> Op:
    return b.emit(ops.mul, x, y)


def _square(b: Builder, x: Op) -> Op:
    return b.emit(ops.mul, x, x)


def _same(b: Builder, x: tuple[Op, ...], r: Op, flow: Op) -> Op:
    return flow


def _nothing(b: Builder, x: tuple[Op, ...], r: Op, flow: Op) -> Op:
    return _f(b, 0.0, flow)


def _negated(b: Builder, x: tuple[Op, ...], r: Op, flow: Op) -> Op:
    return b.emit(ops.neg, flow)


def _times(k: int) -> Partial:
    """Return the partial that multiplies by operand ``k``."""
    return lambda b, x, r, flow: _mul(b, flow, x[k])


def _scaled(factor: Callable[[Builder, tuple[Op, ...], Op], Op]) -> Partial:
    """Return the partial that multiplies by ``factor(b, operands, result)``."""
    return lambda b, x, r, flow: _mul(b, flow, factor(b, x, r))


def _over(divisor: Callable[[Builder, tuple[Op, ...], Op], Op]) -> Partial:
    """Return the partial that divides by ``divisor(b, operands, result)``."""
    return lambda b, x, r, flow: b.emit(ops.div, flow, divisor(b, x, r))


def _abs(b: Builder, x: tuple[Op, ...], r: Op, flow: Op) -> Op:
    zero = _f(b, 0.0, flow)
    negative = b.emit(ops.select, b.emit(ops.lt, x[0], zero), b.emit(ops.neg, flow), zero)
    return b.emit(ops.select, b.emit(ops.gt, x[0], zero), flow, negative)


def _taken(k: int, compare: OpCode) -> Partial:
    """Return the partial by operand ``k`` of `min` or `max`: the flow if the operation takes this operand, else 0. It takes the first if
    ``compare(first, second)``, or if the second is NaN."""

    def partial(b: Builder, x: tuple[Op, ...], r: Op, flow: Op) -> Op:
        first = b.emit(ops.or_, b.emit(compare, x[0], x[1]), b.emit(ops.isnan, x[1]))
        zero = _f(b, 0.0, flow)
        return b.emit(ops.select, first, *((flow, zero) if k == 0 else (zero, flow)))

    return partial


def _one_minus_square(b: Builder, x: Op) -> Op:
    one = _f(b, 1.0, x)
    return _mul(b, b.emit(ops.sub, one, x), b.emit(ops.add, one, x))


def _rsqrt_partial(b: Builder, x: tuple[Op, ...], r: Op, flow: Op) -> Op:
    """Return the flow times -1/2 * result / x."""
    return _mul(b, _mul(b, flow, _f(b, -0.5, flow)), b.emit(ops.div, r, x[0]))


def _angle(k: int) -> Partial:
    """Return a partial of atan2(y, x): x / (x^2 + y^2) by y, -y / (x^2 + y^2) by x. Operands are scaled by the larger one, so that squares
    do not overflow."""

    def partial(b: Builder, x: tuple[Op, ...], r: Op, flow: Op) -> Op:
        size = b.emit(ops.max_, b.emit(ops.abs_, x[0]), b.emit(ops.abs_, x[1]))
        u, v = b.emit(ops.div, x[0], size), b.emit(ops.div, x[1], size)
        square = b.emit(ops.add, _square(b, u), _square(b, v))
        side = v if k == 0 else b.emit(ops.neg, u)
        return _mul(b, b.emit(ops.div, flow, size), b.emit(ops.div, side, square))

    return partial


def _power_by_base(b: Builder, x: tuple[Op, ...], r: Op, flow: Op) -> Op:
    """Return the flow times y * x^(y - 1), also where x is 0 or negative; 0 where y is 0."""
    base, exponent = x
    if exponent.code is ops.const:
        if exponent.attr == 2.0:
            return _mul(b, flow, b.emit(ops.add, base, base))
        if exponent.attr == 0.0:
            return _f(b, 0.0, flow)
    lower = b.emit(ops.pow_, base, b.emit(ops.sub, exponent, _f(b, 1.0, exponent)))
    slope = _mul(b, exponent, lower)
    if exponent.code is not ops.const:
        zero = _f(b, 0.0, exponent)
        slope = b.emit(ops.select, b.emit(ops.eq, exponent, zero), zero, slope)
    return _mul(b, flow, slope)


def _power_by_exponent(b: Builder, x: tuple[Op, ...], r: Op, flow: Op) -> Op:
    """Return the flow times x^y * log x; 0 where x or x^y is 0."""
    slope = _mul(b, r, b.emit(ops.log, x[0]))
    zero = _f(b, 0.0, r)
    flat = b.emit(ops.or_, b.emit(ops.eq, r, zero), b.emit(ops.eq, x[0], zero))
    return _mul(b, flow, b.emit(ops.select, flat, zero, slope))


def _convert(b: Builder, x: tuple[Op, ...], r: Op, flow: Op) -> Op:
    """Convert a derivative between float types. `pullback` gives the operand's type, `pushforward` the result's."""
    raise AssertionError("pullback and pushforward convert casts themselves")


_INTEGER = NoGradient("integers and truth values have no derivative")
_ROUNDING = NoGradient("constant between jumps: the derivative is 0")
_LEAF = NoGradient("depends on nothing")
_MEMORY = Structural("memory")
_CONTROL = Structural("control flow")
_VECTOR = Structural("entries of vectors")

RULES: dict[OpCode, Rule | NoGradient | Structural] = {
    ops.add: Rule((_same, _same), "1, 1"),
    ops.sub: Rule((_same, _negated), "1, -1"),
    ops.mul: Rule((_times(1), _times(0)), "b, a"),
    ops.div: Rule(
        (_over(lambda b, x, r: x[1]), lambda b, x, r, flow: b.emit(ops.neg, _mul(b, flow, b.emit(ops.div, r, x[1])))), "1/b, -(a/b)/b", True
    ),
    ops.neg: Rule((_negated,), "-1"),
    ops.abs_: Rule((_abs,), "sign(a)"),
    ops.min_: Rule((_taken(0, ops.le), _taken(1, ops.le)), "1 of the one taken"),
    ops.max_: Rule((_taken(0, ops.ge), _taken(1, ops.ge)), "1 of the one taken"),
    ops.fma: Rule((_times(1), _times(0), _same), "b, a, 1"),
    ops.sqrt: Rule((_over(lambda b, x, r: b.emit(ops.add, r, r)),), "1/(2 sqrt(a))", True),
    ops.rsqrt: Rule((_rsqrt_partial,), "-rsqrt(a)/(2a)", True),
    ops.exp: Rule((_scaled(lambda b, x, r: r),), "exp(a)"),
    ops.log: Rule((_over(lambda b, x, r: x[0]),), "1/a", True),
    ops.sin: Rule((_scaled(lambda b, x, r: b.emit(ops.cos, x[0])),), "cos(a)"),
    ops.cos: Rule((lambda b, x, r, flow: b.emit(ops.neg, _mul(b, flow, b.emit(ops.sin, x[0]))),), "-sin(a)"),
    ops.tan: Rule((_scaled(lambda b, x, r: b.emit(ops.add, _f(b, 1.0, r), _square(b, r))),), "1 + tan(a)^2"),
    ops.asin: Rule((_over(lambda b, x, r: b.emit(ops.sqrt, _one_minus_square(b, x[0]))),), "1/sqrt(1 - a^2)", True),
    ops.acos: Rule(
        (lambda b, x, r, flow: b.emit(ops.neg, b.emit(ops.div, flow, b.emit(ops.sqrt, _one_minus_square(b, x[0])))),),
        "-1/sqrt(1 - a^2)",
        True,
    ),
    ops.atan2: Rule((_angle(0), _angle(1)), "b/(a^2 + b^2), -a/(a^2 + b^2)", True),
    ops.tanh: Rule((_scaled(lambda b, x, r: _one_minus_square(b, r)),), "1 - tanh(a)^2"),
    ops.pow_: Rule((_power_by_base, _power_by_exponent), "b a^(b - 1), a^b log(a)", True),
    ops.cast: Rule((_convert,), "1 between floats"),
    **dict.fromkeys((ops.floor, ops.ceil, ops.trunc, ops.round_), _ROUNDING),
    ops.stop_grad: NoGradient("it ends derivatives on purpose"),
    ops.recall: Rule((_nothing, _same), "0, 1"),
    ops.with_partial: Rule((_same, _times(2), None), "1, c, none"),
    ops.opaque: Rule((_same,), "1"),
    **dict.fromkeys(
        (ops.const, ops.arg, ops.shape, ops.address, ops.seed, ops.adstack_word, ops.thread_slot, ops.builtin, ops.slot), _LEAF
    ),
    **dict.fromkeys((ops.idiv, ops.irem, ops.floordiv, ops.floormod, ops.and_, ops.or_, ops.xor, ops.not_, ops.shl, ops.shr), _INTEGER),
    **dict.fromkeys((ops.popcnt, ops.clz, ops.ctz, ops.eq, ops.ne, ops.lt, ops.le, ops.gt, ops.ge, ops.isnan, ops.isinf), _INTEGER),
    ops.call: NoGradient("functions are inlined before differentiation"),
    ops.call_memory: NoGradient("functions are inlined before differentiation"),
    ops.bitcast: NoGradient("bits are not numbers"),
    **dict.fromkeys((ops.vec, ops.extract, ops.insert, ops.select), _VECTOR),
    **dict.fromkeys((ops.load, ops.store, ops.atomic, ops.cas, ops.claim, ops.barrier, ops.check, ops.print_), _MEMORY),
    ops.clock: NoGradient("a clock depends on nothing"),
    ops.label: NoGradient("removed before differentiation"),
    ops.stream: NoGradient("emitted after differentiation"),
    ops.stack_room: NoGradient("functions that call themselves have no derivatives"),
    **dict.fromkeys((ops.workgroup_barrier, ops.subgroup_barrier, ops.subgroup_read), Structural("groups of threads")),
    **dict.fromkeys((ops.subgroup_ballot, ops.subgroup_reduce, ops.subgroup_scan), _INTEGER),
    **dict.fromkeys(sorted(ops.TILES, key=str), NoGradient("differentiated as products by rows")),
    **dict.fromkeys((ops.subgroup_shuffle, ops.matrix_load, ops.matrix_store, ops.matrix_product), NoGradient("device IR only")),
    **dict.fromkeys(ops.ON_LANES, NoGradient("only in planned loops")),
    **dict.fromkeys((ops.param, ops.result, ops.yield_, ops.if_, ops.for_, ops.while_, ops.outlined, ops.task), _CONTROL),
}


def differentiable(code: OpCode) -> bool:
    """Return whether a rule of this table carries derivatives from the operands of ``code`` to its result."""
    return isinstance(RULES.get(code), Rule)


def pullback(b: Builder, op: Op, args: tuple[Op, ...], result: Op, adjoint: Op) -> tuple[Op | None, ...]:
    """Return the contribution to the adjoint of each operand of ``op``, or None if an operand is a constant, is not a float, or has no
    derivative.

    ``args`` and ``result`` are the operands and the result of ``op`` in the code that ``b`` builds.
    """
    rule = RULES[op.code]
    assert isinstance(rule, Rule), op
    if op.code is ops.cast:
        t = args[0].type
        return (b.cast(adjoint, t) if isinstance(t, DType) and t.is_float else None,)
    nothing = b.emit(ops.eq, adjoint, _f(b, 0.0, adjoint)) if rule.guarded else None
    return tuple(
        [
            None if partial is None or a.code is ops.const else _share(b, partial, args, result, adjoint, nothing)
            for a, partial in zip(args, rule.partials)
        ]
    )


def pushforward(b: Builder, op: Op, args: tuple[Op, ...], result: Op, tangents: tuple[Op | None, ...]) -> Op | None:
    """Return the tangent of the result of ``op`` from those of its operands, None for zeros."""
    rule = RULES[op.code]
    assert isinstance(rule, Rule), op
    total: Op | None = None
    for partial, tangent in zip(rule.partials, tangents):
        if tangent is None or partial is None:
            continue
        if op.code is ops.cast:
            return b.cast(tangent, result.type) if isinstance(result.type, DType) and result.type.is_float else None
        nothing = b.emit(ops.eq, tangent, _f(b, 0.0, tangent)) if rule.guarded else None
        part = _share(b, partial, args, result, tangent, nothing)
        total = part if total is None else b.emit(ops.add, total, part)
    return total


def _share(b: Builder, partial: Partial, args: tuple[Op, ...], result: Op, flow: Op, nothing: Op | None) -> Op:
    """Return the flow through one partial derivative. ``nothing``: whether the flow is 0, for partials that must keep it 0."""
    part = partial(b, args, result, flow)
    return part if nothing is None else b.emit(ops.select, nothing, _f(b, 0.0, flow), part, attr="guard")
