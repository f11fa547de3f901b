"""What the compilers without drivers tell: LLVM for AMD's GPUs, ptxas, SPIRV-Cross."""

from __future__ import annotations

import shutil

import needs
import pytest
from unit.survey.programs import sources

from spirograd.base.records import replace
from spirograd.compiler import compile_kernel
from spirograd.survey.machine_code import OfflineDevice, amd_compiler, nvidia_compiler
from spirograd.survey.metal import metal_compiler
from spirograd.survey.results import COMPILES, FAILED

# The second loop keeps many values alive at a time: more than registers of one invocation.
SPILLS = """\
import spirograd as sg

sg.init()
x = sg.field(sg.f64, shape=(160, 64))
@sg.kernel
def keep():
    for i in range(64):
        values = sg.Vector([x[k, i] for k in range(160)], dt=sg.f64)
        for _ in range(3):
            total = 0.0
            for k in sg.static(range(160)):
                total += sg.sin(values[k])
            for k in sg.static(range(160)):
                values[k] = values[k] * total
        for k in sg.static(range(160)):
            x[k, i] = values[k]
keep()
"""


def builds(device, folder, number=0, program=None):
    source = sources(folder, program)[number] if program else sources(folder)[number]
    with device.open() as compiler:
        compiled = compile_kernel(source.kernel, compiler.caps, replace(source.options, keep_stages=True))
        return compiled, compiler.build(compiled, 0.5)


@pytest.mark.parametrize("architecture", ["gfx906", "gfx942", "gfx1030", "gfx1100", "gfx1201"])
def test_amd(architecture, tmp_path):
    compiled, found = builds(OfflineDevice("", "", amd_compiler, architecture), tmp_path, 2)
    assert [task.name for task in compiled.tasks] == ["double_0", "double_1"]
    for build in found:
        assert build.outcome == COMPILES and build.usage.spills == 0
        assert 0 < build.usage.registers < 40 and 10 < build.usage.instructions < 400
        assert build.usage.occupancy.endswith(" waves/SIMD") and int(build.usage.occupancy.split()[0]) in (8, 10, 16)
        assert build.statistics["vgpr_count"] == build.usage.registers
        assert sum(line.startswith("\ts_endpgm") for line in build.code.splitlines()) >= 1
    assert [build.seconds for build in found] == [0.5, 0.0]


def test_amd_spills(tmp_path):
    _, (build,) = builds(OfflineDevice("", "", amd_compiler, "gfx1030"), tmp_path, program=SPILLS)
    assert build.usage.registers == 256 and build.usage.spills > 50
    assert build.statistics["vgpr_spill_count"] + build.statistics["sgpr_spill_count"] == build.usage.spills


def test_nvidia(tmp_path):
    needs.need("ptxas")
    compiled, found = builds(OfflineDevice("", "", nvidia_compiler, "sm_90"), tmp_path, 2)
    assert len(compiled.tasks) == len(found) == 2
    for build in found:
        assert build.outcome == COMPILES and 0 < build.usage.registers < 64 and build.usage.spills == 0 and build.seconds > 0
        if shutil.which("nvdisasm"):
            assert build.usage.instructions == sum(line.rstrip().endswith(";") for line in build.code.splitlines())
            assert "DMUL" in build.code or "DFMA" in build.code or "DADD" in build.code


def test_nvidia_spills_and_errors(tmp_path):
    needs.need("ptxas")
    compiled, (build,) = builds(OfflineDevice("", "", nvidia_compiler, "sm_90"), tmp_path, program=SPILLS)
    assert build.usage.registers == 255 and build.usage.spills == build.statistics["bytes of spill stores"] // 4 > 50
    with OfflineDevice("", "", nvidia_compiler, "sm_90").open() as compiler:
        (build,) = compiler.build(replace(compiled, binaries=(b"nonsense",)), 0.0)
    assert build.outcome == FAILED and "fatal" in build.reason


def test_metal(tmp_path):
    needs.need("spirv-cross")
    _, (build,) = builds(OfflineDevice("metal", "", metal_compiler, "m1"), tmp_path)
    assert build.outcome == COMPILES and "kernel void" in build.code and build.usage.registers is None


def test_programs_that_are_missing_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for device, name in (
        (OfflineDevice("", "", nvidia_compiler, "sm_90"), "`ptxas`"),
        (OfflineDevice("metal", "", metal_compiler, "m1"), "`spirv-cross`"),
    ):
        with pytest.raises(RuntimeError, match=f"there is no program {name} on the path"):
            device.open()


def test_a_program_that_cannot_be_run_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "/nowhere")
    with pytest.raises(RuntimeError, match="/nowhere cannot be run"):
        OfflineDevice("", "", nvidia_compiler, "sm_90").open()
