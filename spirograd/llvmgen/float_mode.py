"""Tasks on the CPU that take subnormal floats for zeros: a bit of a control register, set while a task runs.

A function that sets it calls the code of the task, because LLVM moves float arithmetic past such instructions.
"""

from __future__ import annotations

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, Lanes, Type, Vec
from spirograd.ir.nodes import Op
from spirograd.llvmgen import half
from spirograd.llvmgen.module import ModuleText

_X86_BITS = 0x8040  # MXCSR: flush results (FTZ), and take operands for zeros (DAZ).
_ARM_BITS = 1 << 24  # FPCR: FZ.


def supported(caps: Capabilities) -> bool:
    """Return whether tasks can take subnormals for zeros on the machine."""
    return half.is_x86(caps) or "+fp-armv8" in caps.cpu_features


def computes_floats(task: Op) -> bool:
    """Return whether a task has float arithmetic."""
    pure = (op for region in task.regions for op in region.walk() if op.code.effect == "pure" and op.args)
    return any(_is_float(t) for op in pure for t in (op.type, *[a.type for a in op.args]))


def _is_float(t: Type) -> bool:
    scalar = t.elem if isinstance(t, (Lanes, Vec)) else t
    return isinstance(scalar, DType) and scalar.is_float


def flushing(module: ModuleText, name: str, linkage: str, params: str) -> str:
    """Return a function ``name`` that calls `<name>.flushed` with its parameters ``params``, and takes subnormals for zeros meanwhile."""
    arguments = ", ".join([f"{p.split()[0]} {p.split()[-1]}" for p in params.split(", ")])
    call = f"  call void @{name}.flushed({arguments})"
    lines = _x86(module, call) if half.is_x86(module.caps) else _arm(module, call)
    return "\n".join([f"define {linkage}void @{name}({params}) nounwind {{", *lines, "  ret void", "}", ""])


def _x86(module: ModuleText, call: str) -> list[str]:
    load = module.declare("llvm.x86.sse.ldmxcsr", "void", "ptr")
    store = module.declare("llvm.x86.sse.stmxcsr", "void", "ptr")
    return [
        "  %before = alloca i32, align 4",
        "  %during = alloca i32, align 4",
        f"  call void {store}(ptr %before)",
        "  %mode = load i32, ptr %before, align 4",
        f"  %flush = or i32 %mode, {_X86_BITS}",
        "  store i32 %flush, ptr %during, align 4",
        f"  call void {load}(ptr %during)",
        call,
        f"  call void {load}(ptr %before)",
    ]


def _arm(module: ModuleText, call: str) -> list[str]:
    read = module.declare("llvm.aarch64.get.fpcr", "i64", "")
    write = module.declare("llvm.aarch64.set.fpcr", "void", "i64")
    return [
        f"  %mode = call i64 {read}()",
        f"  %flush = or i64 %mode, {_ARM_BITS}",
        f"  call void {write}(i64 %flush)",
        call,
        f"  call void {write}(i64 %mode)",
    ]
