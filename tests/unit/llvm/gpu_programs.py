"""Tasks in device IR, and what LLVM makes of them for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spirograd.base.artifact import ArgBlock, Slot
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, i32
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Kernel, Op, Region, TaskAttr
from spirograd.llvmgen.gpu import emit_kernel
from spirograd.llvmgen.toolchain import MachineCode
from spirograd.llvmgen.translate import DIALECTS, translate
from spirograd.transforms.lowering.lower_atomics import lower_atomics
from spirograd.transforms.lowering.lower_tasks import lower_tasks
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify_lowered

OPTIONS = CompileOptions()
ARRAYS = (Slot("array", 0), Slot("array", 1, offset=8))
TREES = (Slot("tree", 0), Slot("tree", 1, offset=8))


def loop(body: Callable[[Builder, Op], None], n: int = 1000, size: int = 64, name: str = "t") -> Op:
    """A task over ``n`` iterations; ``body(b, i)`` emits one."""
    b = Builder()
    b.begin()
    bounds = b.end((b.const(0), b.const(n)))
    (i,) = b.begin(i32)
    body(b, i)
    inside = b.end()
    b.begin()
    return Op(ops.task, VOID, (), TaskAttr("range_for", name, size), (bounds, inside, b.end()))


def kernel_of(*tasks: Op) -> Kernel:
    return Kernel("k", (), Region((), (*tasks, Op(ops.yield_, VOID))))


def translated(*tasks: Op, caps: Capabilities, slots: tuple[Slot, ...] = TREES, block_size: int = 16) -> MachineCode:
    """The machine code of a kernel of ``tasks``, with its texts."""
    context = PassContext(caps, OPTIONS)
    kernel = simplify_lowered(lower_atomics(lower_tasks(kernel_of(*tasks), context), context), context)
    text = emit_kernel(kernel, ArgBlock(slots, "", block_size), DIALECTS[caps.target.generator], caps, OPTIONS)
    return translate(text, caps, replace(OPTIONS, keep_stages=True))


def doubled(slots: tuple[Slot, ...], t: DType) -> Callable[[Builder, Op], None]:
    """y[i] = x[i] + x[i]"""
    x, y = (BufferRef(name, slot, t) for name, slot in zip("xy", slots))

    def body(b: Builder, i: Op) -> None:
        value = b.load(x, i)
        b.store(y, i, b.emit(ops.add, value, value))

    return body
