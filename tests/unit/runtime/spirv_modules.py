"""Hand-written SPIR-V kernels for tests of the Vulkan device: buffers by address, arguments in push constants."""

import functools
import subprocess

from spirograd.base.artifact import ArgBlock, CompiledKernel, Effects, Slot, TaskInfo
from spirograd.base.dtypes import u32
from spirograd.base.sizes.size_nodes import Arg

HEADER = """
OpCapability Shader
OpCapability Int64
OpCapability PhysicalStorageBufferAddresses
OpExtension "SPV_KHR_physical_storage_buffer"
OpMemoryModel PhysicalStorageBuffer64 GLSL450
OpEntryPoint GLCompute %main "main" %gid %nwg %pc
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
%u64 = OpTypeInt 64 0
%v3 = OpTypeVector %u32 3
%p_v3 = OpTypePointer Input %v3
%p_u32 = OpTypePointer PhysicalStorageBuffer %u32
%arr = OpTypeRuntimeArray %u32
%Data = OpTypeStruct %arr
%p_Data = OpTypePointer PhysicalStorageBuffer %Data
%f_u32 = OpTypePointer Function %u32
%c0 = OpConstant %u32 0
%c1 = OpConstant %u32 1
%c2 = OpConstant %u32 2
%c64 = OpConstant %u32 64
%gid = OpVariable %p_v3 Input
%nwg = OpVariable %p_v3 Input
"""

# for (i = gid; i < n; i += nwg * 64) body
LOOP = """
%main = OpFunction %void None %fn
%entry = OpLabel
%iv = OpVariable %f_u32 Function
{load}
%gidv = OpLoad %v3 %gid
%g = OpCompositeExtract %u32 %gidv 0
%nv = OpLoad %v3 %nwg
%ng = OpCompositeExtract %u32 %nv 0
%stride = OpIMul %u32 %ng %c64
OpStore %iv %g
OpBranch %head
%head = OpLabel
%i = OpLoad %u32 %iv
%go = OpULessThan %bool %i %n
OpLoopMerge %done %next None
OpBranchConditional %go %body %done
%body = OpLabel
{body}
OpBranch %next
%next = OpLabel
%i2 = OpIAdd %u32 %i %stride
OpStore %iv %i2
OpBranch %head
%done = OpLabel
OpReturn
OpFunctionEnd
"""

# arguments {u64 data; u32 n; u32 a}
PUSH_TYPES = """
%Args = OpTypeStruct %u64 %u32 %u32
%p_Args = OpTypePointer PushConstant %Args
%q_u64 = OpTypePointer PushConstant %u64
%q_u32 = OpTypePointer PushConstant %u32
%pc = OpVariable %p_Args PushConstant
"""
PUSH_LOAD = """
%pa = OpAccessChain %q_u64 %pc %c0
%address = OpLoad %u64 %pa
%pn = OpAccessChain %q_u32 %pc %c1
%n = OpLoad %u32 %pn
%px = OpAccessChain %q_u32 %pc %c2
%a = OpLoad %u32 %px
%data = OpConvertUToPtr %p_Data %address
"""
# the same arguments in a block in memory, whose address is pushed
BLOCK_TYPES = """
%Args = OpTypeStruct %u64
%p_Args = OpTypePointer PushConstant %Args
%q_u64 = OpTypePointer PushConstant %u64
%Block = OpTypeStruct %u64 %u32 %u32
%p_Block = OpTypePointer PhysicalStorageBuffer %Block
%p_u64 = OpTypePointer PhysicalStorageBuffer %u64
%pc = OpVariable %p_Args PushConstant
"""
BLOCK_LOAD = """
%pb = OpAccessChain %q_u64 %pc %c0
%baddr = OpLoad %u64 %pb
%block = OpConvertUToPtr %p_Block %baddr
%pa = OpAccessChain %p_u64 %block %c0
%address = OpLoad %u64 %pa Aligned 8
%pn = OpAccessChain %p_u32 %block %c1
%n = OpLoad %u32 %pn Aligned 4
%px = OpAccessChain %p_u32 %block %c2
%a = OpLoad %u32 %px Aligned 4
%data = OpConvertUToPtr %p_Data %address
"""
ELEMENT = "%p = OpAccessChain %p_u32 %data %c0 %i\n"
BODIES = {
    # data[i] = data[i] * 2 + a + i
    "scale": ELEMENT + "%x = OpLoad %u32 %p Aligned 4\n%y = OpIMul %u32 %x %c2\n%z = OpIAdd %u32 %y %a\n%w = OpIAdd %u32 %z %i\n"
    "OpStore %p %w Aligned 4\n",
    # data[0] += a
    "count": "%p = OpAccessChain %p_u32 %data %c0 %c0\n%old = OpAtomicIAdd %u32 %p %c1 %c0 %a\n",
}


@functools.lru_cache
def module(body, in_block=False):
    """The SPIR-V of one of `BODIES`."""
    decorations = "OpMemberDecorate %Args 0 Offset 0\n"
    where = "%Block" if in_block else "%Args"
    if in_block:
        decorations += "OpDecorate %Block Block\nOpMemberDecorate %Block 0 Offset 0\n"
    decorations += f"OpMemberDecorate {where} 1 Offset 8\nOpMemberDecorate {where} 2 Offset 12\n"
    code = LOOP.format(load=BLOCK_LOAD if in_block else PUSH_LOAD, body=BODIES[body])
    text = HEADER + decorations + TYPES + (BLOCK_TYPES if in_block else PUSH_TYPES) + code
    made = subprocess.run(["spirv-as", "--target-env", "spv1.5", "-o", "-", "-"], input=text.encode(), capture_output=True, check=True)
    subprocess.run(["spirv-val", "--target-env", "vulkan1.2", "-"], input=made.stdout, capture_output=True, check=True)
    return made.stdout


LAST = Arg(1)  # of the range of a task: a scalar argument
EFFECTS = Effects(frozenset({("tree", 0)}), frozenset({("tree", 0)}))


def compiled(*bodies, end=LAST, in_block=False):
    """A kernel whose tasks are ``bodies``: arguments (buffer of tree 0, i32 n, u32 a), padded beyond push constants if ``in_block``."""
    padding = 256 if in_block else 0
    slots = (Slot("tree", 0), Slot("scalar", 1, dtype=u32, offset=8), Slot("scalar", 2, dtype=u32, offset=12))
    tasks = tuple(TaskInfo(f"t{i}", "range_for", "main", i, 0, end, 64) for i in range(len(bodies)))
    binaries = tuple(module(body, in_block) for body in bodies)
    return CompiledKernel("k", "vulkan", "k", ArgBlock(slots, "<QII", 16 + padding), tasks, binaries, effects=EFFECTS)
