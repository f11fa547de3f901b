"""Processes that load drivers from another system: their command lines and environments."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.survey.drivers import DRIVERS
from spirograd.survey.loading import python

MANIFESTS = "usr/share/vulkan/icd.d"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def system(root: Path, library: str = "libvulkan_radeon.so", loader: bool = True) -> Path:
    """A system with RADV, its null device and a dynamic loader."""
    root.mkdir()
    for file in (f"{LIBRARIES}/libvulkan_radeon.so", f"{LIBRARIES}/libamdgpu_noop_drm_shim.so", f"{MANIFESTS}/radeon_icd.json"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    (root / MANIFESTS / "radeon_icd.json").write_text(json.dumps({"ICD": {"library_path": library, "api_version": "1.4.1"}}))
    if loader:
        (root / "lib64").mkdir()
        (root / "lib64/ld-linux-x86-64.so.2").touch()
    return root


@pytest.mark.parametrize(
    "library", ["libvulkan_radeon.so", f"/{LIBRARIES}/libvulkan_radeon.so", f"../../../../{LIBRARIES}/libvulkan_radeon.so"]
)
def test_another_system(tmp_path, library):
    root = system(tmp_path / "root", library)
    command, variables = python(DRIVERS["radv-gfx1201"], root, tmp_path)
    assert command[0] == f"{root}/lib64/ld-linux-x86-64.so.2" and command[-1] == sys.executable
    assert command[command.index("--preload") + 1] == f"{root}/{LIBRARIES}/libamdgpu_noop_drm_shim.so"
    assert f"{root}/{LIBRARIES}" in command[command.index("--library-path") + 1].split(":")
    assert variables["AMDGPU_GPU_ID"] == "gfx1201" and "LD_PRELOAD" not in variables
    icd = json.loads(Path(variables["VK_DRIVER_FILES"]).read_text())["ICD"]
    assert Path(icd["library_path"]).resolve() == root / LIBRARIES / "libvulkan_radeon.so" and icd["api_version"] == "1.4.1"


def test_what_another_system_lacks(tmp_path):
    with pytest.raises(SpirogradRuntimeError, match="there is no dynamic loader"):
        python(DRIVERS["radv-gfx1201"], system(tmp_path / "a", loader=False), tmp_path)
    with pytest.raises(SpirogradRuntimeError, match=r"names libvulkan_other\.so, which is not in"):
        python(DRIVERS["radv-gfx1201"], system(tmp_path / "b", "libvulkan_other.so"), tmp_path)
    with pytest.raises(SpirogradRuntimeError, match=r"the driver nvk-ga100 needs .*: apt install"):
        python(DRIVERS["nvk-ga100"], system(tmp_path / "c"), tmp_path)


def test_the_device_of_this_machine(tmp_path):
    command, variables = python(None, system(tmp_path / "root"), tmp_path)
    assert command == [sys.executable] and not [name for name in variables if name.startswith("AMDGPU")]
