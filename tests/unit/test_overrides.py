"""`SG_OVERRIDE`: which file takes the place of what the compiler made. tests/grad/test_dumped_sizings.py runs kernels with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import spirograd as sg
from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.compiler import compile_kernel
from spirograd.dumps import Compilation, listeners, stage_path, with_overrides, write_stages
from spirograd.llvmgen import amdgpu, ptx
from spirograd.llvmgen.toolchain import host_caps
from validation.profiles import SPIRV


def compiled_for(caps: Capabilities) -> Compilation:
    """A kernel that writes twice 2.5 to each entry, with its stages."""
    found: list[Compilation] = []
    listeners.append(found.append)
    try:
        sg.init(arch=sg.interpreter, offline_cache=False)
        x = sg.field(sg.f32, shape=100)

        @sg.kernel
        def scale():
            for i in x:
                x[i] = x[i] * 2.5

        scale()
    finally:
        listeners.remove(found.append)
        sg.reset()
    (one,) = found
    options = replace(one.options, keep_stages=True)
    return replace(one, compiled=compile_kernel(one.kernel, caps, options), caps=caps, options=options)


def overridden(one: Compilation, folder: Path) -> CompiledKernel:
    return with_overrides(one.compiled, folder, one.caps, one.options)


def edit(one: Compilation, folder: Path, stage: str, old: str, new: str) -> None:
    path = stage_path(one.compiled, folder, stage)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_unchanged_files_change_nothing(tmp_path: Path) -> None:
    for caps in (ptx.capabilities("sm_90"), amdgpu.capabilities("gfx1100"), host_caps(), SPIRV["vulkan"]):
        one = compiled_for(caps)
        assert overridden(one, tmp_path / "empty").binaries == one.compiled.binaries
        write_stages(one.compiled, tmp_path)
        assert overridden(one, tmp_path).binaries == one.compiled.binaries


@pytest.mark.parametrize("caps", [ptx.capabilities("sm_90"), amdgpu.capabilities("gfx1100"), host_caps()], ids=["cuda", "amdgpu", "cpu"])
def test_edited_llvm_ir(caps: Capabilities, tmp_path: Path) -> None:
    """The files that the compiler wrote next to it do not hide it."""
    one = compiled_for(caps)
    write_stages(one.compiled, tmp_path)
    edit(one, tmp_path, "kernel.ll", "0x4004000000000000", "0x4008000000000000")
    assert overridden(one, tmp_path).binaries != one.compiled.binaries
    stage_path(one.compiled, tmp_path, "kernel.ll").write_text("define nonsense")
    with pytest.raises(SpirogradRuntimeError, match="LLVM rejects"):
        overridden(one, tmp_path)


def test_edited_ptx(tmp_path: Path) -> None:
    one = compiled_for(ptx.capabilities("sm_90"))
    write_stages(one.compiled, tmp_path)
    edit(one, tmp_path, "kernel.ptx", "0f40200000", "0f40400000")
    (changed,) = overridden(one, tmp_path).binaries
    assert b"0f40400000" in changed and changed == one.compiled.binaries[0].replace(b"0f40200000", b"0f40400000")


def test_another_code_object(tmp_path: Path) -> None:
    one = compiled_for(amdgpu.capabilities("gfx1100"))
    write_stages(one.compiled, tmp_path)
    path = stage_path(one.compiled, tmp_path, "kernel.hsaco")
    path.write_bytes(path.read_bytes() + b"more")
    assert overridden(one, tmp_path).binaries == (one.compiled.binaries[0] + b"more",)
