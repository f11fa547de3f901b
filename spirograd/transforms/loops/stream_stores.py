"""Streaming stores: large maps write past the caches of x86.

An ordinary store first reads the cache line that it changes. If a loop writes more than the caches hold, this read is a third of the
traffic of `y[i] = f(x[i])`; streaming (non-temporal) stores avoid it. LLVM vectorises them only if each is aligned to a vector. Therefore a
block of iterations writes to local memory, vectorised as usual, and aligned vectors move its contents to memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from spirograd.analysis.loop_costs import LONGEST_STREAMING, STREAM_BLOCK, bypasses_caches, has_streaming_stores
from spirograd.base.dtypes import VOID, DType
from spirograd.ir import ops
from spirograd.ir.chunk_loops import ChunkLoop, loops_of
from spirograd.ir.nodes import BufferRef, Kernel, Op, Region, SharedRef
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def stream_stores(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Turn loops over chunks that write large parts of fields into loops over blocks, with a `stream` for each of these stores.

    Streaming stores are not ordered before the signal to other threads that a chunk is done, so the body of the chunk ends with a
    `barrier`.
    """
    return _StreamStores().kernel(kernel) if has_streaming_stores(ctx.caps) else kernel


class _StreamStores(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[Op, tuple[Op, ...]] = {}  # by loop
        self.arrays: dict[Op, tuple[SharedRef, Op]] = {}  # by store: local memory, and the number of the iteration in its block
        self.count = 0  # the number of arrays in the task
        self.handlers = {ops.task: self._task, ops.for_: self._for, ops.store: self._store}

    def _task(self, op: Op) -> Op:
        if op.attr.kind != "chunks" or len(op.regions) > 2:
            return self.b.append(op)
        self.count = 0
        self.streams = {loop.loop: stores for loop in loops_of(op, op.regions[1]) if (stores := _streams(loop))}
        if not self.streams:
            return self.b.append(op)
        bounds, body = op.regions
        self.b.begin()
        self.visit_all(body.ops[:-1])
        self.b.emit(ops.barrier, type=VOID)
        chunk = Region(body.params, self.b.end().ops)
        return self.b.append(Op(ops.task, op.type, (), op.attr, (bounds, chunk), op.loc))

    def _for(self, op: Op) -> Op:
        streams = self.streams.get(op)
        if streams is None:
            return self.copy(op)
        b, (start, stop), (index,) = self.b, self.args(op), op.regions[0].params
        t = start.type
        assert isinstance(t, DType)
        (first,) = b.begin(t)
        condition = b.end([b.emit(ops.lt, first, stop)])
        (first,) = b.begin(t)
        count = b.emit(ops.min_, b.emit(ops.sub, stop, first, attr="nsw"), b.const(STREAM_BLOCK, t))
        following = b.emit(ops.add, first, count, attr="nsw")
        b.begin()
        number = b.emit(ops.sub, index, first, attr="nsw")
        for store in streams:
            self.arrays[store] = SharedRef(f"stream{self.count}", store.attr.dtype, STREAM_BLOCK), number
            self.count += 1
        self.visit_all(op.regions[0].ops[:-1])
        b.for_(first, following, (), Region((index,), b.end().ops), op.attr)
        for store in streams:
            place = b.emit(ops.add, first, b.const(_offset(store.args[0], index) or 0, t), attr="nsw")
            b.emit(ops.stream, place, count, attr=(self.arrays[store][0], store.attr), type=VOID)
        return b.emit(ops.while_, start, type=(t,), regions=(condition, b.end([following])))

    def _store(self, op: Op) -> Op:
        if op not in self.arrays:
            return self.copy(op)
        array, number = self.arrays[op]
        return self.b.emit(ops.store, number, self.value(op.args[1]), attr=array, type=VOID)


def _streams(loop: ChunkLoop) -> tuple[Op, ...]:
    """Return the stores of ``loop`` that should bypass caches.

    The loop must be short straight-line code with constant bounds, and the stores must be to the elements of the index in fields, which no
    other access of the loop touches, with no load after them. A store to an element that the loop also loads finds its line in the cache.
    """
    bounds, body, attr = loop.task.regions[0], loop.body, loop.loop.attr
    begin, end = bounds.results[:2]
    index = body.params[0].type
    assert isinstance(index, DType)
    if not attr.independent or attr.reductions or attr.vectorise not in ("", "no") or not index.is_signed:
        return ()
    if begin.code is not ops.const or end.code is not ops.const or len(bounds.results) > 2 or len(body.ops) > LONGEST_STREAMING:
        return ()
    effects = [op.code.effect for op in body.ops[:-1]]
    if not {"pure", "read", "write"}.issuperset(effects) or "write" not in effects or "read" in effects[effects.index("write") :]:
        return ()
    stores = [op for op in body.ops if op.code is ops.store]
    places = {op: _bytes(op, body, begin.attr, end.attr) for op in body.ops if op.code in (ops.load, ops.store)}
    known = {op: place for op, place in places.items() if place is not None}
    return tuple([op for op in stores if _is_stream(op, known)]) if known.keys() >= set(stores) else ()


def _bytes(op: Op, body: Region, begin: int, end: int) -> range | None:
    """Return the bytes of the field tree that a load or store touches in all iterations, or None if they are not contiguous."""
    offset = _offset(op.args[0], body.params[0])
    if not isinstance(op.attr, BufferRef) or op.attr.slot.kind != "tree" or offset is None:
        return None
    return range((offset + begin) * op.attr.dtype.size, (offset + end) * op.attr.dtype.size)


def _offset(address: Op, index: Op) -> int | None:
    """Return the difference between ``address`` and the index if it is constant, else None."""
    total = 0
    while address is not index:
        if address.code is not ops.add or address.args[1].code is not ops.const:
            return None
        total += address.args[1].attr
        address = address.args[0]
    return total


def _is_stream(store: Op, places: Mapping[Op, range]) -> bool:
    mine = places[store]
    if not bypasses_caches(mine):
        return False
    others = (place for op, place in places.items() if op is not store and op.attr.slot == store.attr.slot)
    return all(place.stop <= mine.start or mine.stop <= place.start for place in others)
