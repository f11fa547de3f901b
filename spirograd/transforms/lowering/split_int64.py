"""64-bit integers as pairs of words, on devices without them. Memory of such elements is accessed word by word."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.dtypes import DType, Type, Vec, i32, i64, u32, u64
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Kernel, Op, Region, SharedRef
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.checks.check_capabilities import refuse_types
from spirograd.transforms.lowering.word_pairs import PAIR, WordPairs
from spirograd.transforms.pass_context import PassContext

_LONG = (i64, u64)
_COMPARISONS = (ops.eq, ops.ne, ops.lt, ops.le, ops.gt, ops.ge)
_INDEXED = (ops.atomic, ops.cas, ops.claim)
# Operations that pass values on, whatever their type is. Of others, `check_capabilities` refuses those with a result of 64 bits.
_PASSING = (ops.if_, ops.for_, ops.while_, ops.result, ops.call, ops.call_memory, ops.slot)


def split_int64(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Replace all values of type i64 and u64 by vectors of two words. Loops over i32 stay as they are.

    The pass runs after `legalize` and `lower_atomics`, and relies on what these do: divisors are not 0, conversions from floats are in
    range, and atomics of 64-bit elements are atomics of their words under locks. Elements are found by the low words of indices of 64 bits:
    devices without such integers have no larger memory. Raises SpirogradUnsupportedError for a value of type f64.
    """
    if ctx.caps.int64 or not ctx.caps.computes_int64:
        return kernel
    refuse_types(kernel, ctx.caps, "f64")  # The bits of an f64 are such an integer.
    return _Split().kernel(kernel)


def _is_long(t: object) -> bool:
    return t in _LONG or (isinstance(t, Vec) and t.elem in _LONG)


def _type(t: Type) -> Type:
    """Return the replacement of ``t``."""
    if isinstance(t, Vec) and t.elem in _LONG:
        return Vec(2 * t.n, u32)
    return tuple([_type(part) for part in t]) if isinstance(t, tuple) else PAIR if t in _LONG else t


class _Split(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self._counted: set[Op] = set()  # loops whose first result is now their index
        self.pairs = p = WordPairs(self.b)
        arithmetic: dict[ops.OpCode, Callable[[Op, tuple[Op, ...], bool], Op]] = {
            ops.add: lambda op, a, signed: p.add(*a),
            ops.sub: lambda op, a, signed: p.sub(*a),
            ops.mul: lambda op, a, signed: p.mul(*a),
            ops.neg: lambda op, a, signed: p.neg(*a),
            ops.abs_: lambda op, a, signed: p.abs(*a, signed),
            ops.idiv: lambda op, a, signed: p.divide(*a, signed)[0],
            ops.irem: lambda op, a, signed: p.divide(*a, signed)[1],
            ops.shl: lambda op, a, signed: p.shl(*a),
            ops.shr: lambda op, a, signed: p.shr(*a, signed),
            **dict.fromkeys((ops.min_, ops.max_), lambda op, a, signed: p.extremum(op.code, *a, signed)),
            **dict.fromkeys(_COMPARISONS, lambda op, a, signed: p.compare(op.code, *a, signed)),
            **dict.fromkeys((ops.and_, ops.or_, ops.xor, ops.not_), lambda op, a, signed: p.wordwise(op.code, *a)),
            **dict.fromkeys((ops.popcnt, ops.clz, ops.ctz), lambda op, a, signed: p.pair(p.count(op.code, *a), p.word(0))),
        }
        self.handlers = {
            **{code: self._of_long(lower) for code, lower in arithmetic.items()},
            ops.const: self._const,
            ops.cast: self._cast,
            ops.bitcast: self._bitcast,
            ops.select: self._select,
            ops.vec: self._vec,
            ops.extract: self._extract,
            ops.insert: self._insert,
            ops.slot: self._slot,
            ops.load: self._load,
            ops.store: self._store,
            **dict.fromkeys(_INDEXED, self._indexed),
            ops.for_: self._for,
            ops.result: self._result,
            **dict.fromkeys((ops.subgroup_read, ops.subgroup_shuffle), self._exchanged),
        }

    # --- structure ---------------------------------------------------------------------------------------------------------

    def copy(self, op: Op) -> Op:
        t = _type(op.type)
        if t == op.type or op.code not in _PASSING:
            return super().copy(op)
        regions = tuple([self.region(r) for r in op.regions])
        return self.b.append(Op(op.code, t, self.args(op), op.attr, regions, op.loc, op.primal))

    def region(self, region: Region) -> Region:
        for param in region.params:
            if _is_long(param.type):
                self.env[param] = Op(ops.param, _type(param.type), attr=param.attr, loc=param.loc)
        params = tuple([self.value(p) for p in region.params])
        new = super().region(region)
        return new if params == region.params else Region(params, new.ops)

    def _for(self, op: Op) -> Op:
        """Make a loop over a long range a `while` loop, whose first loop-carried value is the index."""
        if not _is_long(op.args[0].type):
            return self.copy(op)
        begin, end, *initial = self.args(op)
        signed, (region,) = op.args[0].type is i64, op.regions
        types = [_type(value.type) for value in (begin, *initial)]
        index, *_ = self.b.begin(*types)
        condition = self.b.end([self.pairs.less(index, end, signed)])
        params = self.b.begin(*types)
        results = self.inline(region, params)
        body = self.b.end([self.pairs.add(params[0], self.pairs.constant(1)), *results])
        attr = ops.UNIFORM if op.attr.uniform else None
        loop = self.b.emit(ops.while_, begin, *initial, attr=attr, type=tuple(types), regions=(condition, body))
        self._counted.add(op)
        return loop

    def _result(self, op: Op) -> Op:
        if op.args[0] not in self._counted:
            return self.copy(op)
        return self.b.emit(ops.result, *self.args(op), attr=op.attr + 1, type=_type(op.type))

    # --- values ------------------------------------------------------------------------------------------------------------

    def _of_long(self, lower: Callable[[Op, tuple[Op, ...], bool], Op]) -> Callable[[Op], Op]:
        def handle(op: Op) -> Op:
            t = op.args[0].type
            return lower(op, self.args(op), t is i64) if t in _LONG else self.copy(op)

        return handle

    def _const(self, op: Op) -> Op:
        return self.pairs.constant(op.attr) if op.type in _LONG else self.copy(op)

    def _cast(self, op: Op) -> Op:
        (value,), source, target = self.args(op), op.args[0].type, op.type
        assert isinstance(source, DType) and isinstance(target, DType)
        if source in _LONG and target in _LONG:
            return value
        if source in _LONG:
            return self.b.cast(self.pairs.to_f32(value, source is i64), target) if target.is_float else self.pairs.to_integer(value, target)
        if target in _LONG:
            return self.pairs.from_f32(value) if source.is_float else self.pairs.from_integer(value, source)
        return self.copy(op)

    def _bitcast(self, op: Op) -> Op:
        return self.args(op)[0] if op.type in _LONG else self.copy(op)

    def _select(self, op: Op) -> Op:
        if op.type in _LONG:
            return self.pairs.choose(*self.args(op))
        return self.b.emit(ops.select, *self.args(op)) if _is_long(op.type) else self.copy(op)

    def _vec(self, op: Op) -> Op:
        if not _is_long(op.type):
            return self.copy(op)
        return self.b.emit(ops.vec, *[word for value in self.args(op) for word in self.pairs.halves(value)])

    def _extract(self, op: Op) -> Op:
        vector, index = self.args(op)
        if not _is_long(op.type):
            return self._copied(op, vector, self._index(index))
        return self.pairs.pair(*[self.b.emit(ops.extract, vector, at) for at in self._places(index)])

    def _insert(self, op: Op) -> Op:
        vector, index, value = self.args(op)
        if not _is_long(op.type):
            return self._copied(op, vector, self._index(index), value)
        for at, word in zip(self._places(index), self.pairs.halves(value)):
            vector = self.b.emit(ops.insert, vector, at, word)
        return vector

    def _exchanged(self, op: Op) -> Op:
        """Exchange the words of a value between invocations, one after the other."""
        if op.type not in _LONG:
            return self.copy(op)
        value, *rest = self.args(op)
        return self.pairs.pair(*[self.b.emit(op.code, word, *rest, attr=op.attr, type=u32) for word in self.pairs.halves(value)])

    def _copied(self, op: Op, *args: Op) -> Op:
        """Return a copy of ``op``, which has no regions, with operands of the new types."""
        return self.copy(op) if args == op.args else self.b.append(Op(op.code, _type(op.type), args, op.attr, (), op.loc, op.primal))

    # --- memory ------------------------------------------------------------------------------------------------------------

    def _slot(self, op: Op) -> Op:
        slot = op.attr
        if op.type not in _LONG or slot.is_buffer:  # Addresses are pairs of words already.
            return self.copy(op)
        words = [replace(slot, dtype=u32, offset=slot.offset + shift) for shift in (0, u32.size)]
        return self.pairs.pair(*[self.b.emit(ops.slot, attr=word, type=u32) for word in words])

    def _index(self, index: Op) -> Op:
        return self.b.cast(self.pairs.halves(index)[0], i32) if index.type == PAIR else index

    def _places(self, index: Op) -> tuple[Op, Op]:
        """Return the indices of the words of an element."""
        low = self.b.emit(ops.shl, self._index(index), self.b.const(1))
        return low, self.b.emit(ops.or_, low, self.b.const(1))

    def _words(self, ref: BufferRef | SharedRef) -> BufferRef | SharedRef:
        return replace(ref, dtype=u32, length=2 * ref.length) if isinstance(ref, SharedRef) else replace(ref, dtype=u32)

    def _load(self, op: Op) -> Op:
        (index,) = self.args(op)
        if op.type not in _LONG:
            return self._copied(op, self._index(index))
        words = self._words(op.attr)
        return self.pairs.pair(*[self.b.load(words, at) for at in self._places(index)])

    def _store(self, op: Op) -> Op:
        index, value = self.args(op)
        if op.attr.dtype not in _LONG:
            return self._copied(op, self._index(index), value)
        words = self._words(op.attr)
        stores = [self.b.store(words, at, word) for at, word in zip(self._places(index), self.pairs.halves(value))]
        return stores[-1]

    def _indexed(self, op: Op) -> Op:
        index, *rest = self.args(op)
        return self._copied(op, self._index(index), *rest)
