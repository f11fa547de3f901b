"""The types in which private copies in shared memory hold elements of other types: shared memory has atomics of words only.

Narrow integers are held by a word of the same sign: whatever it wraps to, its low bits are the element. Sums of narrow floats are held in
f32. Minima and maxima of floats are held by integers in the same order: those of their bits, where the bits of negative ones but for the
sign are inverted. NaN, which gives way to numbers, is held by what changes nothing, the bits of a NaN that lies beyond all numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, f32, i32, u32
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op

_INTEGER_KINDS = ("add", "min", "max", "and", "or", "xor")
_ALL_BUT_SIGN, _INFINITY = 0x7FFFFFFF, 0x7F800000


@dataclass(frozen=True, slots=True)
class Carrier:
    """``dtype`` holds elements; ``hold(b, value)`` and ``element(b, held)`` convert."""

    dtype: DType
    hold: Callable[[Builder, Op], Op]
    element: Callable[[Builder, Op], Op]


def carrier(kind: str, t: DType, caps: Capabilities) -> Carrier | None:
    """What holds elements of type ``t`` for atomics of ``kind``, None if nothing can."""
    if t.bits > 32:
        return None
    if t.is_int and kind in _INTEGER_KINDS:
        return _by_cast(i32 if t.is_signed else u32, t)
    if t.is_float and kind == "add" and caps.shared_f32_add:
        return _by_cast(f32, t)
    if t.is_float and kind in ("min", "max"):
        return Carrier(i32, lambda b, value: _ordered(b, kind, b.cast(value, f32)), lambda b, held: b.cast(_unordered(b, held), t))
    return None


def _by_cast(held: DType, t: DType) -> Carrier:
    return Carrier(held, lambda b, value: b.cast(value, held), lambda b, value: b.cast(value, t))


def _ordered(b: Builder, kind: str, value: Op) -> Op:
    """An integer for a float: a larger one for a larger float."""
    bits = b.emit(ops.bitcast, value, type=i32)
    rest = b.emit(ops.and_, bits, b.const(_ALL_BUT_SIGN))
    number = b.emit(ops.le, rest, b.const(_INFINITY))
    return b.emit(ops.select, number, _flipped(b, bits), b.const(int(ops.identity(kind, i32))))


def _unordered(b: Builder, held: Op) -> Op:
    return b.emit(ops.bitcast, _flipped(b, held), type=f32)


def _flipped(b: Builder, bits: Op) -> Op:
    """All bits but the sign inverted, if that is set."""
    negative = b.emit(ops.lt, bits, b.const(0))
    return b.emit(ops.select, negative, b.emit(ops.xor, bits, b.const(_ALL_BUT_SIGN)), bits)
