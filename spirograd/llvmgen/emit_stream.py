"""Streaming stores, from elements of local memory to memory past the caches."""

from __future__ import annotations

from spirograd.base.dtypes import DType, i64
from spirograd.ir.nodes import Op
from spirograd.llvmgen.function import FunctionEmitter

_VECTOR = 32  # bytes, and their alignment
_PER_TRIP = 4  # vectors


def emit_stream(e: FunctionEmitter, op: Op) -> None:
    """Emit streaming stores if the local memory is full and the elements are aligned, else a copy."""
    (local, ref), (index, number) = op.attr, op.args
    assert isinstance(number.type, DType)
    array, target, size = e.local_memory(local), e.pointer(ref, index), ref.dtype.size
    count = e.resize(e.operand(number), number.type, i64)
    stream, plain, written = e.new_labels("stream", "plain", "written")
    low = e.value(f"and i64 {e.value(f'ptrtoint ptr {target} to i64')}, {_VECTOR - 1}")
    missing = e.value(f"sub i64 {local.length}, {count}")
    fits, before = e.value(f"icmp eq i64 {e.value(f'or i64 {low}, {missing}')}, 0"), e.label
    e.line(f"br i1 {fits}, label %{stream}, label %{plain}")
    e.start(plain)
    copy = e.module.declare("llvm.memcpy.p0.p0.i64", "void", "ptr, ptr, i64, i1")
    nbytes = e.value(f"mul nuw i64 {count}, {size}")
    e.line(f"call void {copy}(ptr align {size} {target}, ptr align {_VECTOR} {array}, i64 {nbytes}, i1 false)")
    e.goto(written)
    e.start(stream)
    done = e.name()
    e.line(f"{done} = phi i64 [ 0, %{before} ], [ {done}.next, %{stream} ]")
    vector, past_caches = f"<{_VECTOR // 4} x i32>", e.module.node("!{i32 1}")
    for k in range(_PER_TRIP):
        at = e.value(f"add nuw i64 {done}, {k * _VECTOR}")
        source = e.value(f"getelementptr inbounds i8, ptr {array}, i64 {at}")
        loaded = e.value(f"load {vector}, ptr {source}, align {_VECTOR}")
        sink = e.value(f"getelementptr inbounds i8, ptr {target}, i64 {at}")
        e.line(f"store {vector} {loaded}, ptr {sink}, align {_VECTOR}, !nontemporal {past_caches}")
    e.line(f"{done}.next = add nuw i64 {done}, {_PER_TRIP * _VECTOR}")
    more = e.value(f"icmp ult i64 {done}.next, {local.length * size}")
    e.line(f"br i1 {more}, label %{stream}, label %{written}")
    e.start(written)
