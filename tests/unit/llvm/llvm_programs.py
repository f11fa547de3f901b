"""Hand-built device-IR kernels for the tests of the LLVM back end."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spirograd.base.artifact import ArgBlock, CompiledKernel, Slot, TaskInfo
from spirograd.base.dtypes import VOID, DType, i32, storage
from spirograd.base.options import CompileOptions
from spirograd.compiler import LOOP_PASSES
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Kernel, Op, Region, TaskAttr
from spirograd.ir.spec import verify
from spirograd.llvmgen.emit import emit_kernel
from spirograd.llvmgen.toolchain import MachineCode, compile_module, host_caps
from spirograd.runtime.devices import cpu
from spirograd.transforms.pass_context import PassContext


class Program:
    """Buffers and scalars are declared first, then tasks; `run` compiles, and launches on NumPy arrays."""

    def __init__(self, name: str = "k") -> None:
        self.name = name
        self.b = Builder()
        self.slots: list[Slot] = []
        self.tasks: list[Op] = []
        self.offset = 0
        self.compiled: CompiledKernel | None = None
        self.native: MachineCode | None = None
        self.text = ""

    def buffer(self, dtype: DType) -> BufferRef:
        slot = Slot("array", len(self.slots), offset=self.offset)
        self.offset += 8
        self.slots.append(slot)
        return BufferRef(f"b{slot.index}", slot, storage(dtype))

    def scalar(self, dtype: DType) -> Slot:
        slot = Slot("scalar", len(self.slots), dtype=dtype, offset=self.offset)
        self.offset += 8  # every entry takes 8 bytes here: simple, and aligned
        self.slots.append(slot)
        return slot

    def slot(self, slot: Slot) -> Op:
        assert slot.dtype is not None
        return self.b.emit(ops.slot, attr=slot, type=slot.dtype)

    def serial(self, body: Callable[[Builder], None], name: str = "serial") -> None:
        self.b.begin()
        body(self.b)
        self.tasks.append(Op(ops.task, (), (), TaskAttr("serial", name), (self.b.end(),)))

    def range_for(
        self,
        begin: Any,
        end: Any,
        body: Callable[..., Any],
        reductions: Sequence[Any] = (),
        finish: Callable[..., None] | None = None,
        index: DType = i32,
        name: str = "loop",
    ) -> None:
        """``begin`` and ``end``: an int, or a function of the builder. ``body(b, i, *accumulators)`` returns the next accumulators."""
        b = self.b
        b.begin()
        bounds = b.end([v(b) if callable(v) else b.const(v, index) for v in (begin, end)])
        types = [r.dtype for r in reductions]
        params = b.begin(index, *types)
        inner = _with_params(b, params, body)
        params = b.begin(*types)
        if finish is not None:
            finish(b, *params)
        last = b.end()
        self.tasks.append(Op(ops.task, (), (), TaskAttr("range_for", name, 0, tuple(reductions)), (bounds, inner, last)))

    def kernel(self) -> Kernel:
        body = Region((), (*self.tasks, Op(ops.yield_, VOID)))
        return Kernel(self.name, (), body)

    def compile(self, options: CompileOptions | None = None, caps: Any = None) -> CompiledKernel:
        options = options or CompileOptions(keep_stages=True)
        caps = caps or host_caps()
        block = ArgBlock(tuple(self.slots), "<" + "Q" * len(self.slots), self.offset)
        self.text = emit_kernel(planned(self.kernel(), caps, options), block, caps, options)
        self.native = compile_module(self.text, caps, options)
        infos = tuple(TaskInfo(t.attr.name, t.attr.kind, t.attr.name, 0) for t in self.tasks)
        self.compiled = CompiledKernel(self.name, "cpu", "", block, infos, (self.native.binary,))
        return self.compiled

    def block(self, *values: Any) -> bytes:
        out = b""
        for slot, value in zip(self.slots, values, strict=True):
            if slot.is_buffer:
                out += struct.pack("<Q", value.ctypes.data)
            else:
                assert slot.dtype is not None
                out += np.asarray(value, slot.dtype.np).tobytes().ljust(8, b"\0")
        return out

    def run(self, device: cpu.CpuDevice, *values: Any, options: CompileOptions | None = None) -> None:
        if self.compiled is None:
            self.compile(options)
        assert self.compiled is not None
        executable = device.load(self.compiled)
        device.launch(executable, self.block(*values), [None] * len(self.tasks))


def planned(kernel: Kernel, caps: Any, options: CompileOptions) -> Kernel:
    """``kernel`` after the passes over its loops."""
    for transform in LOOP_PASSES:
        kernel = transform(kernel, PassContext(caps, options))
        verify(kernel, "loops")
    return kernel


def _with_params(b: Builder, params: Sequence[Op], body: Callable[..., Any]) -> Region:
    """Close a region with what ``body`` returns; an operation alone (a store, say) is no result."""
    results = body(b, *params)
    return b.end(results if isinstance(results, (list, tuple)) else ())
