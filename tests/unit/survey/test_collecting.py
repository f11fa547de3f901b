"""What a program compiles is collected as sources for any device."""

from __future__ import annotations

import gc

import pytest
from unit.survey.programs import sources

from spirograd import dumps
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.compiler import compile_kernel
from spirograd.derivatives import specialized
from validation.profiles import AMDGPU, PTX, SPIRV, VULKAN


def test_kernels_and_derivatives_compile_for_any_device(tmp_path):
    found = sources(tmp_path)
    gc.collect()  # The fields of the program are gone: what differentiating asks about them was kept.
    assert [source.kernel.name for source in found] == ["run", "run_grad", "double"]
    for caps in (VULKAN, PTX["cuda-sm_90"], AMDGPU["amdgpu-gfx1100"]):
        names = [kernel.name for source in found for kernel in source.kernels(caps)]
        assert names == ["run", "run_grad_sizes", "run_grad", "double"]
        assert all(compile_kernel(kernel, caps, source.options).binaries for source in found for kernel in source.kernels(caps))
    with pytest.raises(SpirogradUnsupportedError, match="64-bit floats"):
        compile_kernel(found[2].kernel, SPIRV["vulkan-bare"], found[2].options)


def test_kernels_of_the_offline_cache_are_collected(tmp_path, monkeypatch):
    monkeypatch.setenv("SG_CACHE_DIR", str(tmp_path / "cache"))
    first = [source.kernel.name for source in sources(tmp_path)]
    assert [source.kernel.name for source in sources(tmp_path)] == first


def test_nothing_observes_afterwards(tmp_path):
    sources(tmp_path, "import spirograd as sg\n")
    assert not dumps.observers and not specialized.observers
