"""Targets: the properties that all devices of a target share, beyond the capabilities of a single device."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from spirograd.base.constraints import one_of
from spirograd.base.records import dataclass


class Generator(Enum):
    """What becomes of device IR."""

    INTERPRETER = "nothing: kernel IR is run as it is"
    LLVM = "object code, by llvmgen"
    SPIRV = "modules, by spirvgen"
    PTX = "PTX, by llvmgen"
    CODE_OBJECT = "code objects of AMD's GPUs, by llvmgen"


@dataclass(frozen=True, slots=True)
class Target:
    """One row of `TARGETS`. Passes and the runtime ask for these facts, never for the name of a target."""

    generator: Generator
    # Launches run while Python goes on: the host reads the memory of kernels only by waiting for them. So what it would have to know
    # before a launch, such as the lengths of adstacks, is found on the device, and stays there.
    asynchronous: bool = False
    # A task is dispatched as workgroups of invocations, each of which finds its own iterations.
    invocations: bool = False
    # Bytes that an invocation loads and stores best at once, if iterations that follow one another do so next to one another.
    access_bytes: int = 0
    # Each thread has one thread slot for every lane, side by side. Elsewhere invocations own or claim a thread slot each.
    slots_by_thread: bool = False
    # Elementary functions of f64 come from a library that the code is linked with.
    f64_math_library: bool = False
    # `fma` rounds once, and arithmetic of f64 may be slow: invocations branch to avoid it.
    fused_multiply_add: bool = False
    # Sums of f32 are accumulated in f64, which costs nothing.
    wide_sums: bool = False
    # In which order floats are summed does not depend on what else the loop contains, where the iterations are shared out in the same way.
    ordered_sums: bool = False
    # Tasks of which only the device knows that they have no iterations cost next to nothing, and arrays have addresses. So loops may be
    # compiled twice: for arrays that overlap, and for others.
    checks_overlap: bool = False
    # Unless devices promise more, drivers simplify arithmetic of floats as if it were exact: (a + b) - a is b.
    simplifies_floats: bool = False
    # Modules pass through naga, which takes part of SPIR-V only: without NoContraction and OpSourceContinued (`spirvgen.naga_check`), and
    # without barriers of subgroups, which it drops.
    naga: bool = False


TARGETS = {
    "interpreter": Target(Generator.INTERPRETER),
    "cpu": Target(Generator.LLVM, slots_by_thread=True, f64_math_library=True, wide_sums=True, checks_overlap=True),
    "vulkan": Target(Generator.SPIRV, asynchronous=True, invocations=True, ordered_sums=True, simplifies_floats=True),
    "wgpu": Target(Generator.SPIRV, asynchronous=True, invocations=True, ordered_sums=True, simplifies_floats=True, naga=True),
    "cuda": Target(Generator.PTX, asynchronous=True, invocations=True, access_bytes=16, fused_multiply_add=True),
    "amdgpu": Target(Generator.CODE_OBJECT, asynchronous=True, invocations=True, access_bytes=16, fused_multiply_add=True),
}
TargetName = Annotated[str, one_of(*TARGETS)]
