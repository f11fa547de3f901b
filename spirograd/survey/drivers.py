"""The Vulkan drivers that run on a machine without their hardware, and the environment variables that make a process load one of them.

There are two kinds. A driver that executes runs kernels on the CPU: its results are real. A driver that only compiles is the real driver of
a GPU in front of a null device, which reports the real capabilities of the chip: pipelines become machine code, a submission does nothing,
and memory keeps what it held. The null device is a library of Mesa that answers the calls to the kernel (a DRM shim), or, for AMD before
Mesa 26, a part of the driver.
"""

from __future__ import annotations

import json
from pathlib import Path

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import dataclass

_MANIFESTS = "usr/share/vulkan/icd.d"
_SHIMS = "usr/lib*/*/lib{}_noop_drm_shim.so"
_MESA, _SHIM_PACKAGE = "mesa-vulkan-drivers", "mesa-drm-shim"


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver, with one of the devices that it compiles for.

    ``name``: how users select it. ``device``: the device, as users know it. ``executes``: whether kernels run (see above).
    ``manifest``: a pattern of file names in the folder of Vulkan's driver manifests, or ``library``: patterns of the driver itself, which
    comes without a manifest. ``package``: the Debian package that has it.
    ``shim``: the name of the null device, "" for none. ``variables``: select the chip.
    ``built_in``: the same for the null device in the driver, which is used if there is no shim; empty if the driver has none.
    """

    name: str
    device: str
    executes: bool
    package: str = _MESA
    manifest: str = ""
    library: tuple[str, ...] = ()
    shim: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    built_in: tuple[tuple[str, str], ...] = ()


def _radv(name: str, device: str, chip: str) -> Driver:
    selected, built_in = (("AMDGPU_GPU_ID", chip),), (("RADV_FORCE_FAMILY", chip),)
    return Driver(f"radv-{name}", device, False, manifest="radeon_icd*.json", shim="amdgpu", variables=selected, built_in=built_in)


def _nvk(name: str, device: str, chipset: str) -> Driver:
    variables = (("NVK_I_WANT_A_BROKEN_VULKAN_DRIVER", "1"), ("NOUVEAU_CHIPSET", chipset))
    return Driver(f"nvk-{name}", device, False, manifest="nouveau_icd*.json", shim="nouveau", variables=variables)


_SWIFTSHADER = ("usr/lib*/chromium*/libvk_swiftshader.so", "opt/google/chrome*/libvk_swiftshader.so")
_TABLE = (
    Driver("swiftshader", "SwiftShader on the CPU", True, package="chromium", library=_SWIFTSHADER),
    Driver("lavapipe", "Mesa's lavapipe on the CPU", True, manifest="lvp_icd*.json"),
    _radv("gfx1201", "AMD Radeon RX 9070 XT (RDNA 4)", "gfx1201"),
    _radv("gfx1100", "AMD Radeon RX 7900 XTX (RDNA 3)", "navi31"),
    _radv("gfx1030", "AMD Radeon RX 6800 (RDNA 2)", "navi21"),
    _radv("gfx900", "AMD Radeon RX Vega (GCN 5)", "vega10"),
    _radv("polaris10", "AMD Radeon RX 580 (GCN 4)", "polaris10"),
    _nvk("ga100", "NVIDIA A100 (Ampere)", "170"),
    Driver(
        "turnip-a750", "Qualcomm Adreno 750", False, manifest="freedreno_icd*.json", shim="freedreno", variables=(("FD_GPU_ID", "750"),)
    ),
    Driver("honeykrisp-m1", "Apple M1, under Linux", False, manifest="asahi_icd*.json", shim="asahi"),
)
DRIVERS = {driver.name: driver for driver in _TABLE}


def environment(driver: Driver, folder: Path, root: Path = Path("/")) -> dict[str, str]:
    """Return the environment variables by which a new process loads ``driver``, and no other Vulkan driver.

    ``folder``: where the manifest of a driver without one is written. ``root``: the folder in which the system is installed, such as a
    chroot; the paths in the variables are as a process in it sees them. Raises SpirogradRuntimeError with the file that is missing and
    the package that has it.
    """
    file, shim = files(driver, root)
    manifest = _inside(_manifest(driver, file, folder), root) if driver.library else file
    variables = {"VK_DRIVER_FILES": manifest, "VK_ICD_FILENAMES": manifest}  # The second is the name in loaders before 1.3.207.
    if shim:
        return {**variables, **dict(driver.variables), "LD_PRELOAD": shim}
    return {**variables, **dict(driver.built_in if driver.shim else driver.variables)}


def missing(driver: Driver, root: Path = Path("/")) -> str:
    """Return why ``driver`` cannot be loaded from the system in ``root``, "" if it can."""
    try:
        files(driver, root)
    except SpirogradRuntimeError as error:
        return str(error)
    return ""


def files(driver: Driver, root: Path) -> tuple[str, str]:
    """Return the manifest, or the library of a driver without one, and the null device, "" if the driver needs none or has its own."""
    patterns = driver.library or (f"{_MANIFESTS}/{driver.manifest}",)
    file = _first(patterns, root)
    if not file:
        raise _not_installed(driver, patterns[0], driver.package)
    pattern = _SHIMS.format(driver.shim)
    shim = _first((pattern,), root) if driver.shim else ""
    if driver.shim and not shim and not driver.built_in:
        raise _not_installed(driver, pattern, _SHIM_PACKAGE)
    return file, shim


def _first(patterns: tuple[str, ...], root: Path) -> str:
    """Return the first file that matches one of ``patterns`` under ``root``, "" if none does."""
    return next((_inside(path, root) for pattern in patterns for path in sorted(root.glob(pattern))), "")


def _not_installed(driver: Driver, pattern: str, package: str) -> SpirogradRuntimeError:
    return SpirogradRuntimeError(f"the driver {driver.name} needs {Path(pattern).name}, which is not installed: apt install {package}")


def _manifest(driver: Driver, library: str, folder: Path) -> Path:
    """Write a manifest that names ``library``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.absolute() / f"{driver.name}.json"
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": library, "api_version": "1.3.0"}}))
    return path


def _inside(path: Path, root: Path) -> str:
    """Return ``path`` as a process sees it whose root folder is ``root``."""
    return str(Path("/") / path.relative_to(root))
