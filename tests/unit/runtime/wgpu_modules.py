"""Hand-written SPIR-V kernels for tests of the wgpu device: storage buffers, the argument block in immediates or in a buffer."""

import functools
import subprocess

import numpy as np
from unit.runtime.spirv_modules import LOOP

from spirograd.base.arguments import Arguments
from spirograd.base.artifact import ArgBlock, CompiledKernel, Slot, TaskInfo
from spirograd.base.dtypes import u32
from spirograd.base.sizes.size_nodes import Arg

HEADER = """
OpCapability Shader
OpMemoryModel Logical GLSL450
OpEntryPoint GLCompute %main "main" %gid %nwg
OpExecutionMode %main LocalSize 64 1 1
OpDecorate %gid BuiltIn GlobalInvocationId
OpDecorate %nwg BuiltIn NumWorkgroups
OpDecorate %Args Block
OpDecorate %Data Block
OpDecorate %arr ArrayStride 4
OpMemberDecorate %Data 0 Offset 0
"""

TYPES = """
%void = OpTypeVoid
%fn = OpTypeFunction %void
%bool = OpTypeBool
%u32 = OpTypeInt 32 0
%v3 = OpTypeVector %u32 3
%p_v3 = OpTypePointer Input %v3
%arr = OpTypeRuntimeArray %u32
%Data = OpTypeStruct %arr
%p_Data = OpTypePointer StorageBuffer %Data
%p_u32 = OpTypePointer StorageBuffer %u32
%f_u32 = OpTypePointer Function %u32
%gid = OpVariable %p_v3 Input
%nwg = OpVariable %p_v3 Input
"""


def _body(name, layout):
    """What is done with element i of the arrays. ``layout``: for each array, (binding, whether others lie in it too)."""
    lines = []
    where = "%c0" if name == "count" else "%i"
    for k, (binding, shared) in enumerate(layout):
        index = where
        if shared:
            lines += [f"%at{k} = OpIAdd %u32 {where} %first{k}"]
            index = f"%at{k}"
        lines += [f"%p{k} = OpAccessChain %p_u32 %b{binding} %c0 {index}"]
    if name == "count":  # first[0] += a
        return "\n".join([*lines, "%old = OpAtomicIAdd %u32 %p0 %c1 %c0 %a"])
    lines += [f"%x{k} = OpLoad %u32 %p{k}" for k in range(len(layout))]
    if name == "scale":  # first[i] = first[i] * 2 + a + i
        lines += ["%y = OpIMul %u32 %x0 %c2", "%z = OpIAdd %u32 %y %a", "%sum0 = OpIAdd %u32 %z %i", "OpStore %p0 %sum0"]
        return "\n".join(lines)
    # "sum": first[i] += a + all others[i]
    lines += ["%sum0 = OpIAdd %u32 %x0 %a"]
    lines += [f"%sum{k} = OpIAdd %u32 %sum{k - 1} %x{k}" for k in range(1, len(layout))]
    return "\n".join([*lines, f"OpStore %p0 %sum{len(layout) - 1}"])


@functools.lru_cache
def module(name, bindings=((0,),), in_block=False):
    """The SPIR-V of a body ("count", "scale", "sum") over the arrays whose addresses stand at the offsets in ``bindings``."""
    arrays = len({offset for entry in bindings for offset in entry})
    layout = {offset // 8: (k, len(entry) > 1) for k, entry in enumerate(bindings) for offset in entry}
    decorations = "".join(f"OpDecorate %b{k} DescriptorSet 0\nOpDecorate %b{k} Binding {k}\n" for k in range(len(bindings)))
    words = 2 * arrays + 2
    decorations += "".join(f"OpMemberDecorate %Args {w} Offset {4 * w}\n" for w in range(words))
    if in_block:
        decorations += "OpDecorate %args DescriptorSet 1\nOpDecorate %args Binding 0\n"
    storage = "StorageBuffer" if in_block else "PushConstant"
    types = TYPES + "".join(f"%c{c} = OpConstant %u32 {c}\n" for c in sorted({0, 1, 2, 64, *range(words)}))
    types += "".join(f"%b{k} = OpVariable %p_Data StorageBuffer\n" for k in range(len(bindings)))
    types += f"%Args = OpTypeStruct {'%u32 ' * words}\n%p_Args = OpTypePointer {storage} %Args\n"
    types += "" if in_block else "%q_u32 = OpTypePointer PushConstant %u32\n"
    types += f"%args = OpVariable %p_Args {storage}\n"
    pointer = "%p_u32" if in_block else "%q_u32"
    named = {"n": words - 2, "a": words - 1, **{f"at{k}_": 2 * k for k in range(arrays)}}
    load = "".join(f"%w_{x} = OpAccessChain {pointer} %args %c{w}\n%{x} = OpLoad %u32 %w_{x}\n" for x, w in named.items())
    load += "".join(f"%first{k} = OpShiftRightLogical %u32 %at{k}_ %c2\n" for k in range(arrays))
    code = LOOP.format(load=load, body=_body(name, [layout[k] for k in range(arrays)]))
    text = HEADER + decorations + types + code
    made = subprocess.run(["spirv-as", "--target-env", "spv1.3", "-o", "-", "-"], input=text.encode(), capture_output=True, check=True)
    subprocess.run(["spirv-val", "--target-env", "vulkan1.1", "-"], input=made.stdout, capture_output=True, check=True)
    return made.stdout


LAST = Arg(0)  # of the range of a task: a scalar argument


def compiled(*names, bindings=((0,),), end=LAST, in_block=False, padding=256):
    """A kernel whose tasks are ``names``: arguments (addresses of trees 0, 1 ..., u32 n, u32 a), padded if ``in_block``."""
    arrays = len({offset for entry in bindings for offset in entry})
    slots = tuple(Slot("tree", k, offset=8 * k) for k in range(arrays))
    slots += (Slot("scalar", 0, dtype=u32, offset=8 * arrays), Slot("scalar", 1, dtype=u32, offset=8 * arrays + 4))
    tasks = tuple(TaskInfo(f"t{i}", "range_for", "main", i, 0, end, 64, bindings=bindings) for i in range(len(names)))
    binaries = tuple(module(name, bindings, in_block) for name in names)
    block = ArgBlock(slots, "<" + "Q" * arrays + "II", 8 * arrays + 8 + (padding if in_block else 0))
    return CompiledKernel("k", "wgpu", "k", block, tasks, binaries)


def filled(memory, values):
    """An allocation with ``values`` as u32."""
    data = np.ascontiguousarray(values, np.uint32)
    a = memory.allocate(max(data.nbytes, 4))
    a.write(0, memoryview(data))
    return a


def run(plan, n, a, *arrays):
    """Launch a plan of `compiled` over n elements of ``arrays``."""
    plan.launch(Arguments.of([n, a], [None] * 2, dict(enumerate(arrays))))


def native(device):
    """wgpu's own device, for what only wgpu can break."""
    return device._device
