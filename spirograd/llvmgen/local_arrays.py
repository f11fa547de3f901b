"""Vectors of more than `LARGEST_REGISTER` elements as arrays on the stack: their memory, and copies of it.

The operand of such a vector is a pointer. No two values that are live at the same time share memory, so `insert` is a store if its operand
is dead afterwards (`ir.last_uses`), else a copy and a store. A loop-carried vector keeps its memory for all iterations.
"""

from __future__ import annotations

from spirograd.base.dtypes import Type, Vec
from spirograd.llvmgen.function import FunctionEmitter
from spirograd.llvmgen.module import type_name


def new_array(e: FunctionEmitter, t: Type) -> str:
    """Return stack memory for a large vector, the same each time this code runs."""
    assert isinstance(t, Vec)
    name = e.name()
    e.entry.append(e.module.stack(name, f"[{t.n} x {type_name(t.elem)}]", 16))
    return name


def copy_text(e: FunctionEmitter, target: str, source: str, t: Type) -> str:
    """Return the line that copies an array."""
    assert isinstance(t, Vec)
    callee = e.module.declare("llvm.memcpy.p0.p0.i64", "void", "ptr, ptr, i64, i1")
    return f"  call void {callee}(ptr align 16 {target}, ptr align 16 {source}, i64 {t.n * t.elem.size}, i1 false)"


def copied_array(e: FunctionEmitter, source: str, t: Type) -> str:
    """Return a copy of an array, in memory of its own."""
    target = new_array(e, t)
    e.lines.append(copy_text(e, target, source, t))
    return target


def element(e: FunctionEmitter, array: str, t: Vec, index: str) -> str:
    """Return a pointer to an element of a large vector. ``index`` is typed."""
    return e.value(f"getelementptr inbounds {type_name(t.elem)}, ptr {array}, {index}")
