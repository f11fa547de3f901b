"""Memory layout: turns symbolic memory references into buffers with one element index, and arguments into entries of one argument block.

After it, every access names a `BufferRef`, whose address is an entry of the block, and has one index, in elements of the buffer; every
`arg`, `shape`, `address`, `seed` and `adstack_word` is a `slot`. Indices are i32, or i64 where the memory extends over 2^31 elements or
more. Products and sums of indices have the attribute "nsw": with indices in range they do not overflow.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from spirograd.analysis.adstacks import adstacks_of, checked_capacities, guard_of, is_placed, word
from spirograd.analysis.temps import growing_temps, temp_offsets
from spirograd.base.adstack_layout import ADDRESSING, PLACED, AdstackWord
from spirograd.base.artifact import STRUCT_CODES, ArgBlock, Slot
from spirograd.base.dtypes import DType, f16, f32, i32, i64, storage, u1, u32, u64
from spirograd.ir import ops
from spirograd.ir.addresses import AddressArithmetic, cell_offset, component_number
from spirograd.ir.called_accesses import called_accesses
from spirograd.ir.nodes import (
    AdstackRef,
    ArrayArg,
    ArrayRef,
    BufferRef,
    BuiltIn,
    FieldRef,
    Kernel,
    Layout,
    MemoryCall,
    Op,
    Ref,
    ScalarArg,
    SharedRef,
    TempRef,
    ref_of,
)
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.lowering.digits import digit_of, joined, offset_of
from spirograd.transforms.lowering.native_atomics import needs_locks, unfinished_sites
from spirograd.transforms.pass_context import PassContext

_ROLES = ("primal", "grad", "dual", "grad_dual")
_INDEX_LIMIT = 2**31


# --- the argument block ------------------------------------------------------------------------------------------------


def entry_type(t: DType) -> DType:
    """Return the type of a scalar argument's entry in the block. It has at least 32 bits, because devices may lack narrower types."""
    if t is f16:
        return f32
    if t.size >= 4:
        return t
    return i32 if t.is_int and t.is_signed else u32


def arg_block(kernel: Kernel, ctx: PassContext) -> ArgBlock:
    """Return the argument block of a kernel at kernel level, which has exactly the entries that the kernel uses.

    Order: addresses (trees, arrays, temporaries, adstacks, fault record, print ring, locks), then 64-bit scalars, then 32-bit entries
    (scalars, extents, bases and pitches of adstacks, seed, launch number). Narrower scalars are widened (`entry_type`), to the ``dtype`` of
    their slot. The size is a multiple of 8.
    """
    slots: set[Slot] = set()
    for op in kernel.having(_TAKING):
        slots.update(_slots_of(op, kernel))
    for _, ref in kernel.accesses:
        slots.update(_slots_of_memory(ref))
    adstacks = adstacks_of(kernel, ctx.caps.target.slots_by_thread)
    if adstacks:
        slots.add(Slot("adstacks"))
        slots |= {Slot(kind, k, dtype=i32) for k in range(len(adstacks)) for kind in ADDRESSING}
    if is_placed(kernel):
        slots = {s for s in slots if s.kind not in PLACED}
    if kernel.returns:
        slots.add(Slot("temps"))
    if needs_locks(kernel, ctx.caps):
        slots.add(Slot("locks"))
    if unfinished_sites(kernel, ctx.caps):
        slots |= {Slot("fault"), Slot("launch", dtype=u32)}
    if ctx.caps.target.interpreted:  # the interpreter's adstacks grow as they are written
        slots = {s for s in slots if s.kind not in set(AdstackWord)}
    if ctx.caps.target.checks_accesses:
        slots |= {Slot("fault"), Slot("launch", dtype=u32)}
        arrays = {s.index for s in slots if s.kind == "array"}
        slots |= {Slot("shape", n, axis, dtype=i32) for n in arrays for axis in range(_array_rank(kernel.args, n))}
    buffers = sorted((s for s in slots if s.is_buffer), key=_order)
    scalars = [s for s in slots if not s.is_buffer]
    scalars.sort(key=lambda s: (-_entry_size(s), _order(s)))
    placed: list[Slot] = []
    fmt, offset = "<", 0
    for slot in [*buffers, *scalars]:
        placed.append(Slot(slot.kind, slot.index, slot.axis, slot.role, slot.dtype, offset))
        fmt += "Q" if slot.dtype is None else STRUCT_CODES[slot.dtype.name]
        offset += _entry_size(slot)
    if offset % 8:
        fmt += "4x"
        offset += 4
    assert struct.calcsize(fmt) == offset
    return ArgBlock(tuple(placed), fmt, offset)


def _array_rank(args: Sequence[ScalarArg | ArrayArg], index: int) -> int:
    arg = args[index]
    assert isinstance(arg, ArrayArg), arg
    return arg.ndim


_KIND_ORDER = (
    "tree", "array", "temps", "adstacks", "fault", "print", "locks", "scalar", "shape", *AdstackWord, "seed", "launch",
)  # fmt: skip


def _order(slot: Slot) -> tuple[int, int, int, int]:
    return (_KIND_ORDER.index(slot.kind), slot.index, slot.axis, _ROLES.index(slot.role))


def _entry_size(slot: Slot) -> int:
    return 8 if slot.dtype is None else slot.dtype.size


_TAKING = frozenset((ops.arg, ops.shape, ops.address, ops.seed, ops.adstack_word, ops.check, ops.print_))


def _slots_of(op: Op, kernel: Kernel) -> list[Slot]:
    """Return the entries (without offsets) that lowering ``op``, of `_TAKING`, uses."""
    if op.code is ops.arg:
        return [_scalar_slot(kernel, op.attr)]
    if op.code is ops.shape:
        return [Slot("shape", op.attr[0], op.attr[1], dtype=i32)]
    if op.code is ops.address:
        return [_address_slot(op)]
    if op.code is ops.seed:
        return [Slot("seed", dtype=u32)]
    if op.code is ops.adstack_word:
        kind, number = op.attr
        return [Slot(kind, number, dtype=i32)]
    if op.code is ops.check:
        return [Slot("fault"), Slot("launch", dtype=u32)]
    return [Slot("print"), Slot("launch", dtype=u32)]


def _slots_of_memory(ref: Ref) -> list[Slot]:
    """Return the entries (without offsets) that an access to ``ref`` uses."""
    if isinstance(ref, FieldRef):
        return [Slot("tree", ref.tree)]
    if isinstance(ref, ArrayRef):
        extents = [Slot("shape", ref.arg, axis, dtype=i32) for axis in range(1, ref.ndim)]
        return [Slot("array", ref.arg, role=ref.role), *extents]
    return [Slot("temps")] if isinstance(ref, TempRef) else []


def _address_slot(op: Op) -> Slot:
    """Return the entry for an `address`."""
    return Slot("tree", op.attr[1]) if op.attr[0] == "tree" else Slot("array", op.attr[0], role=op.attr[1])


def _scalar_slot(kernel: Kernel, index: int) -> Slot:
    arg = kernel.args[index]
    assert isinstance(arg, ScalarArg), arg
    return Slot("scalar", index, dtype=entry_type(arg.dtype))


# --- the pass ----------------------------------------------------------------------------------------------------------


def layout(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Lower memory and arguments to device level. `check` and `print` are left to `diagnostics`."""
    block = ctx.block if ctx.block is not None else arg_block(kernel, ctx)
    return _Layout(kernel, block, slots_together=ctx.caps.target.slots_by_thread).kernel(kernel)


class _Layout(Rewriter):
    """The rewriter of the pass. ``slots_together``: each thread slot is contiguous; otherwise the elements of all slots are interleaved, so
    that neighbouring invocations access neighbouring words."""

    def __init__(self, kernel: Kernel, block: ArgBlock, slots_together: bool) -> None:
        super().__init__()
        self.args_of = kernel.args
        self.slots_together = slots_together
        self.adstacks = {ref: (k, info) for k, (ref, info) in enumerate(adstacks_of(kernel, slots_together).items())}
        self.checked = checked_capacities(kernel)
        self.placed = is_placed(kernel)
        self.words: dict[tuple[AdstackWord, int], Op] = {}  # words of adstacks that the current task has loaded
        self.claimed: dict[int, Op] = {}  # guard -> the thread slot that the iteration has claimed behind it
        self.offsets, _ = temp_offsets(kernel)
        self.growing = growing_temps(kernel)
        # by the slot without its offset, the key of `_slots_of`
        self.slots = {Slot(s.kind, s.index, s.axis, s.role, s.dtype): s for s in block.slots}
        self.buffers: dict[int, BufferRef] = {}
        self.accesses = called_accesses(kernel)  # calls may declare accesses that passes have removed, which have no entry
        self.handlers = {
            ops.arg: self._arg,
            ops.shape: lambda op: self._slot(Slot("shape", op.attr[0], op.attr[1], dtype=i32)),
            ops.address: lambda op: self._slot(_address_slot(op)),
            ops.seed: lambda op: self._slot(Slot("seed", dtype=u32)),
            ops.adstack_word: self._adstack_word,
            ops.load: self._load,
            ops.store: self._store,
            ops.atomic: self._atomic,
            ops.cas: self._cas,
            ops.claim: self._claim,
            ops.call_memory: self._call,
        }

    def _slot(self, key: Slot) -> Op:
        slot = self.slots[key]
        return self.b.emit(ops.slot, attr=slot, type=slot.dtype or u64)

    def _arg(self, op: Op) -> Op:
        arg = self.args_of[op.attr]
        assert isinstance(arg, ScalarArg), arg
        value = self._slot(Slot("scalar", op.attr, dtype=entry_type(arg.dtype)))
        if arg.dtype is u1:
            return self.b.emit(ops.ne, value, self.b.const(0, u32))
        return self.b.cast(value, arg.dtype)

    # --- memory ------------------------------------------------------------------------------------------------------------

    def _load(self, op: Op) -> Op:
        if isinstance(op.attr, SharedRef):
            return self.copy(op)
        ref, index = self._place(op, self.args(op))
        return self._unpack(self.b.load(ref, index), op)

    def _store(self, op: Op) -> Op:
        if isinstance(op.attr, SharedRef):
            return self.copy(op)
        *indices, value = self.args(op)
        ref, index = self._place(op, indices)
        return self.b.store(ref, index, self._pack(value))

    def _atomic(self, op: Op) -> Op:
        if isinstance(ref_of(op), SharedRef):
            return self.copy(op)
        *indices, value = self.args(op)
        ref, index = self._place(op, indices)
        return self._unpack(self.b.atomic(op.attr[0], ref, index, self._pack(value)), op)

    def _cas(self, op: Op) -> Op:
        *indices, expected, desired = self.args(op)
        ref, index = self._place(op, indices)
        old = self.b.emit(ops.cas, index, self._pack(expected), self._pack(desired), attr=ref, type=ref.dtype)
        return self._unpack(old, op)

    def _call(self, op: Op) -> Op:
        name = op.attr.name
        accesses = dict.fromkeys([(effect, self._buffer_of(ref)) for effect, ref in self.accesses[name]])
        return self.b.append(Op(op.code, op.type, self.args(op), MemoryCall(name, tuple(accesses)), (), op.loc, op.primal))

    def _claim(self, op: Op) -> Op:
        """Return the thread slot for the adstacks behind a guard. A claim beyond the last slot gets the last one (or number 0 if there are
        no slots); the check that `place_adstacks` emits after the claim reports it."""
        b = self.b
        ref, index = self._place(op, self.args(op))
        claimed = b.emit(ops.claim, index, attr=ref, type=ref.dtype)
        last = b.emit(ops.max_, self._sub(self._word(AdstackWord.CLAIMS, guard_of(op)), 1), b.const(0))
        self.claimed[guard_of(op)] = b.emit(ops.min_, claimed, last)
        return claimed

    # --- values in memory --------------------------------------------------------------------------------------------------

    def _pack(self, value: Op) -> Op:
        """Return a value in its form in memory: u1 as a byte."""
        return self.b.cast(value, storage(u1)) if value.type is u1 else value

    def _unpack(self, value: Op, op: Op) -> Op:
        if op.type is not u1:
            return value
        return self.b.emit(ops.ne, value, self.b.const(0, storage(u1)))

    def _place(self, op: Op, indices: Sequence[Op]) -> tuple[BufferRef, Op]:
        """Return the buffer and the element index of an access."""
        ref = ref_of(op)
        buffer = self._buffer_of(ref)
        if isinstance(ref, FieldRef):
            return buffer, self._field_index(ref, indices)
        if isinstance(ref, ArrayRef):
            return buffer, self._array_index(ref, indices)
        if isinstance(ref, AdstackRef):
            return buffer, self._adstack_index(ref, indices)
        assert isinstance(ref, TempRef), ref
        return buffer, self._temp_index(ref, indices)

    def _buffer_of(self, ref: Ref | None) -> BufferRef:
        if isinstance(ref, FieldRef):
            return self._buffer(ref, Slot("tree", ref.tree))
        if isinstance(ref, ArrayRef):
            return self._buffer(ref, Slot("array", ref.arg, role=ref.role))
        assert isinstance(ref, (AdstackRef, TempRef)), ref
        return self._buffer(ref, Slot("adstacks" if isinstance(ref, AdstackRef) else "temps"))

    def _buffer(self, ref: FieldRef | ArrayRef | TempRef | AdstackRef, key: Slot) -> BufferRef:
        buffer = self.buffers.get(id(ref))
        if buffer is None:
            role = "primal" if isinstance(ref, (TempRef, AdstackRef)) else ref.role
            name = ref.name if role == "primal" else f"{ref.name}.{role}"
            disjoint = isinstance(ref, ArrayRef) and ref.disjoint
            buffer = self.buffers[id(ref)] = BufferRef(name, self.slots[key], storage(ref.dtype), disjoint)
        return buffer

    # --- addresses ---------------------------------------------------------------------------------------------------------

    def _field_index(self, ref: FieldRef, indices: Sequence[Op]) -> Op:
        size = storage(ref.dtype).size
        t = i64 if _field_extent(ref) // size >= _INDEX_LIMIT else i32
        n = len(ref.shape)
        total = self._in_order(ref.layout, indices, t, size)
        if total is None:
            shape_indices = [self.b.cast(i, t) for i in indices[:n]]
            if ref.layout.origin:
                shape_indices = [self._sub(i, o) for i, o in zip(shape_indices, ref.layout.origin)]
            total = cell_offset(ref.layout, shape_indices, AddressArithmetic(self._add, self._mul, self._div, self._mod), size)
        offset = self._component(ref, indices[n:], t, size)
        return self._add(total, offset)

    def _in_order(self, layout: Layout, indices: Sequence[Op], t: DType, size: int) -> Op | None:
        """Return the element index, if the indices are digits of one number that the layout recombines, else None."""
        if layout.origin or len(layout.terms) < 2 or any(term.div != 1 or term.mod for term in layout.terms):
            return None
        split = [(*offset_of(indices[term.axis]), term.stride // size) for term in layout.terms]
        digits = [digit_of(value)._replace(scale=stride) for value, _, stride in split]
        recombined = joined(digits)
        if len(recombined) == len(digits):
            return None
        total: Op | None = None
        for base, div, mod, scale in recombined:
            part = base if div == 1 else self.b.emit(ops.idiv, base, self._const(div, base))
            part = self.b.emit(ops.irem, part, self._const(mod, part)) if mod else part
            total = self._add(total, self._mul(self.b.cast(part, t), scale))
        assert total is not None
        return self._add(total, self.b.const(sum(constant * stride for _, constant, stride in split), t))

    def _component(self, ref: FieldRef, indices: Sequence[Op], t: DType, size: int) -> Op:
        """Return the offset of a component in elements: a constant if the number is constant, else a multiple or a chain of selections."""
        table = [c // size for c in ref.layout.components]
        if all(i.code is ops.const for i in indices):
            number = component_number([int(i.attr) for i in indices], ref.element_shape)
            return self.b.const(table[min(max(number, 0), len(table) - 1)], t)
        at = self._horner([self.b.cast(i, t) for i in indices], ref.element_shape)
        step = table[1] - table[0]
        if all(c == table[0] + k * step for k, c in enumerate(table)):
            return self._add(self._mul(at, step), self.b.const(table[0], t))
        offset = self.b.const(table[0], t)
        for k, c in enumerate(table[1:], 1):
            offset = self.b.emit(ops.select, self.b.emit(ops.eq, at, self.b.const(k, t)), self.b.const(c, t), offset)
        return offset

    def _array_index(self, ref: ArrayRef, indices: Sequence[Op]) -> Op:
        t = i64 if ref.wide else i32
        values = [self.b.cast(i, t) for i in indices]
        total: Op | None = None
        for axis, value in enumerate(values[: ref.ndim]):
            if total is not None:
                extent = self.b.cast(self._slot(Slot("shape", ref.arg, axis, dtype=i32)), t)
                total = self.b.emit(ops.mul, total, extent, attr="nsw")
            total = self._add(total, value)
        if ref.element_shape:
            count = 1
            for extent_ in ref.element_shape:
                count *= extent_
            inner = self._horner(values[ref.ndim :], ref.element_shape)
            total = inner if total is None else self._add(self._mul(total, count), inner)
        return self.b.const(0, t) if total is None else total

    def _temp_index(self, ref: TempRef, indices: Sequence[Op]) -> Op:
        base = self.b.const(self.offsets[ref] // storage(ref.dtype).size)
        if ref.array >= 0:
            return self._add(indices[0], self._growing_base(ref, base))
        if not indices:
            return base
        return self._add(self._horner([self.b.cast(i, i32) for i in indices], ref.shape), base)

    def _growing_base(self, ref: TempRef, base: Op) -> Op:
        """Return the index of the first element of a temporary that grows with an array. ``base``: of the first such temporary."""
        for before in self.growing[: self.growing.index(ref)]:
            elements: Op | None = None
            for axis in range(_array_rank(self.args_of, before.array)):
                extent = self._slot(Slot("shape", before.array, axis, dtype=i32))
                elements = extent if elements is None else self.b.emit(ops.mul, elements, extent, attr="nsw")
            one = self.b.const(1)
            once_more = self._add(one, elements) if elements is not None else self.b.const(2)
            base = self._add(base, self._mul(once_more, math.prod(before.shape)))
        return base

    def _adstack_index(self, ref: AdstackRef, indices: Sequence[Op]) -> Op:
        number, info = self.adstacks[ref]
        iteration, entry = [self.b.cast(i, i32) for i in indices]
        if ref.capacity in self.checked:
            # An index beyond the capacity accesses the last entry; the check that `sizing` emits for these loops reports it.
            last = self._sub(self._word(AdstackWord.CAPACITY, ref.capacity), 1)
            iteration = self.b.emit(ops.min_, iteration, last)
        at = self._add(self._mul(iteration, ref.width), entry)
        if info.threads > 1:
            at = self._add(self._mul(at, info.threads), self.b.emit(ops.builtin, attr=BuiltIn.LOCAL, type=i32))
        base, pitch = self._word(AdstackWord.BASE, number), self._word(AdstackWord.PITCH, number)
        if info.task is None:
            return self._add(at, base)
        slot = self.b.emit(ops.thread_slot, type=i32) if info.guard is None else self.claimed[info.guard]
        slow, fast = (slot, at) if self.slots_together else (at, slot)
        return self._add(self._add(self.b.emit(ops.mul, slow, pitch, attr="nsw"), fast), base)

    def _adstack_word(self, op: Op) -> Op:
        kind, number = op.attr
        if self.placed and kind in PLACED:
            ref = word(kind, number)
            self.words[op.attr] = self.b.load(BufferRef(ref.name, self.slots[Slot("temps")], i32), self._temp_index(ref, ()))
        return self._word(kind, number)

    def _word(self, kind: AdstackWord, number: int) -> Op:
        """Return a word that describes the adstacks of a launch. Tasks whose adstacks are placed on the device begin with an `adstack_word`
        for each."""
        return self.words[kind, number] if self.placed and kind in PLACED else self._slot(Slot(kind, number, dtype=i32))

    def _horner(self, values: Sequence[Op], extents: Sequence[int]) -> Op:
        """Return the row-major number of an element."""
        total = values[0]
        for value, extent in zip(values[1:], extents[1:]):
            total = self._add(self._mul(total, extent), value)
        return total

    # Index arithmetic. Each function omits operations that change nothing.

    def _add(self, a: Op | None, b: Op) -> Op:
        if a is None or (a.code is ops.const and a.attr == 0):
            return b
        if b.code is ops.const and b.attr == 0:
            return a
        return self.b.emit(ops.add, a, b, attr="nsw")

    def _sub(self, a: Op, constant: int) -> Op:
        return self.b.emit(ops.sub, a, self._const(constant, a), attr="nsw") if constant else a

    def _mul(self, a: Op, constant: int) -> Op:
        return a if constant == 1 else self.b.emit(ops.mul, a, self._const(constant, a), attr="nsw")

    def _div(self, a: Op, constant: int) -> Op:
        if constant & (constant - 1) == 0:
            return self.b.emit(ops.shr, a, self._const(constant.bit_length() - 1, a))
        return self.b.emit(ops.idiv, a, self._const(constant, a))

    def _mod(self, a: Op, constant: int) -> Op:
        if constant & (constant - 1) == 0:
            return self.b.emit(ops.and_, a, self._const(constant - 1, a))
        return self.b.emit(ops.irem, a, self._const(constant, a))

    def _const(self, value: int, like: Op) -> Op:
        assert isinstance(like.type, DType)
        return self.b.const(value, like.type)


def _field_extent(ref: FieldRef) -> int:
    """Return the end of the last element of ``ref``, in bytes from the beginning of the tree."""
    end = max(ref.layout.components) + ref.dtype.size
    for term in ref.layout.terms:
        count = -(-ref.shape[term.axis] // term.div)
        if term.mod:
            count = min(count, term.mod)
        end += max(count - 1, 0) * term.stride
    return end
