"""What LLVM does to a module at each level that the options allow."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.options import CompileOptions
from spirograd.llvmgen import emit, toolchain
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


@pytest.mark.parametrize("need", [1, 3])
def test_level_0_leaves_out_passes_that_change_nothing(need):
    """The object is the one that LLVM makes with its passes of that level, which would take a quarter of a millisecond."""
    caps, options = host_caps(), CompileOptions(opt_level=0)
    machine = toolchain._target_machine(caps.cpu_name, caps.cpu_features + (toolchain._NO_GATHER if need == 1 else ""), 0)
    with closing(toolchain.parse(SUM, machine)) as module:
        toolchain.optimise(module, machine, 0, vectorise=False, slp=False, unroll=False)
        expected = toolchain.emitted(module, machine)
    assert compile_module(SUM, caps, options, need).binary == expected


def test_loops_with_bounds_in_fields_need_no_passes(monkeypatch):
    """Neither they nor their gradient: the loads of the bounds, and of what the inner loop reads, leave the loops before."""
    needs = {}
    original = emit.optimisation_need

    def optimisation_need(kernel, *rest):
        needs[kernel.name] = original(kernel, *rest)
        return needs[kernel.name]

    monkeypatch.setattr(emit, "optimisation_need", optimisation_need)
    sg.init(arch=sg.cpu)
    x, y = sg.field(sg.f32, 16, needs_grad=True), sg.field(sg.f32, 16, needs_grad=True)
    trips = sg.field(sg.i32, 2)

    @sg.kernel
    def nest():
        for i in x:
            a = x[i]
            for j in range(trips[0]):
                a = a * 0.9
                for _ in range(trips[1]):
                    a = sg.sin(a) + 0.1 * x[(i + j) % 16]
            y[i] = a

    trips[0], trips[1] = 3, 0
    x.fill(2.0)
    nest()
    np.testing.assert_allclose(y.to_numpy(), 2 * 0.9**3, rtol=1e-6)
    trips[0], trips[1] = 2, 1
    nest()
    y.grad.fill(1.0)
    nest.grad()
    once = np.sin(1.8) + 0.2
    np.testing.assert_allclose(y.to_numpy(), np.sin(0.9 * once) + 0.2, rtol=1e-6)
    # Each iteration of the outer loop adds a tenth of one neighbour, and what comes after it scales that.
    later = np.cos(0.9 * once) * 0.9
    np.testing.assert_allclose(x.grad.to_numpy(), later * np.cos(1.8) * 0.9 + 0.1 * later + 0.1, rtol=1e-5)
    assert {name: need for name, need in needs.items() if name.startswith("nest")} == {"nest": 0, "nest_grad": 0}
    sg.reset()
