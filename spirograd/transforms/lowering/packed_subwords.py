"""Packed subwords: accesses to elements of 8 and 16 bits through the 32-bit words that hold them, for devices that access nothing smaller.

Buffers begin and end at multiples of 16 bytes, so that the word around an element always exists.
"""

from __future__ import annotations

from spirograd.base.dtypes import DType, f32, u32
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Op

# Bits -> log2 of the number of elements in a word.
_LOG_PER_WORD = {8: 2, 16: 1}


@dataclass(frozen=True, slots=True)
class Subword:
    """A packed element: the words of its buffer, the number of its word, and its shift (u32) in the word."""

    words: BufferRef
    at: Op
    shift: Op
    bits: int

    @property
    def ones(self) -> int:
        """Return the mask of an element without a shift."""
        return (1 << self.bits) - 1

    def load(self, b: Builder) -> Op:
        """Return the bits of the element, as a u32 below 2**bits."""
        return b.emit(ops.and_, b.emit(ops.shr, b.load(self.words, self.at), self.shift), b.const(self.ones, u32))

    def store(self, b: Builder, value: Op) -> Op:
        """Replace the element by ``value`` (u32, below 2**bits).

        It takes two atomics, so that neighbours may be written at the same time. Between them the element is 0. If two invocations store
        different values to one element at the same time, which is a race in any case, the bits may mix.
        """
        b.atomic("and", self.words, self.at, b.emit(ops.not_, b.emit(ops.shl, b.const(self.ones, u32), self.shift)))
        return b.atomic("or", self.words, self.at, b.emit(ops.shl, value, self.shift))


def subword_of(b: Builder, ref: BufferRef, index: Op) -> Subword:
    """Return the position of element ``index`` of ``ref`` (8-bit or 16-bit elements)."""
    log = _LOG_PER_WORD[ref.dtype.bits]
    t = index.type
    assert isinstance(t, DType), index
    at = b.emit(ops.shr, index, b.const(log, t))
    lane = b.cast(b.emit(ops.and_, index, b.const((1 << log) - 1, t)), u32)
    shift = b.emit(ops.shl, lane, b.const(5 - log, u32))
    return Subword(BufferRef(ref.name, ref.slot, u32), at, shift, ref.dtype.bits)


# --- the bits of 16-bit floats, without 16-bit integers ------------------------------------------------------------------ Conversions go
# through f32: every f16 is 0, infinite, NaN or a normal number there. NaN stays NaN, with the upper bits of its payload.

_BIAS = (127 - 15) << 23
_F16_INFINITY, _F32_INFINITY = 0x7C00, 0x7F800000
_SMALLEST_NORMAL = 0x400  # of f16
_UNIT = 2.0**-24  # the exponent of the last place of f16 subnormals


def f32_from_half_bits(b: Builder, half: Op) -> Op:
    """Return the f32 that equals the f16 with the bits ``half`` (u32, below 2**16)."""
    magnitude = b.emit(ops.and_, half, b.const(0x7FFF, u32))
    shifted = b.emit(ops.shl, magnitude, b.const(13, u32))
    normal = b.emit(ops.add, shifted, b.const(_BIAS, u32))
    special = b.emit(ops.or_, shifted, b.const(_F32_INFINITY, u32))
    tiny = b.emit(ops.bitcast, b.emit(ops.mul, b.cast(magnitude, f32), b.const(_UNIT, f32)), type=u32)
    bits = b.emit(ops.select, b.emit(ops.lt, magnitude, b.const(_F16_INFINITY, u32)), normal, special)
    bits = b.emit(ops.select, b.emit(ops.lt, magnitude, b.const(_SMALLEST_NORMAL, u32)), tiny, bits)
    sign = b.emit(ops.shl, b.emit(ops.and_, half, b.const(0x8000, u32)), b.const(16, u32))
    return b.emit(ops.bitcast, b.emit(ops.or_, bits, sign), type=f32)


def half_bits_from_f32(b: Builder, value: Op) -> Op:
    """Return the bits (u32) of the f16 that equals ``value``, an f32 that f16 can represent."""
    bits = b.emit(ops.bitcast, value, type=u32)
    magnitude = b.emit(ops.and_, bits, b.const(0x7FFFFFFF, u32))
    normal = b.emit(ops.shr, b.emit(ops.sub, magnitude, b.const(_BIAS, u32)), b.const(13, u32))
    payload = b.emit(ops.and_, b.emit(ops.shr, magnitude, b.const(13, u32)), b.const(0x3FF, u32))
    # A NaN with only low bits set must not become an infinity: it gets the upper bit of quiet NaN.
    quiet = b.emit(ops.shl, b.cast(b.emit(ops.gt, magnitude, b.const(_F32_INFINITY, u32)), u32), b.const(9, u32))
    special = b.emit(ops.or_, b.emit(ops.or_, payload, quiet), b.const(_F16_INFINITY, u32))
    scaled = b.emit(ops.mul, b.emit(ops.bitcast, magnitude, type=f32), b.const(1 / _UNIT, f32))
    is_tiny = b.emit(ops.lt, magnitude, b.const(_BIAS + (1 << 23), u32))
    tiny = b.cast(b.emit(ops.select, is_tiny, scaled, b.const(0.0, f32)), u32)  # in range: nothing larger is converted
    half = b.emit(ops.select, b.emit(ops.lt, magnitude, b.const(_F32_INFINITY, u32)), normal, special)
    half = b.emit(ops.select, is_tiny, tiny, half)
    sign = b.emit(ops.and_, b.emit(ops.shr, bits, b.const(16, u32)), b.const(0x8000, u32))
    return b.emit(ops.or_, half, sign)
