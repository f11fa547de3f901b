"""Programs in LLVM IR or assembly -> code objects for gfx1100, run on the emulator."""

from __future__ import annotations

import functools
import struct
import subprocess
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from spirograd.base.options import CompileOptions
from spirograd.llvmgen import amdgpu
from spirograd.llvmgen.code_object import link_code_object
from validation.rdna3 import launch
from validation.rdna3.memory import Memory
from validation.tools import llvm_program

CAPS = amdgpu.capabilities("gfx1100")
_INTRINSICS = """
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare void @llvm.amdgcn.s.barrier()
!llvm.module.flags = !{!0}
!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}
"""
# The beginning of a kernel: %i is the number of the invocation, %t that in the workgroup.
HEAD = """
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %first = mul i32 %g, SIZE
  %i = add i32 %first, %t
"""
_ASSEMBLY = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx1100"
.text
.globl k
.p2align 8
.type k,@function
k:
BODY
  s_endpgm
.Lend:
.size k, .Lend-k
.rodata
.p2align 6
.amdhsa_kernel k
  .amdhsa_next_free_vgpr 64
  .amdhsa_next_free_sgpr 100
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_kernarg_size 16
  .amdhsa_group_segment_fixed_size 1024
  .amdhsa_wavefront_size32 1
  .amdhsa_float_denorm_mode_32 3
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: k
    .symbol: k.kd
    .args:
      - {.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}
      - {.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}
    .kernarg_segment_size: 16
    .group_segment_fixed_size: 1024
    .private_segment_fixed_size: 0
    .kernarg_segment_align: 8
    .wavefront_size: 32
    .sgpr_count: 100
    .vgpr_count: 64
    .max_flat_workgroup_size: 64
...
.end_amdgpu_metadata
"""


@functools.cache
def compiled(ir: str) -> bytes:
    """The code object of LLVM IR."""
    return amdgpu.compile_code_object(ir, CAPS, CompileOptions()).binary


def kernel(body: str, size: int = 32, more: str = "", attributes: str = "") -> bytes:
    """The code object of a kernel "k" of %a and %b, with workgroups of ``size``; ``more``: globals and declarations."""
    group = f'"amdgpu-flat-work-group-size"="{size},{size}" {attributes}'
    head = f"define amdgpu_kernel void @k(ptr addrspace(1) %a, ptr addrspace(1) %b) {group}"
    return compiled(f"{more}\n{head} {{{HEAD.replace('SIZE', str(size))}{body}\n  ret void\n}}\n{_INTRINSICS}")


def assembled(body: str, folder: Path) -> bytes:
    """The code object of assembly, with the address of the kernarg segment in s[0:1], and the number of the invocation in v0."""
    program = llvm_program("llvm-mc")
    assert program is not None
    source, target = folder / "k.s", folder / "k.o"
    source.write_text(_ASSEMBLY.replace("BODY", body))
    subprocess.run([program, "-triple=amdgcn-amd-amdhsa", "-mcpu=gfx1100", "-filetype=obj", str(source), "-o", str(target)], check=True)
    return link_code_object(target.read_bytes())


def run(binary: bytes, *arrays: ArrayLike, groups: int = 1, size: int = 32, name: str = "k") -> list[np.ndarray]:
    """Launch with the addresses of copies of ``arrays``; what these hold afterwards."""
    memory = Memory(1 << 24)
    loaded = launch.load(memory, binary)
    given = [np.ascontiguousarray(array) for array in arrays]
    addresses = [memory.allocate(array.nbytes) for array in given]
    for address, array in zip(addresses, given):
        memory.slice(address, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
    launch.launch(loaded, name, groups, size, struct.pack(f"<{len(addresses)}Q", *addresses))
    return [memory.slice(a, g.nbytes).view(g.dtype).reshape(g.shape).copy() for a, g in zip(addresses, given)]


def element(values: str, address: str, t: str, index: str = "%i") -> str:
    """Lines of IR that load element ``index`` of ``address`` as ``values``."""
    pointer = f"{values}.p"
    return f"\n  {pointer} = getelementptr {t}, ptr addrspace(1) {address}, i32 {index}\n  {values} = load {t}, ptr addrspace(1) {pointer}"


def stored(value: str, address: str, t: str, index: str = "%i") -> str:
    """Lines of IR that store ``value`` as element ``index``."""
    pointer = f"{value}.q"
    return f"\n  {pointer} = getelementptr {t}, ptr addrspace(1) {address}, i32 {index}\n  store {t} {value}, ptr addrspace(1) {pointer}"
