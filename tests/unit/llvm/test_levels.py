"""What LLVM does to a module at each level that the options allow."""

from __future__ import annotations

import pytest

from spirograd.base.options import CompileOptions
from spirograd.llvmgen import toolchain
from spirograd.llvmgen.toolchain import compile_module, host_caps

# A sum that is kept on the stack, in a loop whose trip count is not known.
SUM = """define float @f(ptr %x, i64 %n) {
  %s = alloca float
  store float 0.0, ptr %s
  br label %test
test:
  %i = phi i64 [ 0, %0 ], [ %j, %loop ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %loop, label %end
loop:
  %p = getelementptr float, ptr %x, i64 %i
  %a = load float, ptr %p
  %b = load float, ptr %s
  %c = fadd float %a, %b
  store float %c, ptr %s
  %j = add i64 %i, 1
  br label %test
end:
  %r = load float, ptr %s
  ret float %r
}
"""


@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize(("level", "stack", "unrolled"), [(0, True, False), (1, False, False), (3, False, True)])
def test_levels(level, stack, unrolled, few, monkeypatch):
    """``few``: the size from which on level 1 runs a few passes only."""
    monkeypatch.setattr(toolchain, "_FEW_INSTRUCTIONS", few)
    text = compile_module(SUM, host_caps(), CompileOptions(opt_level=level, keep_stages=True)).optimized_ir
    assert ("alloca" in text, text.count("fadd") > 1) == (stack, unrolled)
