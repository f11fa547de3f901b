"""Lowering of `check` and `print` to plain operations on the fault record and the print ring (formats: base/artifact.py)."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.analysis.sites import collect_sites
from spirograd.base.artifact import (
    FAULT_FLAG,
    FAULT_LAUNCH,
    FAULT_LOOP_SITES,
    FAULT_LOOPS,
    FAULT_MAX_OPERANDS,
    FAULT_OPERANDS,
    FAULT_SITE,
    PRINT_CAPACITY,
    PRINT_CURSOR,
    PRINT_DATA,
    FaultSite,
    PrintSite,
)
from spirograd.base.dtypes import DType, i32, u1, u16, u32, u64
from spirograd.ir import ops
from spirograd.ir.called_accesses import restate_calls
from spirograd.ir.nodes import BufferRef, Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

_FAULT_COUNT = 3
# The limit beyond which the cursor no longer moves, so that no amount of printing wraps it around.
_CURSOR_LIMIT = 1 << 31


def diagnostics(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Lower `check` and `print`. ``ctx.block`` must have the slots that they use.

    Sites are numbered by ``ctx.faults`` and ``ctx.prints``, or in order of appearance if those are empty.
    """
    faults, prints = (ctx.faults, ctx.prints) if ctx.faults or ctx.prints else collect_sites(kernel)
    return kernel if not faults and not prints else restate_calls(_Diagnostics(faults, prints, ctx).kernel(kernel))


class _Diagnostics(Rewriter):
    def __init__(self, faults: tuple[FaultSite, ...], prints: tuple[PrintSite, ...], ctx: PassContext) -> None:
        super().__init__()
        assert ctx.block is not None
        self.faults = {site: k for k, site in enumerate(faults)}
        self.prints = {site: k for k, site in enumerate(prints)}
        self.slots = {s.kind: s for s in ctx.block.slots if s.kind in ("fault", "print", "launch")}
        # The word in which a loop reports that it ended, for drivers that end loops early. The host reads it for such drivers only.
        self.loops = FAULT_LOOP_SITES if ctx.caps.loop_limit else 0
        self.handlers = {ops.check: self._check, ops.print_: self._print, ops.stack_room: self._stack_room}

    def _stack_room(self, op: Op) -> Op:
        b = self.b
        flag = b.load(BufferRef("fault", self.slots["fault"], u32), b.const(FAULT_FLAG))
        return b.emit(ops.and_, self.copy(op), b.emit(ops.eq, flag, b.const(0, u32)))

    def _check(self, op: Op) -> None:
        condition, *operands = self.args(op)
        b = self.b
        bad = b.emit(ops.not_, condition)
        b.begin()
        if op.attr.code == "loop" and self.faults[op.attr] < self.loops:
            self._record_loop(op)
        else:
            self._record(op, operands)
        failed = b.end()
        b.begin()
        b.if_(bad, failed, b.end())

    def _record_loop(self, op: Op) -> None:
        """Record a loop by a single store. llvmpipe, which needs these checks, runs both branches of every `if` under masks, so an atomic
        and four stores would take as long as some iterations of the loop."""
        ref = BufferRef("fault", self.slots["fault"], u32)
        launch = self.b.emit(ops.add, self._launch(), self.b.const(1, u32))
        self.b.store(ref, self.b.const(FAULT_LOOPS + self.faults[op.attr]), launch)

    def _record(self, op: Op, operands: Sequence[Op]) -> None:
        b = self.b
        ref = BufferRef("fault", self.slots["fault"], u32)
        b.begin()
        nothing = b.end()
        old = b.atomic("exchange", ref, b.const(FAULT_FLAG), b.const(1, u32))
        first = b.emit(ops.eq, old, b.const(0, u32))
        b.begin()
        b.store(ref, b.const(FAULT_SITE), b.const(self.faults[op.attr], u32))
        b.store(ref, b.const(FAULT_LAUNCH), self._launch())
        operands = operands[:FAULT_MAX_OPERANDS]
        b.store(ref, b.const(_FAULT_COUNT), b.const(2 * len(operands), u32))
        words = [word for operand in operands for word in self._words(operand)]
        for k, word in enumerate(words):
            b.store(ref, b.const(FAULT_OPERANDS + k), word)
        b.if_(first, b.end(), nothing)

    def _print(self, op: Op) -> None:
        b = self.b
        ref = BufferRef("print", self.slots["print"], u32)
        values = self.args(op)
        record = 2 + 2 * len(values)
        cursor_at = b.const(PRINT_CURSOR)
        has_space = b.emit(ops.lt, b.load(ref, cursor_at), b.const(_CURSOR_LIMIT, u32))
        b.begin()
        at = b.atomic("add", ref, cursor_at, b.const(record, u32))
        end = b.emit(ops.add, at, b.const(record, u32))
        fits = b.emit(ops.le, end, b.load(ref, b.const(PRINT_CAPACITY)))
        b.begin()
        base = b.cast(at, i32)
        words = [b.const(self.prints[op.attr], u32), self._launch()]
        words += [word for value in values for word in self._words(value)]
        for k, word in enumerate(words):
            b.store(ref, b.emit(ops.add, base, b.const(PRINT_DATA + k), attr="nsw"), word)
        written = b.end()
        b.begin()
        b.if_(fits, written, b.end())
        claimed = b.end()
        b.begin()
        b.if_(has_space, claimed, b.end())

    def _launch(self) -> Op:
        return self.b.emit(ops.slot, attr=self.slots["launch"], type=u32)

    def _words(self, value: Op) -> tuple[Op, Op]:
        """Return a scalar as two u32 words (low, high): integers extended to 64 bits, floats as the bits of their own width."""
        b, t = self.b, value.type
        assert isinstance(t, DType), t
        if t.bits == 64:
            bits = value if t is u64 else b.emit(ops.bitcast, value, type=u64)
            return b.cast(bits, u32), b.cast(b.emit(ops.shr, bits, b.const(32, u64)), u32)
        if t.is_float:
            if t.bits == 16:
                return b.cast(b.emit(ops.bitcast, value, type=u16), u32), b.const(0, u32)
            return b.emit(ops.bitcast, value, type=u32), b.const(0, u32)
        if t is u1 or not t.is_signed:
            return b.cast(value, u32), b.const(0, u32)
        wide = b.cast(value, i32)
        high = b.emit(ops.shr, wide, b.const(31, i32))
        return b.emit(ops.bitcast, wide, type=u32), b.emit(ops.bitcast, high, type=u32)
