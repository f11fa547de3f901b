"""Loop bounds as size expressions that the host can evaluate before a launch."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.dtypes import DType
from spirograd.base.sizes.limits import Scope
from spirograd.base.sizes.size_nodes import Add, Arg, Binary, Extent, FloorDiv, IfLess, Max, Min, Mod, Mul, Size, Sub
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode

_BINARY: dict[OpCode, type[Binary]] = {
    ops.add: Add,
    ops.mul: Mul,
    ops.min_: Min,
    ops.max_: Max,
    ops.floordiv: FloorDiv,
    ops.floormod: Mod,
}


# The longest expressions. An expression repeats a value for each of its uses; long ones are slow to evaluate, and useless in messages.
_MOST_OPERATIONS = 200

# A function that returns the size of a load, or of a parameter of a loop, if the caller knows it.
Leaf = Callable[[Op], "Size | None"]


def size_of(value: Op, leaf: Leaf | None = None) -> Size | None:
    """Return ``value``, an integer of kernel IR, as a size expression, or None if only the device can know it. ``leaf``: gives the sizes of
    loads and parameters.

    A size consists of constants, scalar arguments, array extents and a limited amount of their arithmetic. Sizes do not wrap: a bound whose
    computation overflows its type is undefined.
    """
    return _size(value, leaf) if _room_for(value, _MOST_OPERATIONS) >= 0 else None


def _room_for(value: Op, most: int) -> int:
    """Return how many of ``most`` operations are left once ``value`` is written as an expression; less than 0 if they do not suffice."""
    most -= 1
    for operand in value.args:
        if most < 0:
            break
        most = _room_for(operand, most)
    return most


def _size(value: Op, leaf: Leaf | None) -> Size | None:
    if not isinstance(value.type, DType) or not value.type.is_int:
        return None
    if value.code is ops.const:
        return int(value.attr)
    if value.code is ops.arg:
        return Arg(value.attr)
    if value.code is ops.shape:
        return Extent(*value.attr)
    if value.code in (ops.load, ops.param):
        return leaf(value) if leaf is not None else None
    kind = _BINARY.get(value.code)
    if kind is not None:
        a, b = _size(value.args[0], leaf), _size(value.args[1], leaf)
        return None if a is None or b is None else kind(a, b)
    special = _SPECIAL.get(value.code)
    return special(value, leaf) if special is not None else None


def _cast(value: Op, leaf: Leaf | None) -> Size | None:
    """Return the size of a conversion between integer types that keeps every value, or keeps all that occur."""
    source, target = value.args[0].type, value.type
    if not isinstance(source, DType) or not isinstance(target, DType) or not source.is_int:
        return None
    size = _size(value.args[0], leaf)
    same_sign = source.is_signed == target.is_signed and target.bits >= source.bits
    widening = target.bits > source.bits and target.is_signed
    if size is None or same_sign or widening:
        return size
    (low, high), (least, most) = Scope().limits(size), _range_of(value.args[0])
    return size if max(low, least) >= target.min and min(high, most) <= target.max else None


def _range_of(value: Op) -> tuple[int, int]:
    """Return the bounds of ``value``, from its type and its operands if it is the count of a loop, as the front end computes it."""
    assert isinstance(value.type, DType)
    if value.code is ops.const:
        return int(value.attr), int(value.attr)
    if value.code is ops.floordiv and value.args[1].code is ops.const and value.args[1].attr > 0:
        low, high = _range_of(value.args[0])
        return low // int(value.args[1].attr), high // int(value.args[1].attr)
    if value.code is ops.min_:
        (low, high), (least, most) = _range_of(value.args[0]), _range_of(value.args[1])
        return min(low, least), min(high, most)
    return int(value.type.min), int(value.type.max)


def _sub(value: Op, leaf: Leaf | None) -> Size | None:
    """Return the size of a difference, also of signed numbers in the unsigned type that holds it: max(a, b) - b, or a choice of a and b for
    that."""
    x, y = value.args
    if x.code is ops.cast and y.code is ops.cast and isinstance(value.type, DType) and not value.type.is_signed:
        (a,), (b,) = x.args, y.args
        one_of = b.args[1:] if b.code is ops.select else (b,)
        same = isinstance(a.type, DType) and a.type is b.type and a.type.bits == value.type.bits
        if a.code is ops.max_ and set(one_of) <= set(a.args) and same:
            x, y = a, b
    first, second = _size(x, leaf), _size(y, leaf)
    return None if first is None or second is None else Sub(first, second)


def _not(value: Op, leaf: Leaf | None) -> Size | None:
    """Return ~x as -x - 1."""
    a = _size(value.args[0], leaf)
    return None if a is None or not isinstance(value.type, DType) or not value.type.is_signed else Sub(-1, a)


def _shift(kind: type[Binary]) -> Callable[[Op, Leaf | None], Size | None]:
    """Return a function that takes shifts by a constant as multiplications or divisions by a power of two."""

    def convert(value: Op, leaf: Leaf | None) -> Size | None:
        number, count = value.args
        if count.code is not ops.const or not isinstance(value.type, DType):
            return None
        a = _size(number, leaf)
        return None if a is None else kind(a, 1 << int(count.attr) % value.type.bits)

    return convert


def _mask(value: Op, leaf: Leaf | None) -> Size | None:
    """Return the lowest bits as a remainder."""
    for number, mask in (value.args, value.args[::-1]):
        if mask.code is ops.const and int(mask.attr) >= 0 and not int(mask.attr) & int(mask.attr) + 1:
            a = _size(number, leaf)
            return None if a is None else Mod(a, int(mask.attr) + 1)
    return None


def _neg(value: Op, leaf: Leaf | None) -> Size | None:
    a = _size(value.args[0], leaf)
    return None if a is None or not isinstance(value.type, DType) or not value.type.is_signed else Sub(0, a)


# An order in terms of "less": whether its operands are swapped, and whether it is the negation of the result.
_ORDERS = {ops.lt: (False, False), ops.gt: (True, False), ops.ge: (False, True), ops.le: (True, True)}


def _select(value: Op, leaf: Leaf | None) -> Size | None:
    """Return a choice by the order of two numbers as a minimum, a maximum or a magnitude."""
    condition, chosen, other = value.args
    if condition.code not in _ORDERS:
        return None
    a, b, x, y = (_size(operand, leaf) for operand in (*condition.args, chosen, other))
    if a is None or b is None or x is None or y is None:
        return None
    exchanged, negated = _ORDERS[condition.code]
    a, b = (b, a) if exchanged else (a, b)
    x, y = (y, x) if negated else (x, y)
    if a == 0 and b == x and y == Sub(0, x):  # the magnitude of x, which is never negative
        return Max(Max(x, y), 0)
    return Add(y, IfLess(a, b, Sub(x, y)))


_SPECIAL: dict[OpCode, Callable[[Op, Leaf | None], Size | None]] = {
    ops.select: _select,
    ops.cast: _cast,
    ops.sub: _sub,
    ops.not_: _not,
    ops.shl: _shift(Mul),
    ops.shr: _shift(FloorDiv),
    ops.and_: _mask,
    ops.neg: _neg,
}
