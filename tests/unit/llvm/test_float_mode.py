"""The functions that set the mode of subnormal floats, for CPUs with other instruction sets."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.base.records import replace
from spirograd.llvmgen import float_mode
from spirograd.llvmgen.module import ModuleText
from validation.profiles import VULKAN


def caps(features: str) -> Capabilities:
    return replace(VULKAN, cpu_features=features)


@pytest.mark.parametrize(
    ("triple", "feature", "instruction"),
    [("x86_64-linux", "+sse2", "LDMXCSR"), ("aarch64-linux", "+fp-armv8", "MSR")],
)
def test_the_mode_is_set_and_restored(triple: str, feature: str, instruction: str) -> None:
    module = ModuleText(caps(feature), CompileOptions())
    assert float_mode.supported(module.caps)
    text = float_mode.flushing(module, "k", "", "ptr noalias %block, i64 %begin")
    module.functions += ["define internal void @k.flushed(ptr %block, i64 %begin) noinline {\n  ret void\n}\n", text]
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=2)
    parsed = llvm.parse_assembly(module.text())
    parsed.triple = triple
    parsed.verify()
    assembly = machine.emit_assembly(parsed).upper()
    before, _, after = assembly.rpartition("K:")[2].partition("K.FLUSHED")
    assert instruction in before and instruction in after, assembly


def test_other_machines_have_none() -> None:
    assert not float_mode.supported(caps("+v"))
