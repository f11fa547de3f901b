"""Which products GPUs fuse with a sum: those that the compiler says, and no others."""

from __future__ import annotations

import re

import pytest

from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.ir.text import parse
from validation.profiles import AMDGPU, PTX

PROFILES = PTX | {name: caps for name, caps in AMDGPU.items() if name in ("amdgpu-gfx90a", "amdgpu-gfx1100", "amdgpu-gfx1201")}
SOURCE = """kernel "k"
ref x = FieldRef("x", 1, 1, f32, (64,), (), Layout((Term(0, 1, 0, 4),)))
ref y = FieldRef("y", 1, 2, f32, (64,), (), Layout((Term(0, 1, 0, 4),), (256,)))
{
  %0 = const[0]() : i32
  %64 = const[64]() : i32
  for[LoopAttr(parallel=True)](%0, %64) : () { (%i: i32)
    %a = load[x](%i) : f32
    %b = load[y](%i) : f32
    %d = load[y](%0) : f32
    %p = mul(%a, %b) : f32
    %q = OTHER : f32
    %s = sub(%p, %q) : f32
    store[x](%i, %s)
    yield()
  }
  yield()
}
"""
FUSED = re.compile(r"\bfma\.rn|v_(pk_|dual_)?fma|v_(pk_|dual_)?fmac")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("other", "fused"), [("mul(%a, %d)", False), ("load[y](%64)", True)])
def test_sums_of_products(profile: str, other: str, fused: bool) -> None:
    kernel = parse(SOURCE.replace("OTHER", other))
    stages = compile_kernel(kernel, PROFILES[profile], CompileOptions(keep_stages=True, verify=True)).stages
    text = stages["kernel.ptx"] if "kernel.ptx" in stages else stages["kernel.s"]
    text = text.decode() if isinstance(text, bytes) else text
    assert bool(FUSED.search(text)) == fused
    assert "contract" not in stages["kernel.opt.ll"]
    if not fused and "kernel.ptx" in stages:  # `.rn`: the driver contracts these neither
        assert "mul.rn.f32" in text and "sub.rn.f32" in text


@pytest.mark.parametrize("profile", ("cuda-sm_90", "amdgpu-gfx1100"))
def test_free_contraction(profile: str) -> None:
    """A product is contracted with another one, if both are asked for: fast math and free contraction."""
    kernel = parse(SOURCE.replace("OTHER", "mul(%a, %d)"))
    for fast_math in (True, False):
        options = CompileOptions(keep_stages=True, verify=True, free_contraction=True, fast_math=fast_math)
        stages = compile_kernel(kernel, PROFILES[profile], options).stages
        text = stages["kernel.ptx"] if "kernel.ptx" in stages else stages["kernel.s"]
        assert bool(FUSED.search(text.decode() if isinstance(text, bytes) else text)) == fast_math
