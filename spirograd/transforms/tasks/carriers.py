"""The types in which private copies in shared memory hold elements of other types, because shared memory only has atomics on words.

Narrow integers are held in a word of the same signedness, whose low bits are the element even if it wraps. Sums of narrow floats are held
in f32. Minima and maxima of floats are held as integers of the same order: the bits of the float, all inverted but the sign if the sign is
set. NaN, which loses to numbers, is held as the identity, the bits of a NaN beyond all numbers.
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
    """A type ``dtype`` that holds elements of another type. ``hold(b, value)`` and ``element(b, held)`` convert."""

    dtype: DType
    hold: Callable[[Builder, Op], Op]
    element: Callable[[Builder, Op], Op]


def carrier(kind: str, t: DType, caps: Capabilities) -> Carrier | None:
    """Return the carrier of elements of type ``t`` for atomics of ``kind``, or None if there is none."""
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
    """Map a float to an integer, in the same order."""
    bits = b.emit(ops.bitcast, value, type=i32)
    rest = b.emit(ops.and_, bits, b.const(_ALL_BUT_SIGN))
    number = b.emit(ops.le, rest, b.const(_INFINITY))
    return b.emit(ops.select, number, _flipped(b, bits), b.const(int(ops.identity(kind, i32))))


def _unordered(b: Builder, held: Op) -> Op:
    return b.emit(ops.bitcast, _flipped(b, held), type=f32)


def _flipped(b: Builder, bits: Op) -> Op:
    """Invert all ``bits`` but the sign, if the sign is set."""
    negative = b.emit(ops.lt, bits, b.const(0))
    return b.emit(ops.select, negative, b.emit(ops.xor, bits, b.const(_ALL_BUT_SIGN)), bits)
