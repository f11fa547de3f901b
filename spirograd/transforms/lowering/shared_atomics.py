"""Additions to floats of shared arrays by atomics on their bits, on devices that add no such floats."""

from __future__ import annotations

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, u1, unsigned
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.profiles import owner
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, SharedRef, ref_of
from spirograd.ir.rewrite import Rewriter


def add_by_bits(kernel: Kernel, caps: Capabilities) -> Kernel:
    """Turn shared arrays of floats, to which atomics add and which the device cannot add to, into arrays of unsigned integers of the same
    bits, to which loops of exchanges add.

    Arrays that other atomics update, too, or whose old elements are used, stay as they are: code generators reject these atomics. A loop
    runs again only if another thread of the group has finished meanwhile, so it is never long. Raise SpirogradUnsupportedError for floats
    of 64 bits on devices that cannot exchange as many bits in shared memory.
    """
    if not caps.target.lacks_shared_sums or ops.atomic not in kernel.codes:
        return kernel
    everything = list(kernel.walk())
    used = {a for op in everything for a in op.args}
    updates: dict[SharedRef, list[Op]] = {}
    for op in everything:
        ref = ref_of(op)
        if isinstance(ref, SharedRef) and op.code is not ops.load and op.code is not ops.store:
            updates.setdefault(ref, []).append(op)
    lacking = {ref for ref, found in updates.items() if _is_lacking(ref, caps) and all(_is_addition(op, used) for op in found)}
    for ref in lacking:
        if ref.dtype.bits == 64 and not caps.shared_int64:
            message = f"additions to {ref.dtype} in shared arrays need 64-bit atomics there, which {owner(caps, 'shared_int64')} lacks"
            raise SpirogradUnsupportedError(message, updates[ref][0].loc, "use f32, or another device")
    return _AddByBits(lacking).kernel(kernel) if lacking else kernel


def _is_lacking(ref: SharedRef, caps: Capabilities) -> bool:
    """Return whether the device cannot add to elements of ``ref``, floats whose bits it may exchange."""
    return ref.dtype.is_float and ref.dtype.bits >= 32 and (ref.dtype.bits == 64 or not caps.shared_f32_add)


def _is_addition(op: Op, used: set[Op]) -> bool:
    return op.code is ops.atomic and op.attr[0] == "add" and op not in used


class _AddByBits(Rewriter):
    """A rewriter of the arrays ``lacking``. Elements are the bits of floats with the sign flipped, so that 0 is -0.0, which adds nothing:
    it stands for an element whose value a thread holds. Drivers that run invocations as lanes of vectors may run a loop as long as any
    lane goes on, and atomics of lanes without an invocation return 0, which ends it."""

    def __init__(self, lacking: set[SharedRef]) -> None:
        super().__init__()
        self.lacking = lacking
        self.handlers = {ops.load: self._load, ops.store: self._store, ops.atomic: self._add}

    def _view(self, ref: SharedRef) -> SharedRef:
        return SharedRef(ref.name, unsigned(ref.dtype), ref.length)

    def _flipped(self, bits: Op) -> Op:
        t = bits.type
        assert isinstance(t, DType)
        return self.b.emit(ops.xor, bits, self.b.const(1 << t.bits - 1, t))

    def _to_bits(self, value: Op, view: SharedRef) -> Op:
        return self._flipped(self.b.emit(ops.bitcast, value, type=view.dtype))

    def _from_bits(self, bits: Op, ref: SharedRef) -> Op:
        return self.b.emit(ops.bitcast, self._flipped(bits), type=ref.dtype)

    def _load(self, op: Op) -> Op:
        if op.attr not in self.lacking:
            return self.copy(op)
        return self._from_bits(self.b.load(self._view(op.attr), *self.args(op)), op.attr)

    def _store(self, op: Op) -> Op:
        if op.attr not in self.lacking:
            return self.copy(op)
        index, value = self.args(op)
        view = self._view(op.attr)
        return self.b.store(view, index, self._to_bits(value, view))

    def _add(self, op: Op) -> Op:
        """Emit a loop of exchanges, as `lower_atomics.exchange_loop` does: a thread takes the element, adds to it, and puts the sum back.
        If another thread has put its own value there meanwhile, it goes on with that value."""
        ref = op.attr[1]
        if ref not in self.lacking:
            return self.copy(op)
        b, view, (index, value) = self.b, self._view(ref), self.args(op)
        nothing = b.const(0, view.dtype)
        more, _ = b.begin(u1, view.dtype)
        condition = b.end([more])
        _, mine = b.begin(u1, view.dtype)
        taken = b.atomic("exchange", view, index, nothing)
        both = b.emit(ops.add, self._from_bits(taken, ref), self._from_bits(mine, ref), attr="exact")
        put = b.emit(ops.select, b.emit(ops.eq, taken, nothing), mine, self._to_bits(both, view))
        back = b.atomic("exchange", view, index, put)
        body = b.end([b.emit(ops.ne, back, nothing), back])
        b.while_([b.const(True, u1), self._to_bits(value, view)], condition, body)
        return value  # nothing uses the result
