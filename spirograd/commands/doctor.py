"""Report what this machine offers: back ends, devices, drivers, features, helper programs and how to get them, versions, knobs."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import sys

import spirograd as sg
from spirograd.base.caps import Capabilities
from spirograd.base.device import DeviceInfo
from spirograd.base.errors import SpirogradError
from spirograd.base.knobs import KNOBS
from spirograd.base.records import dataclass, fields
from spirograd.commands.table import table
from spirograd.runtime import loader
from spirograd.runtime.offline_cache import Cache, default_folder

HELP = "report back ends, devices, features, missing tools"

_PACKAGES = ("numpy", "llvmlite", "vulkan", "wgpu", "torch", "jax", "rich", "matplotlib", "pytest")
_VECTOR_FEATURES = ("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512fp16", "neon", "fullfp16", "sve", "sve2", "v")
_SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
_SDK = "the Vulkan SDK, https://vulkan.lunarg.com"
# Installation instructions, by what is missing and operating system.
_HOW_TO_GET = {
    "cuda": dict.fromkeys(("linux", "windows"), "NVIDIA's driver for the graphics card, with CUDA 12.0 or newer; no toolkit is needed"),
    "amdgpu": {
        "linux": "ROCm's runtime (libamdhip64): https://rocm.docs.amd.com; no compiler of ROCm's is needed",
        "windows": "AMD's driver for the graphics card, or the HIP SDK",
    },
    "vulkan": {
        "linux": "apt install libvulkan1 mesa-vulkan-drivers (AMD, Intel, and lavapipe: Vulkan on the CPU); NVIDIA: the vendor's driver",
        "macos": f"brew install molten-vk vulkan-loader, or {_SDK}",
        "windows": "the driver of the graphics card brings Vulkan",
    },
    "wgpu": {
        "linux": "pip install wgpu (Python 3.11 or newer), and a driver for Vulkan",
        **dict.fromkeys(("macos", "windows"), "pip install wgpu (Python 3.11 or newer); the system brings the rest"),
    },
    "metal": {"macos": "pip install wgpu (Python 3.11 or newer); the system brings the rest"},
    "cpu": dict.fromkeys(("linux", "macos", "windows"), "pip install --upgrade llvmlite"),
    "spirv-val": {"linux": "apt install spirv-tools", "macos": "brew install spirv-tools", "windows": _SDK},
    "validation layer": {
        "linux": "apt install vulkan-validationlayers",
        "macos": f"brew install vulkan-validationlayers, or {_SDK}",
        "windows": _SDK,
    },
    "demo": dict.fromkeys(("linux", "macos", "windows"), 'pip install "spirograd[demo]"'),
}


@dataclass(frozen=True)
class BackEnd:
    """The state of a back end. ``reason``: why it cannot be used, or None."""

    arch: str
    reason: str | None
    info: DeviceInfo | None = None
    caps: Capabilities | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(args: argparse.Namespace) -> int:
    """Print the report. Exit status 0, or 1 if not even the CPU back end works."""
    back_ends = [probe(arch) for arch in loader.DEVICES]
    print("Versions\n" + table(("what", "version"), _versions()))
    print("\nBack ends\n" + table(("arch", "device", "driver", "more"), [_back_end_row(b) for b in back_ends]))
    for arch in loader.DEVICES:
        rows = [(str(i), name, reason or "usable") for i, (name, reason) in enumerate(loader.devices(arch))]
        if rows:
            print(f"\nDevices of {arch}, chosen by `init(device=...)` or SG_DEVICE\n" + table(("number", "name", "state"), rows))
    usable = [b for b in back_ends if b.caps is not None and b.arch != "interpreter"]
    if usable:
        print("\nFeatures\n" + table(("feature", *(b.arch for b in usable)), _feature_rows(usable)))
    print("\nHelpers\n" + table(("what", "state", "for", "how to get it"), _helper_rows(back_ends)))
    stats = Cache(default_folder()).stats()
    print(f"\nOffline cache\n  {default_folder()}: {stats.files} kernels, {stats.nbytes / 2**20:.1f} MiB")
    in_force = [(name, os.environ[name], KNOBS[name].doc) for name in KNOBS if name in os.environ]
    knobs = table(("variable", "set to", "meaning"), in_force) if in_force else "  none (`spirograd knobs` lists all)"
    print(f"\nKnobs in force\n{knobs}")
    return 0 if any(b.arch == "cpu" and b.reason is None for b in back_ends) else 1


def probe(arch: str) -> BackEnd:
    """Open the device of a back end, record what it is, close it. Never raises for a driver that is missing or broken."""
    reason = loader.available(arch)
    if reason is not None:
        return BackEnd(arch, reason)
    try:
        device = loader.open_device(arch)
    except SpirogradError as error:
        return BackEnd(arch, str(error))
    try:
        return BackEnd(arch, None, device.info, device.caps)
    finally:
        device.close()


def _versions() -> list[tuple[str, str]]:
    rows = [
        ("spirograd", sg.__version__),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} processors"),
    ]
    for name in _PACKAGES:
        try:
            rows.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            rows.append((name, "-"))
    return rows


def _back_end_row(back_end: BackEnd) -> tuple[str, str, str, str]:
    if back_end.info is None:
        return (back_end.arch, "-", "-", f"not usable: {back_end.reason}")
    info = back_end.info
    return (back_end.arch, info.name, info.driver or "-", ", ".join(f"{key} {_detail(key, value)}" for key, value in info.detail))


def _detail(key: str, value: str) -> str:
    """Return a detail as text: of the hundred features of a processor, those that matter for vectorisation."""
    if key != "features":
        return value
    return " ".join(name for name in _VECTOR_FEATURES if f"+{name}" in value.split(",")) or "-"


def _feature_rows(usable: list[BackEnd]) -> list[tuple[str, ...]]:
    names = [f.name for f in fields(Capabilities) if f.name != "cpu_features"]
    return [(name, *(_feature(getattr(b.caps, name)) for b in usable)) for name in names]


def _feature(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "-"


def _validation_layer(back_ends: list[BackEnd]) -> str:
    """Return the state of the Vulkan validation layer, found by opening a device with it."""
    if all(b.arch != "vulkan" or b.reason is not None for b in back_ends):
        return "unknown: no Vulkan"
    try:
        loader.open_device("vulkan", debug=True).close()
    except SpirogradError:
        return "missing"
    return "present"


def _helper_rows(back_ends: list[BackEnd]) -> list[tuple[str, str, str, str]]:
    system = _SYSTEMS.get(sys.platform, "linux")
    missing = [b.arch for b in back_ends if b.reason and system in _HOW_TO_GET.get(b.arch, {})]
    rows = [(arch, "missing", "this back end", _HOW_TO_GET[arch][system]) for arch in missing]
    states = {
        "spirv-val": ("present" if shutil.which("spirv-val") else "missing", "SG_VALIDATE=1, tests"),
        "validation layer": (_validation_layer(back_ends), "debug=True, tests"),
        "demo": ("present" if all(_has(name) for name in ("rich", "matplotlib")) else "missing", "spirograd demo: progress bar, picture"),
    }
    for name, (state, purpose) in states.items():
        rows.append((name, state, purpose, "-" if state == "present" else _HOW_TO_GET[name][system]))
    return rows


def _has(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
