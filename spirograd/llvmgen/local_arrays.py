"""Vectors of more than `LARGEST_REGISTER` elements as arrays on the stack: their memory, and copies of it.

The operand of such a vector is a pointer. No two values that are live at the same time share memory, so `insert` is a store if its operand
is dead afterwards (`ir.last_uses`), else a copy and a store. A loop-carried vector keeps its memory for all iterations.
"""

from __future__ import annotations

from spirograd.base.dtypes import Type, Vec
from spirograd.llvmgen.function import FunctionEmitter
from spirograd.llvmgen.module import type_name

# LLVM copies and clears 128 bytes and more byte by byte on NVIDIA's GPUs. Arrays of more than _MOST_IN_PIECES bytes would take too much
# code.
_PIECE, _MOST_IN_PIECES = 64, 4096
_WORDS = {16: "<4 x i32>", 8: "<2 x i32>", 4: "<1 x i32>", 2: "<1 x i16>", 1: "<1 x i8>"}


def new_array(e: FunctionEmitter, t: Type) -> str:
    """Return stack memory for a large vector, the same each time this code runs."""
    assert isinstance(t, Vec)
    name = e.name()
    e.entry.append(e.module.stack(name, f"[{t.n} x {type_name(t.elem)}]", 16))
    return name


def copy_text(e: FunctionEmitter, target: str, source: str, t: Type) -> str:
    """Return the lines that copy an array."""
    assert isinstance(t, Vec)
    callee = e.module.declare("llvm.memcpy.p0.p0.i64", "void", "ptr, ptr, i64, i1")
    lines = []
    for offset, nbytes in _pieces(e, t):
        (to, from_), places = (target, source), []
        if offset:
            to, from_ = e.name(), e.name()
            places = [f"  {name} = getelementptr inbounds i8, ptr {array}, i64 {offset}" for name, array in ((to, target), (from_, source))]
        lines += [*places, f"  call void {callee}(ptr align 16 {to}, ptr align 16 {from_}, i64 {nbytes}, i1 false)"]
    return "\n".join(lines)


def clear(e: FunctionEmitter, array: str, t: Type) -> None:
    """Emit code that sets all bytes of an array to zero."""
    assert isinstance(t, Vec)
    nbytes = t.n * t.elem.size
    if not _has_pieces(e, nbytes):
        callee = e.module.declare("llvm.memset.p0.i64", "void", "ptr, i8, i64, i1")
        e.line(f"call void {callee}(ptr align 16 {array}, i8 0, i64 {nbytes}, i1 false)")
        return
    offset = 0  # LLVM would merge small `memset`.
    for size, kind in _WORDS.items():
        while offset + size <= nbytes:
            place = e.value(f"getelementptr inbounds i8, ptr {array}, i64 {offset}")
            e.line(f"store {kind} zeroinitializer, ptr {place}, align {size}")
            offset += size


def _has_pieces(e: FunctionEmitter, nbytes: int) -> bool:
    return e.module.caps.target.invocations and nbytes <= _MOST_IN_PIECES


def _pieces(e: FunctionEmitter, t: Vec) -> list[tuple[int, int]]:
    """Return the offsets and sizes, in bytes, of the pieces in which an array is copied."""
    nbytes = t.n * t.elem.size
    most = _PIECE if _has_pieces(e, nbytes) else nbytes
    return [(offset, min(most, nbytes - offset)) for offset in range(0, nbytes, most)]


def copied_array(e: FunctionEmitter, source: str, t: Type) -> str:
    """Return a copy of an array, in memory of its own."""
    target = new_array(e, t)
    e.lines.append(copy_text(e, target, source, t))
    return target


def element(e: FunctionEmitter, array: str, t: Vec, index: str) -> str:
    """Return a pointer to an element of a large vector. ``index`` is typed."""
    return e.value(f"getelementptr inbounds {type_name(t.elem)}, ptr {array}, {index}")
