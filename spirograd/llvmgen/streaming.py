"""Large maps that write past the caches of x86.

An ordinary store first reads the line of the cache that it changes. Where a loop writes more than caches hold, that is a third of the
traffic of `y[i] = f(x[i])`; streaming (non-temporal) stores do without. LLVM vectorises these only if each of them is aligned to a vector.
So a block of iterations writes to an array on the stack, vectorised as always, and what is in it goes to memory by aligned vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spirograd.analysis.chunk_loops import ChunkLoop
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, Type, i64
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Op, Region
from spirograd.ir.ops import OpCode
from spirograd.llvmgen import half
from spirograd.llvmgen.emit_control import counted_loop
from spirograd.llvmgen.emit_memory import emit_store
from spirograd.llvmgen.function import FunctionEmitter, Handler
from spirograd.llvmgen.module import ModuleText, type_name

# Bytes that a loop writes to a field if it is to bypass caches. AMD EPYC with 32 MiB of cache, y[i] = x[i] * a + b on one core: 64 MiB in
# 0.63 to 0.70 of the time, 16 MiB in 0.65 to 0.80, 4 MiB in 1.0 to 1.3.
_LEAST_BYTES = 32 << 20
_BLOCK = 256  # iterations
_VECTOR = 32  # bytes, and their alignment
_PER_TRIP = 4  # vectors
_LONGEST = 96  # operations of a body


def find_streams(loop: ChunkLoop, caps: Capabilities) -> tuple[Op, ...]:
    """The stores of ``loop`` that are to bypass caches.

    Short straight-line code with constant bounds, whose stores are to the elements of the index in fields: elements that no other access
    of the loop is to, and that nothing is loaded after. Stores to what the loop also loads find its line in the cache.
    """
    bounds, body = loop.task.regions[0], loop.body
    begin, end = bounds.results[:2]
    index = body.params[0].type
    if not half.is_x86(caps) or begin.code is not ops.const or end.code is not ops.const or len(bounds.results) > 2:
        return ()
    assert isinstance(index, DType)
    effects = [op.code.effect for op in body.ops[:-1]]
    if len(body.ops) > _LONGEST or not index.is_signed or not {"pure", "read", "write"}.issuperset(effects) or "write" not in effects:
        return ()
    stores = body.ops[effects.index("write") : -1]
    if "read" in effects[effects.index("write") :]:
        return ()
    places = {op: _bytes(op, body, begin.attr, end.attr) for op in body.ops if op.code in (ops.load, ops.store)}
    known = {op: place for op, place in places.items() if place is not None}
    if any(op.code is ops.store and op not in known for op in stores):
        return ()
    return tuple([op for op in stores if op.code is ops.store and _is_stream(op, known)])


def _bytes(op: Op, body: Region, begin: int, end: int) -> range | None:
    """The bytes of its field tree that a load or store is to in all iterations; None if they do not follow one another."""
    offset = _offset(op.args[0], body.params[0])
    if not isinstance(op.attr, BufferRef) or op.attr.slot.kind != "tree" or offset is None:
        return None
    return range((offset + begin) * op.attr.dtype.size, (offset + end) * op.attr.dtype.size)


def _offset(address: Op, index: Op) -> int | None:
    """By how much ``address`` is more than the index, where that is constant."""
    total = 0
    while address is not index:
        if address.code is not ops.add or address.args[1].code is not ops.const:
            return None
        total += address.args[1].attr
        address = address.args[0]
    return total


def _is_stream(store: Op, places: Mapping[Op, range]) -> bool:
    mine = places[store]
    if len(mine) < _LEAST_BYTES or mine.start % _VECTOR:
        return False
    others = (place for op, place in places.items() if op is not store and op.attr.slot == store.attr.slot)
    return all(place.stop <= mine.start or mine.stop <= place.start for place in others)


class StreamingEmitter(FunctionEmitter):
    """Emits the function of a range task with this ``body``, of which ``streams`` are stores that bypass caches."""

    def __init__(self, module: ModuleText, handlers: Mapping[OpCode, Handler], name: str, body: Region, streams: Sequence[Op]) -> None:
        super().__init__(module, {**handlers, ops.store: self._store})
        self.index = body.params[0]
        self.first = ""  # the first iteration of the block
        self.arrays = {op: f"%stream{k}" for k, op in enumerate(streams)}
        for op, array in self.arrays.items():
            self.entry.append(module.stack(array, f"[{_BLOCK} x {type_name(op.attr.dtype)}]", _VECTOR))

    def iterations(
        self, index: Type, begin: str, end: str, types: Sequence[Type], initial: Sequence[str], body: Region, suffix: str
    ) -> list[str]:
        """The same, block by block. Without loop-carried values."""
        assert isinstance(index, DType) and not types
        it = type_name(index)
        block, done = self.new_labels("block", "block.end")
        some, before = self.value(f"icmp slt {it} {begin}, {end}"), self.label
        self.line(f"br i1 {some}, label %{block}, label %{done}")
        self.start(block)
        self.first = self.name()
        hole = len(self.lines)
        self.lines.append("")
        count = self.call_intrinsic("smin", index, [self.value(f"sub nsw {it} {end}, {self.first}"), str(_BLOCK)])
        following = self.value(f"add nsw {it} {self.first}, {count}")
        counted_loop(self, index, self.first, following, (), (), body, suffix)
        for op, array in self.arrays.items():
            self._write(op, array, self.resize(count, index, i64))
        again = self.value(f"icmp slt {it} {following}, {end}")
        self.lines[hole] = f"  {self.first} = phi {it} [ {begin}, %{before} ], [ {following}, %{self.label} ]"
        self.line(f"br i1 {again}, label %{block}, label %{done}")
        self.start(done)
        # What tells other threads that the chunk is done is not ordered with streaming stores.
        self.line(f"call void {self.module.declare('llvm.x86.sse.sfence', 'void', '')}()")
        return []

    def _store(self, e: FunctionEmitter, op: Op) -> None:
        array = self.arrays.get(op)
        if array is None:
            emit_store(e, op)
            return
        it = type_name(self.index.type)
        place = self.value(f"sub nsw {it} {self.env[self.index]}, {self.first}")
        pointer = self.value(f"getelementptr inbounds {type_name(op.attr.dtype)}, ptr {array}, {it} {place}")
        self.line(f"store {self.typed(op.args[1])}, ptr {pointer}, align {op.attr.dtype.size}{self.memory_suffix}")

    def _write(self, op: Op, array: str, count: str) -> None:
        """Write the first ``count`` elements of ``array`` to memory: by streaming stores if it is full and they are aligned."""
        size, it = op.attr.dtype.size, type_name(self.index.type)
        base = self.slot_value(op.attr.slot, "ptr", 8)
        place = self.value(f"add nsw {it} {self.first}, {_offset(op.args[0], self.index)}")
        target = self.value(f"getelementptr inbounds {type_name(op.attr.dtype)}, ptr {base}, {it} {place}")
        stream, plain, written = self.new_labels("stream", "plain", "written")
        low = self.value(f"and i64 {self.value(f'ptrtoint ptr {target} to i64')}, {_VECTOR - 1}")
        missing = self.value(f"sub i64 {_BLOCK}, {count}")
        fits, before = self.value(f"icmp eq i64 {self.value(f'or i64 {low}, {missing}')}, 0"), self.label
        self.line(f"br i1 {fits}, label %{stream}, label %{plain}")
        self.start(plain)
        copy = self.module.declare("llvm.memcpy.p0.p0.i64", "void", "ptr, ptr, i64, i1")
        nbytes = self.value(f"mul nuw i64 {count}, {size}")
        self.line(f"call void {copy}(ptr align {size} {target}, ptr align {_VECTOR} {array}, i64 {nbytes}, i1 false)")
        self.goto(written)
        self.start(stream)
        done = self.name()
        self.line(f"{done} = phi i64 [ 0, %{before} ], [ {done}.next, %{stream} ]")
        for k in range(_PER_TRIP):
            at = self.value(f"add nuw i64 {done}, {k * _VECTOR}")
            source = self.value(f"getelementptr inbounds i8, ptr {array}, i64 {at}")
            vector = self.value(f"load <{_VECTOR // 4} x i32>, ptr {source}, align {_VECTOR}")
            sink = self.value(f"getelementptr inbounds i8, ptr {target}, i64 {at}")
            self.line(f"store <{_VECTOR // 4} x i32> {vector}, ptr {sink}, align {_VECTOR}, !nontemporal {self.module.node('!{i32 1}')}")
        self.line(f"{done}.next = add nuw i64 {done}, {_PER_TRIP * _VECTOR}")
        more = self.value(f"icmp ult i64 {done}.next, {_BLOCK * size}")
        self.line(f"br i1 {more}, label %{stream}, label %{written}")
        self.start(written)
