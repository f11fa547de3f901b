"""Atomics that the device lacks, as loops over compare-and-swap of the words that hold the element."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, i32, i64, u1, u8, u16, u32, unsigned
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.context import PassContext


def lower_atomics(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Replace what `is_native` says the device has not. Raises SpirogradUnsupportedError where no compare-and-swap is wide enough."""
    return _LowerAtomics(ctx.caps).kernel(kernel)


def is_native(kind: str, t: DType, caps: Capabilities) -> bool:
    """Whether the device itself has this atomic."""
    if kind == "mul" or (t.is_float and kind == "exchange"):
        return False
    if caps.profile == "cpu":
        return t.is_int or t.bits >= 32
    if t.is_int:
        return t.bits == 32 or (t.bits == 64 and caps.atomic_int64)
    if t.bits == 32:
        return caps.atomic_f32_add if kind == "add" else caps.atomic_f32_minmax
    return t.bits == 64 and kind == "add" and caps.atomic_f64_add


class _LowerAtomics(Rewriter):
    def __init__(self, caps: Capabilities) -> None:
        super().__init__()
        self.caps = caps
        self.handlers = {ops.atomic: self._atomic, ops.cas: self._cas}

    def _atomic(self, op: Op) -> Op:
        kind, ref = op.attr
        if is_native(kind, ref.dtype, self.caps):
            return self.copy(op)
        index, value = self.args(op)
        self._need_words(op, f"atomic {kind}", ref)
        if ref.dtype.bits < 32:
            return update_part(self.b, ref, index, lambda old: (combine(self.b, kind, old, value), None))
        if kind == "exchange":
            bits = self.b.atomic(kind, _view(ref), index, _bits(self.b, value))
            return _unbits(self.b, bits, ref.dtype)
        return update(self.b, ref, index, lambda old: combine(self.b, kind, old, value))

    def _cas(self, op: Op) -> Op:
        ref = op.attr
        index, expected, desired = self.args(op)
        self._need_words(op, "compare-and-swap", ref)
        if ref.dtype.bits < 32:
            want = _bits(self.b, expected)

            def choose(old: Op) -> tuple[Op, Op | None]:
                same = self.b.emit(ops.eq, _bits(self.b, old), want)
                return self.b.emit(ops.select, same, desired, old), same

            return update_part(self.b, ref, index, choose)
        if ref.dtype.is_int:
            return self.copy(op)
        view = _view(ref)
        old = self.b.emit(ops.cas, index, _bits(self.b, expected), _bits(self.b, desired), attr=view, type=view.dtype)
        return _unbits(self.b, old, ref.dtype)

    def _need_words(self, op: Op, what: str, ref: BufferRef) -> None:
        wide = ref.dtype.bits == 64 and not self.caps.atomic_int64 and self.caps.profile != "cpu"
        if wide or not self.caps.atomic_cas:
            missing = "64-bit atomics" if wide else "compare-and-swap"
            message = f"this device (profile {self.caps.profile}) has no {missing}, which {what} on '{ref.name}' ({ref.dtype}) needs"
            raise SpirogradUnsupportedError(message, op.loc)


def combine(b: Builder, kind: str, old: Op, value: Op) -> Op:
    """The element after an atomic of ``kind``."""
    return value if kind == "exchange" else b.emit(ops.COMBINE[kind], old, value)


def _view(ref: BufferRef) -> BufferRef:
    return BufferRef(ref.name, ref.slot, unsigned(ref.dtype))


def _bits(b: Builder, value: Op) -> Op:
    t = value.type
    assert isinstance(t, DType)
    return value if t is unsigned(t) else b.emit(ops.bitcast, value, type=unsigned(t))


def _unbits(b: Builder, bits: Op, t: DType) -> Op:
    return bits if bits.type is t else b.emit(ops.bitcast, bits, type=t)


def _retry(b: Builder, view: BufferRef, index: Op, next_word: Callable[[Op], tuple[Op, Op | None]]) -> Op:
    """Compare-and-swap until the word did not change in between; returns the word before.

    ``next_word`` gives the new word and, where it may be that nothing is to be stored, whether there is.
    """
    guess = b.load(view, index)
    go, _ = b.begin(u1, view.dtype)
    condition_region = b.end((go,))
    _, word = b.begin(u1, view.dtype)
    new, wanted = next_word(word)
    seen = b.emit(ops.cas, index, word, new, attr=view, type=view.dtype)
    again = b.emit(ops.ne, seen, word)
    if wanted is not None:
        again = b.emit(ops.and_, again, wanted)
    body_region = b.end((again, seen))
    return b.while_((b.const(True, u1), guess), condition_region, body_region)[1]


def update(b: Builder, ref: BufferRef, index: Op, new: Callable[[Op], Op]) -> Op:
    """Atomically replace a 32-bit or 64-bit element by ``new(element)``; returns the element before."""
    t = ref.dtype
    return _unbits(b, _retry(b, _view(ref), index, lambda word: (_bits(b, new(_unbits(b, word, t))), None)), t)


def update_part(b: Builder, ref: BufferRef, index: Op, new: Callable[[Op], tuple[Op, Op | None]]) -> Op:
    """The same for an 8-bit or 16-bit element, through the 32-bit word that holds it; ``new`` as in `_retry`, on elements."""
    t = ref.dtype
    words = BufferRef(ref.name, ref.slot, u32)
    index_type = i64 if index.type is i64 else i32
    log = 2 if t.bits == 8 else 1
    at = b.emit(ops.shr, index, b.const(log, index_type))
    lane = b.cast(b.emit(ops.and_, index, b.const((1 << log) - 1, index_type)), u32)
    shift = b.emit(ops.mul, lane, b.const(t.bits, u32))
    ones = (1 << t.bits) - 1
    keep = b.emit(ops.not_, b.emit(ops.shl, b.const(ones, u32), shift))
    small = u8 if t.bits == 8 else u16

    def part(word: Op) -> Op:
        field = b.emit(ops.and_, b.emit(ops.shr, word, shift), b.const(ones, u32))
        return _unbits(b, b.cast(field, small), t)

    def next_word(word: Op) -> tuple[Op, Op | None]:
        element, wanted = new(part(word))
        placed = b.emit(ops.shl, b.cast(_bits(b, element), u32), shift)
        return b.emit(ops.or_, b.emit(ops.and_, word, keep), placed), wanted

    return part(_retry(b, words, at, next_word))
