"""Targets: the properties that all devices of a target share, beyond the capabilities of a single device."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from spirograd.base.constraints import one_of
from spirograd.base.records import dataclass, replace


class Generator(Enum):
    """The code generator of a target, and its output."""

    INTERPRETER = "none: the interpreter runs kernel IR"
    LLVM = "object code, by llvmgen"
    SPIRV = "modules, by spirvgen"
    PTX = "PTX, by llvmgen"
    CODE_OBJECT = "code objects of AMD's GPUs, by llvmgen"


@dataclass(frozen=True, slots=True)
class Target:
    """One row of `TARGETS`. Passes and the runtime test these properties, never the name of a target."""

    generator: Generator
    # Kernel IR is run as it is: there is no code to cache. Its adstacks grow as they are written.
    interpreted: bool = False
    # Every access is checked while a kernel runs, which takes the fault record and all extents; races between iterations can be detected.
    checks_accesses: bool = False
    # Functions may call themselves.
    call_stack: bool = False
    # Memory has addresses on every device of the target, not only where `Capabilities.buffer_address` says so.
    addresses: bool = True
    # As SPIR-V says: remainders of negative integers, conversions of floats out of range to integers, and quotients and maxima with NaN
    # are undefined, and bits are counted in 32 bits only.
    shader_arithmetic: bool = False
    # A workgroup that has begun goes on while others wait for it.
    independent_groups: bool = False
    # Launches run while Python continues, and the host reads the memory of kernels only by waiting for them. Values that a launch depends
    # on, such as the lengths of adstacks, are therefore computed on the device and stay there.
    asynchronous: bool = False
    # A task is dispatched as workgroups of invocations, each of which computes the iterations that it runs.
    invocations: bool = False
    # Subgroups are runs of consecutive invocations of a workgroup, in order.
    subgroups_in_order: bool = False
    # The widest access, in bytes, of an invocation that runs consecutive iterations with consecutive elements.
    access_bytes: int = 0
    # Each thread has one thread slot for every lane, side by side. On other targets each invocation owns or claims a thread slot.
    slots_by_thread: bool = False
    # The code is linked with a library of elementary functions of f64.
    f64_math_library: bool = False
    # `fma` rounds once, and arithmetic of f64 may be slow: invocations branch to avoid it.
    fused_multiply_add: bool = False
    # Atomics may not add floats in shared memory: each device says which it adds.
    lacks_shared_sums: bool = False
    # Sums of f32 are accumulated in f64, which costs nothing.
    wide_sums: bool = False
    # The order in which floats are summed does not depend on the rest of the loop, if iterations are distributed in the same way.
    ordered_sums: bool = False
    # Drivers may simplify float arithmetic as if it were exact, (a + b) - a to b, unless the device's capabilities exclude it.
    simplifies_floats: bool = False
    # A loop-carried vector that is indexed at run time is one value in local memory, rather than its elements.
    local_vectors: bool = False
    # The compiler of the device uses marks of memory that does not overlap.
    tells_disjoint: bool = False
    # Modules pass through naga, which accepts a subset of SPIR-V: it rejects NoContraction and OpSourceContinued (`spirvgen.naga_check`),
    # and drops barriers of subgroups.
    naga: bool = False


_SHADERS = Target(
    Generator.SPIRV,
    addresses=False,
    shader_arithmetic=True,
    asynchronous=True,
    invocations=True,
    ordered_sums=True,
    simplifies_floats=True,
    lacks_shared_sums=True,
)
TARGETS = {
    "interpreter": Target(Generator.INTERPRETER, interpreted=True, checks_accesses=True, call_stack=True),
    "cpu": Target(Generator.LLVM, call_stack=True, slots_by_thread=True, f64_math_library=True, wide_sums=True),
    "vulkan": _SHADERS,
    "wgpu": replace(_SHADERS, naga=True),
    # CUDA promises that workgroups make progress independently for Volta and later, the oldest architectures that are supported.
    "cuda": Target(
        Generator.PTX,
        call_stack=True,
        independent_groups=True,
        asynchronous=True,
        invocations=True,
        subgroups_in_order=True,
        access_bytes=16,
        fused_multiply_add=True,
        tells_disjoint=True,
        local_vectors=True,
    ),
    "amdgpu": Target(
        Generator.CODE_OBJECT,
        asynchronous=True,
        invocations=True,
        subgroups_in_order=True,
        access_bytes=16,
        fused_multiply_add=True,
        tells_disjoint=True,
        local_vectors=True,
    ),
}
TargetName = Annotated[str, one_of(*TARGETS)]
