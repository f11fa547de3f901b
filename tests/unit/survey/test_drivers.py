"""Which files make a driver loadable, and which environment variables load it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.survey.drivers import DRIVERS, environment, missing

MANIFESTS = "usr/share/vulkan/icd.d"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def system(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def test_a_driver_with_a_manifest(tmp_path: Path) -> None:
    root = system(tmp_path, f"{MANIFESTS}/lvp_icd.x86_64.json")
    manifest = f"/{MANIFESTS}/lvp_icd.x86_64.json"
    assert environment(DRIVERS["lavapipe"], root / "tmp", root) == {"VK_DRIVER_FILES": manifest, "VK_ICD_FILENAMES": manifest}


def test_a_driver_without_a_manifest(tmp_path: Path) -> None:
    root = system(tmp_path, "usr/lib/chromium/libvk_swiftshader.so")
    variables = environment(DRIVERS["swiftshader"], root / "tmp", root)
    assert variables["VK_DRIVER_FILES"] == "/tmp/swiftshader.json"
    assert json.loads((root / "tmp/swiftshader.json").read_text())["ICD"]["library_path"] == "/usr/lib/chromium/libvk_swiftshader.so"


def test_a_null_device(tmp_path: Path) -> None:
    root = system(tmp_path, f"{MANIFESTS}/radeon_icd.json", f"{LIBRARIES}/libamdgpu_noop_drm_shim.so")
    variables = environment(DRIVERS["radv-gfx1100"], root, root)
    assert variables["LD_PRELOAD"] == f"/{LIBRARIES}/libamdgpu_noop_drm_shim.so"
    assert variables["AMDGPU_GPU_ID"] == "navi31" and "RADV_FORCE_FAMILY" not in variables


def test_a_null_device_that_is_part_of_the_driver(tmp_path: Path) -> None:
    root = system(tmp_path, f"{MANIFESTS}/radeon_icd.x86_64.json")
    variables = environment(DRIVERS["radv-gfx1100"], root, root)
    assert variables["RADV_FORCE_FAMILY"] == "navi31" and "LD_PRELOAD" not in variables


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    nvk = DRIVERS["nvk-ga100"]
    assert missing(nvk, tmp_path) == "the driver nvk-ga100 needs nouveau_icd*.json, which is not installed: apt install mesa-vulkan-drivers"
    system(tmp_path, f"{MANIFESTS}/nouveau_icd.json")
    with pytest.raises(
        SpirogradRuntimeError, match=r"needs libnouveau_noop_drm_shim\.so, which is not installed: apt install mesa-drm-shim"
    ):
        environment(nvk, tmp_path, tmp_path)
    system(tmp_path, f"{LIBRARIES}/libnouveau_noop_drm_shim.so")
    assert missing(nvk, tmp_path) == ""


def test_names_are_those_of_the_table() -> None:
    assert all(name == driver.name for name, driver in DRIVERS.items())
    assert all(driver.executes != bool(driver.shim) for driver in DRIVERS.values())
