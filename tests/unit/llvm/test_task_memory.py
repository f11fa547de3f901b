"""What LLVM knows of arrays of which a task reads one after it has written another, in PTX and in code for AMD's GPUs."""

from __future__ import annotations

import re

import pytest

from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir.text import parse
from spirograd.llvmgen import amdgpu
from validation.profiles import PTX

# y[j] += x[j] * z[i], x[j] = 0 for all j, in each iteration i.
SOURCE = """kernel "k"
arg ArrayArg("x", f32, 1)
arg ArrayArg("y", f32, 1)
arg ArrayArg("z", f32, 1)
ref x = ArrayRef("x", 0, f32, 1)
ref y = ArrayRef("y", 1, f32, 1)
ref z = ArrayRef("z", 2, f32, 1)
{
  %zero = const[0]() : i32
  %n = shape[(0, 0)]() : i32
  for[LoopAttr(True)](%zero, %n) : () { (%i: i32)
    for[LoopAttr()](%zero, %n) : () { (%j: i32)
      %x = load[x](%j) : f32
      %z = load[z](%i) : f32
      %p = mul(%x, %z) : f32
      %y = load[y](%j) : f32
      %sum = add(%y, %p) : f32
      store[y](%j, %sum)
      %nothing = const[0.0]() : f32
      store[x](%j, %nothing)
      yield()
    }
    yield()
  }
  yield()
}
"""


def compiled(caps: Capabilities, overlapping: bool = False) -> CompiledKernel:
    return compile_kernel(parse(SOURCE), caps, CompileOptions(keep_stages=True, overlapping=overlapping, verify=True))


def test_arrays_that_a_task_only_reads_are_constant_and_read_once() -> None:
    text = str(compiled(PTX["cuda-sm_90"]).stages["kernel.ptx"])
    assert text.count("ld.global.nc.") == 1
    (factor,) = re.findall(r"ld\.global\.nc\.b32 \t(%\w+),", text)
    assert text.count(f", {factor};") > 1  # It is the factor of all iterations of the inner loop.


@pytest.mark.parametrize("overlapping", [False, True])
def test_launches_compare_the_arrays(overlapping: bool) -> None:
    found = compiled(PTX["cuda-sm_90"], overlapping)
    assert [(array.index, array.written) for array in found.disjoint] == ([] if overlapping else [(0, True), (1, True), (2, False)])
    assert ("ld.global.nc." in str(found.stages["kernel.ptx"])) is not overlapping


def test_each_array_that_is_written_has_a_scope() -> None:
    text = str(compiled(PTX["cuda-sm_90"]).stages["kernel.ll"])
    scopes = dict(re.findall(r"!alias\.scope (!\d+), !noalias (!\d+)", text))
    assert len(scopes) == 2
    lists = dict(re.findall(r"^(!\d+) = !\{(!\d+)\}$", text, re.MULTILINE))
    assert all(lists[own] != lists[apart] for own, apart in scopes.items()) and len({lists[own] for own in scopes}) == 2
    assert "alias.scope" not in str(compiled(PTX["cuda-sm_90"], overlapping=True).stages["kernel.ll"])


def test_the_same_for_amdgpu() -> None:
    text = str(compiled(amdgpu.capabilities("gfx1100")).stages["kernel.ll"])
    assert text.count("!noalias") == 4 and "float, ptr addrspace(1)" in text
