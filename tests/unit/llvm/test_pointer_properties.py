"""What LLVM knows of pointers to fields: loads from constant places of a field cannot fault, so that branches need no gathers for them."""

from __future__ import annotations

import ctypes
from contextlib import closing

import pytest

from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir.text import parse
from spirograd.llvmgen import abi
from spirograd.llvmgen.toolchain import host_caps
from spirograd.runtime.devices.cpu import CpuDevice

LOOKUP = """kernel "k"
ref x = FieldRef("x", 1, 1, f32, (65536,), (), Layout((Term(0, 1, 0, 4),)))
ref table = FieldRef("table", 2, 2, f32, (8,), (), Layout((Term(0, 1, 0, 4),)))
{
  %0 = const[0]() : i32
  %3 = const[3]() : i32
  %5 = const[5]() : i32
  %n = const[65536]() : i32
  for[LoopAttr(parallel=True)](%0, %n) : () { (%i: i32)
    %v = load[x](%i) : f32
    %t = load[table](%3) : f32
    %c = lt(%v, %t) : u1
    %r = if(%c) : (f32) {
      %a = load[table](%0) : f32
      %b = load[table](%5) : f32
      %m = mul(%a, %v) : f32
      %s = add(%m, %b) : f32
      yield(%s)
    } {
      yield(%v)
    }
    %w = result[0](%r) : f32
    store[x](%i, %w)
    yield()
  }
  yield()
}
"""


@pytest.mark.optimized
def test_constants_in_branches_are_not_gathered() -> None:
    stages = compile_kernel(parse(LOOKUP), host_caps(), CompileOptions(keep_stages=True, verify=True)).stages
    assert f"!{{i64 {abi.GUARD_BYTES}}}" in stages["kernel.ll"]
    assert "gather" not in stages["kernel.opt.ll"]


@pytest.mark.parametrize("nbytes", [0, 1, 24, 4096, (1 << 18) - 1, 1 << 18, 5 << 20])
def test_allocations_are_aligned_and_followed_by_readable_bytes(nbytes: int) -> None:
    with closing(CpuDevice(threads=1, memory_limit=None)) as device:
        buffer = device.allocate(nbytes)
        assert buffer.address % abi.ALIGNMENT == 0
        assert not any(ctypes.string_at(buffer.address + buffer.nbytes, abi.GUARD_BYTES))
