"""Lowering of atomics that the device lacks.

They become atomics on the bits of floats, loops over compare-and-swap on the words that hold the element, or follow a strategy of
`native_atomics`. For additions to floats of shared arrays see `shared_atomics`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from spirograd.base.artifact import LOCK_WORDS
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, i32, i64, u1, u8, u16, u32, u64, unsigned
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.profiles import owner
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Kernel, Op, SharedRef
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.lowering.lower_diagnostics import diagnostics
from spirograd.transforms.lowering.native_atomics import Strategy, is_native, place, strategies_of, unfinished
from spirograd.transforms.lowering.packed_subwords import subword_of
from spirograd.transforms.lowering.shared_atomics import add_by_bits
from spirograd.transforms.pass_context import PassContext


def lower_atomics(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Replace atomics that the device lacks. Raise SpirogradUnsupportedError for 64-bit elements if the device can't update these.

    Locks need the entry "locks" of ``ctx.block``. On drivers that end loops early (``caps.loop_limit``) an unfinished atomic is a fault.
    """
    kernel = add_by_bits(kernel, ctx.caps)
    if ctx.caps.atomic_cas and not ctx.caps.locks_int64:
        return _LowerAtomics(ctx.caps).kernel(kernel)
    lowered = _ByStrategy(ctx).kernel(kernel)
    return diagnostics(lowered, ctx) if ops.check in lowered.codes else lowered


class _LowerAtomics(Rewriter):
    def __init__(self, caps: Capabilities) -> None:
        super().__init__()
        self.caps = caps
        self.handlers = {ops.atomic: self._atomic, ops.cas: self._cas}

    def _atomic(self, op: Op) -> Op:
        kind, ref = op.attr
        if isinstance(ref, SharedRef) or is_native(kind, ref.dtype, self.caps):
            return self.copy(op)  # `private_copies` emits only atomics that the device has in shared memory
        index, value = self.args(op)
        self._need_words(op, f"atomic {kind}", ref)
        if ref.dtype.bits < 32:
            return update_subword(self.b, ref, index, lambda old: (self.b.combined(kind, old, value), None))
        if kind == "exchange":
            bits = self.b.atomic(kind, _view(ref), index, _bits(self.b, value))
            return _unbits(self.b, bits, ref.dtype)
        if kind in _OPPOSITE:
            return extremum(self.b, kind, ref, index, value)
        return update(self.b, ref, index, lambda old: self.b.combined(kind, old, value))

    def _cas(self, op: Op) -> Op:
        ref = op.attr
        index, expected, desired = self.args(op)
        self._need_words(op, "compare-and-swap", ref)
        if ref.dtype.bits < 32:
            want = _bits(self.b, expected)

            def choose(old: Op) -> tuple[Op, Op | None]:
                same = self.b.emit(ops.eq, _bits(self.b, old), want)
                return self.b.emit(ops.select, same, desired, old), same

            return update_subword(self.b, ref, index, choose)
        if ref.dtype.is_int:
            return self.copy(op)
        view = _view(ref)
        old = self.b.emit(ops.cas, index, _bits(self.b, expected), _bits(self.b, desired), attr=view, type=view.dtype)
        return _unbits(self.b, old, ref.dtype)

    def _need_words(self, op: Op, what: str, ref: BufferRef) -> None:
        if ref.dtype.bits == 64 and not self.caps.atomic_int64:
            name = re.sub(r"\.\d+$", "", ref.name)  # A variable's memory has a name such as `s.1`.
            need, ability = "64-bit floats" if ref.dtype.is_float else "64-bit integers", "float64" if ref.dtype.is_float else "int64"
            if getattr(self.caps, ability):
                need, ability = "64-bit atomics", "atomic_int64"
            message = f"{what} on `{name}` ({ref.dtype}) needs {need}, which {owner(self.caps, ability)} lacks"
            raise SpirogradUnsupportedError(message, op.loc, "use a 32-bit type, or another device")


_OPPOSITE = {"min": "max", "max": "min"}
_SIGNED = {32: i32, 64: i64}
# The bits of positive infinity. Those of NaN are larger, apart from the sign.
_INFINITY = {32: 0x7F800000, 64: 0x7FF0000000000000}


def extremum(b: Builder, kind: str, ref: BufferRef, index: Op, value: Op) -> Op:
    """Emit an atomic minimum or maximum of a float of 32 or 64 bits, as one atomic on its bits. Return the old element.

    The bits of non-negative floats, as signed integers, have the order of the floats; those of negative floats, as unsigned integers, have
    the opposite order, above all others. NaN fits neither order: if the value or the element is NaN, a loop over compare-and-swap follows.
    """
    t = ref.dtype
    i = _SIGNED[t.bits]
    bits = b.emit(ops.bitcast, value, type=i)
    number = _is_number(b, bits)
    b.begin()
    is_negative = b.emit(ops.lt, bits, b.const(0, i))
    regions = []
    for negative in (True, False):
        b.begin()
        regions.append(b.end([_ordered(b, kind, ref, index, bits, negative)]))
    one = b.end(b.if_(is_negative, *regions))
    b.begin()
    (before,) = b.if_(number, one, b.end([value]))
    number = _is_number(b, b.emit(ops.bitcast, before, type=i))
    b.begin()
    done = b.end([before])
    b.begin()
    loop = b.end([update(b, ref, index, lambda old: b.combined(kind, old, value))])
    return b.if_(number, done, loop)[0]


def _ordered(b: Builder, kind: str, ref: BufferRef, index: Op, bits: Op, negative: bool) -> Op:
    """Return the atomic of `extremum` for a value of that sign."""
    assert isinstance(bits.type, DType)
    t = unsigned(bits.type) if negative else bits.type
    value = b.emit(ops.bitcast, bits, type=t) if negative else bits
    return _unbits(b, b.atomic(_OPPOSITE[kind] if negative else kind, BufferRef(ref.name, ref.slot, t), index, value), ref.dtype)


def _is_number(b: Builder, bits: Op) -> Op:
    """Return whether a float with these bits (signed) is not NaN."""
    t = bits.type
    assert isinstance(t, DType)
    return b.emit(ops.le, b.emit(ops.and_, bits, b.const(int(t.max), t)), b.const(_INFINITY[t.bits], t))


def _view(ref: BufferRef) -> BufferRef:
    return BufferRef(ref.name, ref.slot, unsigned(ref.dtype))


def _bits(b: Builder, value: Op) -> Op:
    t = value.type
    assert isinstance(t, DType)
    return value if t is unsigned(t) else b.emit(ops.bitcast, value, type=unsigned(t))


def _unbits(b: Builder, bits: Op, t: DType) -> Op:
    return bits if bits.type is t else b.emit(ops.bitcast, bits, type=t)


def _retry(b: Builder, view: BufferRef, index: Op, next_word: Callable[[Op], tuple[Op, Op | None]]) -> Op:
    """Emit a loop over compare-and-swap that ends when the word did not change in between. Return the old word.

    ``next_word`` returns the new word and, if the store is conditional, the condition.
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
    """Emit code that atomically replaces a 32-bit or 64-bit element by ``new(element)``. Return the old element."""
    t = ref.dtype
    return _unbits(b, _retry(b, _view(ref), index, lambda word: (_bits(b, new(_unbits(b, word, t))), None)), t)


def update_subword(b: Builder, ref: BufferRef, index: Op, new: Callable[[Op], tuple[Op, Op | None]]) -> Op:
    """Emit `update` for an 8-bit or 16-bit element, through the 32-bit word that holds it. ``new`` as in `_retry`, on elements."""
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

    def subword(word: Op) -> Op:
        field = b.emit(ops.and_, b.emit(ops.shr, word, shift), b.const(ones, u32))
        return _unbits(b, b.cast(field, small), t)

    def next_word(word: Op) -> tuple[Op, Op | None]:
        element, wanted = new(subword(word))
        placed = b.emit(ops.shl, b.cast(_bits(b, element), u32), shift)
        return b.emit(ops.or_, b.emit(ops.and_, word, keep), placed), wanted

    return subword(_retry(b, words, at, next_word))


# --- without compare-and-swap ------------------------------------------------------------------------------------------

# An odd number near 2**32 / golden ratio: the upper bits of its products differ for factors that are consecutive, or a power of two apart.
_SPREAD = 0x9E3779B9
# The number of attempts at a lock in one iteration, for drivers that end loops after a number of iterations. The operating system may
# suspend a thread that holds a lock for any time, and 65,535 iterations with one attempt each take only a millisecond.
_TRIES = 32


class _ByStrategy(_LowerAtomics):
    """The lowering by the strategies of `native_atomics`. Atomics without a strategy are lowered as on devices with compare-and-swap."""

    def __init__(self, ctx: PassContext) -> None:
        super().__init__(ctx.caps)
        slots = ctx.block.slots if ctx.block is not None else ()
        self.locks = next((BufferRef("locks", s, u32) for s in slots if s.kind == "locks"), None)
        self.strategies: dict[Op, Strategy] = {}
        self.numbers: dict[object, int] = {}  # numbers of the memory regions of a task that are guarded by locks
        self.handlers[ops.task] = self._task

    def _task(self, op: Op) -> Op:
        self.strategies = strategies_of(op, self.caps)
        self.numbers = {}
        return self.copy(op)

    def _atomic(self, op: Op) -> Op:
        kind, ref = op.attr
        index, value = self.args(op)
        strategy = self.strategies.get(op, Strategy.NATIVE)
        if strategy is Strategy.REFUSE and isinstance(ref, SharedRef):
            message = f"atomic operations on {ref.dtype} in shared arrays need atomics of {ref.dtype.bits} bits, which this device lacks"
            raise SpirogradUnsupportedError(message, op.loc, "use a shared array of i32 or u32, or another device")
        if strategy is Strategy.LOCK:
            return self._locked(op, ref, index, lambda old: (self.b.combined(kind, old, value), None))
        if strategy is Strategy.EXCHANGE:
            self._exchanged(op, kind, ref, index, value)
            return value  # the result is never used
        return super()._atomic(op)

    def _cas(self, op: Op) -> Op:
        if self.strategies.get(op) is not Strategy.LOCK:
            return super()._cas(op)
        ref = op.attr
        index, expected, desired = self.args(op)
        want = _bits(self.b, expected)

        def choose(old: Op) -> tuple[Op, Op]:
            same = self.b.emit(ops.eq, _bits(self.b, old), want)
            return self.b.emit(ops.select, same, desired, old), same

        return self._locked(op, ref, index, choose)

    def _exchanged(self, op: Op, kind: str, ref: BufferRef, index: Op, value: Op) -> None:
        self._check(exchange_loop(self.b, kind, ref, index, value), op)

    def _locked(self, op: Op, ref: BufferRef, index: Op, new: Callable[[Op], tuple[Op, Op | None]]) -> Op:
        """Emit code that replaces an element under its lock. Return the old element. ``new`` as in `_retry`, on elements."""
        b, t = self.b, ref.dtype
        lock = self._lock(ref, index)
        word = u32 if t.bits < 32 else unsigned(t)
        waiting, _ = b.begin(i32, word)
        condition = b.end([b.emit(ops.ne, waiting, b.const(0))])
        _, before = b.begin(i32, word)
        free = b.emit(ops.eq, self._try(lock), b.const(0, u32))
        b.begin()
        b.emit(ops.barrier, type=VOID)
        replace = replace_subword if t.bits < 32 else replace_pair if t.bits == 64 and self.caps.locks_int64 else replace_word
        seen, last = replace(b, ref, index, new)
        b.emit(ops.barrier, type=VOID)
        self._open(lock, last)
        done = b.end([b.const(0), seen])
        b.begin()
        body = b.end(b.if_(free, done, b.end([b.const(1), before])))
        waiting, seen = b.while_([b.const(1), b.const(0, word)], condition, body)
        self._check(waiting, op)
        return _unbits(b, seen if t.bits >= 32 else b.cast(seen, unsigned(t)), t)

    def _lock(self, ref: BufferRef, index: Op) -> Op:
        """Return the number of the lock of an element. Different elements may share one."""
        b = self.b
        number = self.numbers.setdefault(place(ref), len(self.numbers))
        spread = b.emit(ops.mul, b.cast(index, u32), b.const(_SPREAD, u32))
        if number:
            spread = b.emit(ops.add, spread, b.const(number * _SPREAD // 2 % 2**32, u32))
        return b.cast(b.emit(ops.shr, spread, b.const(33 - LOCK_WORDS.bit_length(), u32)), i32)

    def _try(self, lock: Op) -> Op:
        """Try to take the lock; the result is 0 on success. A repeated attempt of the owner is harmless: it finds its own 1."""
        b = self.b
        assert self.locks is not None
        one = b.const(1, u32)
        first = b.atomic("exchange", self.locks, lock, one)
        if not self.caps.loop_limit:
            return first
        taken = b.emit(ops.ne, first, b.const(0, u32))
        b.begin()
        last = b.atomic("exchange", self.locks, lock, one)
        for _ in range(_TRIES - 2):
            last = b.emit(ops.and_, last, b.atomic("exchange", self.locks, lock, one))
        again = b.end([last])
        b.begin()
        return b.if_(taken, again, b.end([first]))[0]

    def _open(self, lock: Op, last: Op) -> None:
        """Release ``lock``. The store depends on ``last``, the result of the last atomic on the element, so that no atomic comes after
        it."""
        assert self.locks is not None
        even = self.b.emit(ops.and_, self.b.cast(last, u32), self.b.const(0xFFFFFFFE, u32))
        self.b.atomic("and", self.locks, lock, even)

    def _check(self, waiting: Op, op: Op) -> None:
        """Record a fault if the loop ended while ``waiting`` (i32) was not 0. The test differs from the loop's own: see `check_loops`."""
        if self.caps.loop_limit:
            self.b.emit(ops.check, self.b.emit(ops.lt, waiting, self.b.const(1)), attr=unfinished(op, self.caps), type=VOID)


def exchange_loop(b: Builder, kind: str, ref: BufferRef, index: Op, value: Op) -> Op:
    """Combine ``value`` into a 32-bit or 64-bit element by exchanges alone. Return an i32 that is 0 if the loop ran to its end.

    An iteration exchanges the element for a placeholder, then exchanges the placeholder for the combination of the element and its own
    value. If the second exchange returns something else than the placeholder, another invocation has stored it in between: the loop
    continues with that value. Invariant: memory combined with the values that invocations hold gives the same result in every order. The
    loop is lock-free: an invocation repeats an iteration only if another one has finished meanwhile.

    A placeholder is recognised by its bits, never by a comparison of floats, and is never combined with anything. If the program itself
    stored this value, ignoring it is correct, because it is the identity: -0.0 for addition, 1 for multiplication, NaN for minimum and
    maximum.
    """
    t = ref.dtype
    view = _view(ref)
    nothing = _placeholder(b, kind, t)
    more, _ = b.begin(i32, view.dtype)
    condition = b.end([b.emit(ops.ne, more, b.const(0))])
    _, carried = b.begin(i32, view.dtype)
    taken = b.atomic("exchange", view, index, nothing)
    empty = b.emit(ops.eq, taken, nothing)
    exact = "exact" if t.is_float and kind in ("add", "mul") else None
    both = b.emit(ops.COMBINE[kind], _unbits(b, taken, t), _unbits(b, carried, t), attr=exact)
    back = b.atomic("exchange", view, index, b.emit(ops.select, empty, carried, _bits(b, both)))
    body = b.end([b.cast(b.emit(ops.ne, back, nothing), i32), back])
    return b.while_([b.const(1), _bits(b, value)], condition, body)[0]


def _placeholder(b: Builder, kind: str, t: DType) -> Op:
    """Return the bits of a value that leaves every other value unchanged. For "min" and "max" it is not an infinity, because these win
    against NaN."""
    if t.is_int:
        return b.const(int(ops.identity(kind, t)), unsigned(t))
    value = {"add": -0.0, "mul": 1.0, "min": math.nan, "max": math.nan}[kind]
    return b.const(int(t.np.type(value).view(unsigned(t).np)), unsigned(t))


def replace_word(b: Builder, ref: BufferRef, index: Op, new: Callable[[Op], tuple[Op, Op | None]]) -> tuple[Op, Op]:
    """Replace an element of 32 or 64 bits while this invocation holds its lock. Return its old bits, and the result of the last atomic.

    Nothing is written if the element does not change: a plain store at the same time, for example one that opens a lock of the program,
    must not be undone.
    """
    view = _view(ref)
    before = b.atomic("or", view, index, b.const(0, view.dtype))
    element, wanted = new(_unbits(b, before, ref.dtype))
    return before, _if_wanted(b, wanted, before, lambda: b.atomic("exchange", view, index, _bits(b, element)))


def replace_pair(b: Builder, ref: BufferRef, index: Op, new: Callable[[Op], tuple[Op, Op | None]]) -> tuple[Op, Op]:
    """Replace an element of 64 bits as `replace_word` does, on devices without 64-bit atomics: by atomics on its two words."""
    words = BufferRef(ref.name, ref.slot, u32)
    low = b.emit(ops.shl, b.cast(index, i64), b.const(1, i64))
    high = b.emit(ops.or_, low, b.const(1, i64))
    first, second = [b.cast(b.atomic("or", words, at, b.const(0, u32)), u64) for at in (low, high)]
    before = b.emit(ops.or_, first, b.emit(ops.shl, second, b.const(32, u64)))
    element, wanted = new(_unbits(b, before, ref.dtype))

    def write() -> Op:
        bits = _bits(b, element)
        one = b.atomic("exchange", words, low, b.cast(bits, u32))
        other = b.atomic("exchange", words, high, b.cast(b.emit(ops.shr, bits, b.const(32, u64)), u32))
        return b.cast(b.emit(ops.or_, one, other), u64)

    return before, _if_wanted(b, wanted, before, write)


def _if_wanted(b: Builder, wanted: Op | None, otherwise: Op, write: Callable[[], Op]) -> Op:
    """Emit ``write`` under the condition ``wanted``, if there is one, and return its result, else ``otherwise``."""
    if wanted is None:
        return write()
    b.begin()
    written = b.end([write()])
    b.begin()
    (last,) = b.if_(wanted, written, b.end([otherwise]))
    return last


def replace_subword(b: Builder, ref: BufferRef, index: Op, new: Callable[[Op], tuple[Op, Op | None]]) -> tuple[Op, Op]:
    """Replace an element of 8 or 16 bits as `replace_word` does. The old bits are in the low part of a u32.

    One atomic flips the bits that differ, so neighbours in the word, which other locks guard or plain stores write, stay unchanged, and
    readers see either the old or the new element.
    """
    t = ref.dtype
    subword = subword_of(b, ref, index)
    word = b.atomic("or", subword.words, subword.at, b.const(0, u32))
    before = b.emit(ops.and_, b.emit(ops.shr, word, subword.shift), b.const(subword.ones, u32))
    element, _ = new(_unbits(b, b.cast(before, unsigned(t)), t))
    change = b.emit(ops.xor, before, b.cast(_bits(b, element), u32))
    return before, b.atomic("xor", subword.words, subword.at, b.emit(ops.shl, change, subword.shift))
