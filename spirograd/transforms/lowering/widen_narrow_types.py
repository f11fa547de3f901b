"""Widening of 8-bit and 16-bit numbers, on devices that lack them as values or in memory.

An integer of a missing type becomes an i32 (i8, i16) or u32 (u8, u16) that always holds the same number: results that may leave the range
of the narrow type are wrapped at once (`_WRAPPING`), so that all other operations mean the same on the wide type (`_KEPT`). An f16 becomes
an f32 that f16 can represent: results that may need more bits are rounded at once (`_ROUNDED`). This gives the same numbers as arithmetic
of f16, because rounding a sum, difference, product, quotient or square root first to 24 and then to 11 bits gives what rounding it to 11
bits gives: 24 >= 2 * 11 + 2 (S. A. Figueroa, "When is double rounding innocuous?", SIGNUM Newsletter 30(3), 1995). A fused product and sum
and `rsqrt` may differ by the last bit, as they may between drivers. Memory that the device cannot access in
elements of 8 or 16 bits, including 16-bit floats, is accessed in words (see `packed_subwords`).
"""

from __future__ import annotations

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, Type, Vec, f16, f32, i8, i16, i32, u1, u8, u16, u32, unsigned
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Kernel, Op, Region, SharedRef
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.lowering.legalize import nearest_half
from spirograd.transforms.lowering.packed_subwords import f32_from_half_bits, half_bits_from_f32, subword_of
from spirograd.transforms.pass_context import PassContext

_WIDE = {i8: i32, i16: i32, u8: u32, u16: u32, f16: f32}

# Operations on integers whose results may leave the range, for operands in range.
_WRAPPING = {
    ops.add: "always", ops.sub: "always", ops.mul: "always", ops.neg: "always", ops.shl: "always",
    ops.not_: "unsigned",  # of a signed number it is -1 - a
    ops.abs_: "signed",  # of the smallest
}  # fmt: skip
# Operations on f16 whose results may need more bits.
_ROUNDED = frozenset((ops.add, ops.sub, ops.mul, ops.div, ops.fma, ops.sqrt, ops.rsqrt))
# Operations whose results stay in range. After `legalize`, shift counts are below the width of the narrow type, and divisors are not -1.
_KEPT = frozenset((
    ops.const, ops.param, ops.result, ops.yield_, ops.if_, ops.for_, ops.while_, ops.select, ops.vec, ops.extract, ops.insert,
    ops.call, ops.call_memory, ops.subgroup_read,
    ops.idiv, ops.irem, ops.min_, ops.max_, ops.and_, ops.or_, ops.xor, ops.shr, ops.eq, ops.ne, ops.lt, ops.le, ops.gt, ops.ge,
    ops.opaque, ops.floor, ops.ceil, ops.trunc, ops.round_,
))  # fmt: skip


def widen_narrow_types(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Remove all values and memory of 8-bit and 16-bit types that the device lacks.

    The pass runs after `expand_math`, `legalize` and `lower_atomics`, and does not handle operations that these have removed: unsafe
    divisors and shifts, elementary functions of f16, and bit counts, atomics and conversions from floats of narrow integers.
    """
    caps = ctx.caps
    if caps.int8 and caps.int16 and caps.float16 and caps.storage8 and caps.storage16:
        return kernel
    return _Widen(caps).kernel(kernel)


class _Widen(Rewriter):
    def __init__(self, caps: Capabilities) -> None:
        super().__init__()
        self.caps = caps
        self.missing = frozenset(t for t in _WIDE if not (caps.float16 if t is f16 else caps.int8 if t.bits == 8 else caps.int16))
        self.handlers = {
            **dict.fromkeys((*_WRAPPING, *_ROUNDED), self._arithmetic),
            ops.cast: self._cast,
            ops.bitcast: self._bitcast,
            ops.load: self._load,
            ops.store: self._store,
        }

    # --- types and structure -----------------------------------------------------------------------------------------------

    def _scalar(self, t: DType) -> DType:
        return _WIDE[t] if t in self.missing else t

    def _type(self, t: Type) -> Type:
        """Return the replacement of ``t``."""
        if isinstance(t, DType):
            return self._scalar(t)
        if isinstance(t, Vec):
            return Vec(t.n, self._scalar(t.elem))
        return tuple([self._type(part) for part in t]) if isinstance(t, tuple) else t

    def copy(self, op: Op) -> Op:
        t = self._type(op.type)
        if t == op.type:
            return super().copy(op)
        assert op.code in _KEPT or op.code in _WRAPPING or op.code in _ROUNDED, op
        regions = tuple([self.region(r) for r in op.regions])
        return self.b.append(Op(op.code, t, self.args(op), op.attr, regions, op.loc))

    def region(self, region: Region) -> Region:
        params = tuple([self._param(p) for p in region.params])
        new = super().region(region)
        return new if params == region.params else Region(params, new.ops)

    def _param(self, param: Op) -> Op:
        t = self._type(param.type)
        if t == param.type:
            return param
        new = self.env[param] = Op(ops.param, t, loc=param.loc)
        return new

    # --- values ------------------------------------------------------------------------------------------------------------

    def _wrapped(self, value: Op, t: DType) -> Op:
        """Return ``value`` (of the type that replaces ``t``) modulo the range of ``t``."""
        b, wide = self.b, _WIDE[t]
        if not t.is_signed:
            return b.emit(ops.and_, value, b.const(int(t.max), wide))
        free = b.const(32 - t.bits, wide)
        return b.emit(ops.shr, b.emit(ops.shl, value, free), free)

    def _arithmetic(self, op: Op) -> Op:
        new = self.copy(op)
        t = op.type
        if not isinstance(t, DType) or t not in self.missing:
            return new
        if t is f16:
            return nearest_half(self.b, new) if op.code in _ROUNDED else new
        leaves = _WRAPPING[op.code] in ("always", "signed" if t.is_signed else "unsigned")
        return self._wrapped(new, t) if leaves else new

    def _converted(self, value: Op, t: DType, fits: bool) -> Op:
        """Convert a value to type ``t``, or its replacement. ``fits``: ``t`` can represent it."""
        if t not in self.missing:
            return self.b.cast(value, t)
        wide = self.b.cast(value, _WIDE[t])
        if fits:
            return wide
        return nearest_half(self.b, wide) if t is f16 else self._wrapped(wide, t)

    def _cast(self, op: Op) -> Op:
        (value,) = self.args(op)
        source, target = op.args[0].type, op.type
        assert isinstance(source, DType) and isinstance(target, DType)
        if source not in self.missing and target not in self.missing:
            return self.copy(op)
        assert not (source.is_float and target.is_int and target in self.missing), op
        fits = (
            source is u1 or source is target or (target.is_int and source.is_int and target.min <= source.min and source.max <= target.max)
        )
        return self._converted(value, target, fits)

    def _bitcast(self, op: Op) -> Op:
        (value,) = self.args(op)
        source, target = op.args[0].type, op.type
        assert isinstance(source, DType) and isinstance(target, DType)
        if source is target or (source not in self.missing and target not in self.missing):
            return self.copy(op)
        return self._from_bits(self._to_bits(value, source), target)

    def _to_bits(self, value: Op, t: DType) -> Op:
        """Return the bits of a value of type ``t`` (8 or 16 bits) as a u32. ``value`` is the value or its replacement."""
        b = self.b
        if t is f16:
            if self.caps.int16 and t not in self.missing:
                return b.cast(b.emit(ops.bitcast, value, type=u16), u32)
            return half_bits_from_f32(b, b.cast(value, f32))
        bits = b.cast(value, u32)
        return b.emit(ops.and_, bits, b.const(int(unsigned(t).max), u32)) if t.is_signed else bits

    def _from_bits(self, bits: Op, t: DType) -> Op:
        """Return the value (or its replacement) of type ``t`` with the low bits ``bits`` (u32, and no other bits set)."""
        b = self.b
        if t is f16:
            if self.caps.int16 and t not in self.missing:
                return b.emit(ops.bitcast, b.cast(bits, u16), type=f16)
            return self._converted(f32_from_half_bits(b, bits), f16, fits=True)
        return self._converted(bits, t, fits=not t.is_signed)

    # --- memory ------------------------------------------------------------------------------------------------------------

    def _in_words(self, ref: BufferRef) -> bool:
        return ref.dtype in self.missing or not self.caps.stores(ref.dtype)

    def _as_integers(self, ref: BufferRef) -> bool:
        """Return whether elements of a type that the device lacks are accessed as integers of the same size."""
        return ref.dtype is f16 and self.caps.int16 and self.caps.storage16

    def _widened(self, op: Op) -> Op:
        """Rewrite an access to shared memory, whose elements have the types of values."""
        ref = replace(op.attr, dtype=self._scalar(op.attr.dtype))
        return self.b.append(Op(op.code, self._type(op.type), self.args(op), ref, (), op.loc))

    def _load(self, op: Op) -> Op:
        ref = op.attr
        if isinstance(ref, SharedRef):
            return self._widened(op)
        if not self._in_words(ref):
            return self.copy(op)
        (index,) = self.args(op)
        if self._as_integers(ref):
            return self._from_bits(self.b.cast(self.b.load(replace(ref, dtype=u16), index), u32), f16)
        return self._from_bits(subword_of(self.b, ref, index).load(self.b), ref.dtype)

    def _store(self, op: Op) -> Op:
        ref = op.attr
        if isinstance(ref, SharedRef):
            return self._widened(op)
        if not self._in_words(ref):
            return self.copy(op)
        index, value = self.args(op)
        bits = self._to_bits(value, ref.dtype)
        if self._as_integers(ref):
            return self.b.store(replace(ref, dtype=u16), index, self.b.cast(bits, u16))
        return subword_of(self.b, ref, index).store(self.b, bits)
