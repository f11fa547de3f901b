"""Device IR by hand: one task over a list of NumPy arrays (slots of buffers) and scalars, compiled, checked and run."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from spirograd.base import dtypes
from spirograd.base.artifact import ArgBlock, CompiledKernel, Slot, TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, i32
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Kernel, Op, Reduction, Region, TaskAttr
from spirograd.spirvgen.emit import emit_task
from spirograd.spirvgen.module import ModuleError
from spirograd.spirvgen.validate import validate
from spirograd.transforms.lowering.lower_tasks import lower_tasks
from spirograd.transforms.pass_context import PassContext
from validation import profiles

FULL = replace(profiles.VULKAN, subgroup_size=8, exact_specials=(), exact_subnormals=())
WGPU = replace(profiles.WGPU, max_buffers=8, max_group_size=256)


@dataclass
class Args:
    """The argument block: buffers first, then scalars."""

    buffers: list[DType]
    scalars: list[DType] = field(default_factory=list)
    padding: int = 0

    def __post_init__(self) -> None:
        offset = 8 * len(self.buffers)
        self.slots = [Slot("tree", k, offset=8 * k) for k in range(len(self.buffers))]
        self.format = "<" + "Q" * len(self.buffers)
        letters = {"i64": "q", "u64": "Q", "f64": "d", "i32": "i", "u32": "I", "f32": "f", "u1": "?3x", "f16": "e2x"}
        letters |= {"i8": "b3x", "u8": "B3x", "i16": "h2x", "u16": "H2x"}
        for k, t in enumerate(sorted(self.scalars, key=lambda t: -t.size)):
            self.slots.append(Slot("scalar", k, dtype=t, offset=offset))
            self.format += letters[t.name]
            offset += max(4, t.size)
        self.format += f"{self.padding}x"
        self.block = ArgBlock(tuple(self.slots), self.format, struct.calcsize(self.format))
        self.refs = [BufferRef(f"buffer{k}", self.slots[k], t) for k, t in enumerate(self.buffers)]

    def scalar(self, b: Builder, k: int) -> Op:
        slot = self.slots[len(self.buffers) + k]
        assert slot.dtype is not None
        return b.emit(ops.slot, attr=slot, type=slot.dtype)


def serial(build: Callable[[Builder], None]) -> Kernel:
    b = Builder()
    b.begin()
    build(b)
    return kernel(Op(ops.task, VOID, (), TaskAttr("serial", "t0"), (b.end(),)))


def range_for(
    bounds: Callable[[Builder], tuple[Op, Op]],
    body: Callable[..., Sequence[Op]],
    reductions: Sequence[Reduction] = (),
    finish: Callable[..., None] | None = None,
    index: DType = i32,
) -> Kernel:
    b = Builder()
    b.begin()
    first = b.end(bounds(b))
    params = b.begin(index, *[r.dtype for r in reductions])
    second = b.end(body(b, *params))
    params = b.begin(*[r.dtype for r in reductions])
    if finish is not None:
        finish(b, *params)
    return kernel(Op(ops.task, VOID, (), TaskAttr("range_for", "t0", 0, tuple(reductions)), (first, second, b.end())))


def kernel(task: Op) -> Kernel:
    return Kernel("k", (), Region((), (task, Op(ops.yield_, VOID))))


def lowered(k: Kernel, caps: Capabilities, group_size: int = 1) -> Op:
    """The first task as what each invocation runs."""
    context = PassContext(replace(caps, max_group_size=max(caps.max_group_size, group_size)), CompileOptions(group_size=group_size))
    return lower_tasks(k, context).body.ops[0]


def compile_task(k: Kernel, args: Args, caps: Capabilities = FULL, options: CompileOptions | None = None, group_size: int = 1) -> bytes:
    """The module of the first task, checked by spirv-val."""
    module = emit_task(lowered(k, caps, group_size), k, args.block, caps, options or CompileOptions()).binary
    check(module, caps.target_name)
    return module


def check(module: bytes, target: str) -> None:
    """Raise ModuleError if spirv-val finds a module invalid, unless it is too old to know an extension of the module."""
    try:
        validate(module, target)
    except ModuleError as error:
        if "install SPIRV-Tools" not in str(error):
            raise


def run(
    device: Any,
    k: Kernel,
    args: Args,
    arrays: Sequence[np.ndarray],
    scalars: Sequence[Any] = (),
    count: int | None = 1,
    caps: Capabilities | None = None,
    options: CompileOptions | None = None,
    group_size: int = 1,
) -> list[np.ndarray]:
    """Compile and run on ``device`` with copies of ``arrays``; returns what they hold afterwards."""
    module = compile_task(k, args, caps or device.caps, options, group_size)
    attr = k.body.ops[0].attr
    info = TaskInfo(attr.name, attr.kind, "main", 0, 0, 1, group_size)
    compiled = CompiledKernel("k", "vulkan", "", args.block, (info,), (module,))
    buffers = []
    for array in arrays:
        data = np.ascontiguousarray(array)
        buffer = device.allocate(data.nbytes)
        device.upload(buffer, 0, memoryview(data).cast("B"))
        buffers.append(buffer)
    block = struct.pack(args.format, *[buffer.address for buffer in buffers], *scalars)
    device.launch(device.load(compiled), block, [count])
    device.synchronize()
    out = []
    for buffer, array in zip(buffers, arrays):
        result = np.empty_like(np.ascontiguousarray(array))
        device.download(buffer, 0, memoryview(result).cast("B"))
        out.append(result)
        device.free(buffer)
    return out


SAMPLES: dict[str, list[float]] = {
    "float": [0.0, 1.0, -1.0, 0.5, -0.25, 2.0, -3.5, 1.5, 2.5, 7.25, -6.75, 0.125],
    "int": [0, 1, -1, 2, -3, 5, 7, -100, 100, 127, -128, 31],
    "uint": [0, 1, 2, 3, 5, 7, 100, 127, 128, 200, 255, 31],
}


def samples(t: DType) -> np.ndarray:
    """Interesting values of a type."""
    if t is dtypes.u1:
        return np.array([False, True] * 6)
    values = list(SAMPLES[t.kind])
    if t.is_int and t.bits > 8:
        values[-3:] = [int(t.max), int(t.min), int(t.max) - 5]
    return np.array(values).astype(t.np) if t.is_float else np.array(values, dtype=t.np)
