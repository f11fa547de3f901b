"""The devices of a survey: the drivers of `drivers`, this machine's Vulkan device, and compilers that need no driver."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradValueError
from spirograd.base.profiles import PROFILES
from spirograd.base.wording import did_you_mean
from spirograd.llvmgen import amdgpu
from spirograd.survey.drivers import DRIVERS
from spirograd.survey.machine_code import OfflineDevice, amd_compiler, nvidia_compiler
from spirograd.survey.metal import metal_compiler
from spirograd.survey.profiles import profile_compiler
from spirograd.survey.results import Build
from spirograd.survey.vulkan import VulkanDevice

_LLVM, _PTXAS, _PROFILE = "llvm-", "ptxas-", "profile-"
# Architectures that are surveyed by default; all others can be named.
_AMD = {"gfx942": "AMD Instinct MI300X", "gfx1100": "AMD Radeon RX 7900 XTX", "gfx1201": "AMD Radeon RX 9070 XT"}
_NVIDIA = {"sm_80": "NVIDIA A100", "sm_90": "NVIDIA H100", "sm_120": "NVIDIA GeForce RTX 5090"}


class SurveyCompiler(Protocol):
    """The compiler of a device. ``driver``: its name and version; ``caps``: what the device can do."""

    @property
    def driver(self) -> str: ...

    @property
    def caps(self) -> Capabilities: ...

    def build(self, kernel: CompiledKernel, seconds: float) -> list[Build]:
        """Return what the compiler makes of each task of ``kernel``, which took ``seconds`` to compile so far."""


class SurveyDevice(Protocol):
    """A device whose compiler may be on this machine. ``name``: how users select it; ``title``: the device, as users know it."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    def open(self) -> AbstractContextManager[SurveyCompiler]:
        """Return the compiler. Raises SpirogradRuntimeError with what is missing on this machine."""


def all_devices(root: Path = Path("/")) -> dict[str, SurveyDevice]:
    """Return the devices that are surveyed by default, by name. ``root``: the folder of the system that has the drivers."""
    devices: list[SurveyDevice] = [VulkanDevice("vulkan", "the Vulkan device of this machine", None, root)]
    devices += [VulkanDevice(driver.name, driver.device, driver, root) for driver in DRIVERS.values()]
    devices += [OfflineDevice(_LLVM + name, title, amd_compiler, name) for name, title in _AMD.items()]
    devices += [OfflineDevice(_PTXAS + name, title, nvidia_compiler, name) for name, title in _NVIDIA.items()]
    devices.append(OfflineDevice("metal", "Apple GPUs, through Metal", metal_compiler, "m1"))
    devices += [OfflineDevice(_PROFILE + name, profile.title, profile_compiler, name) for name, profile in PROFILES.items()]
    return {device.name: device for device in devices}


def chosen_devices(names: Sequence[str], root: Path = Path("/")) -> list[SurveyDevice]:
    """Return the devices with these names, which may be patterns such as ``radv-*``; all without names.

    Raises SpirogradValueError for a name that fits no device.
    """
    devices = all_devices(root)
    chosen: dict[str, SurveyDevice] = {} if names else dict(devices)
    for name in names:
        found = {key: devices[key] for key in fnmatch.filter(devices, name)} or _by_architecture(name)
        if not found:
            known = f"there are {', '.join(devices)}; {_LLVM}gfx... and {_PTXAS}sm_... take other architectures, too"
            raise SpirogradValueError(f"there is no device `{name}`; {did_you_mean(name, devices) or known}")
        chosen.update(found)
    return list(chosen.values())


def _by_architecture(name: str) -> dict[str, SurveyDevice]:
    """Return the device of a name with an architecture, such as llvm-gfx1030 or ptxas-sm_86."""
    if (model := name.removeprefix(_LLVM)) in amdgpu.ARCHITECTURES and name.startswith(_LLVM):
        return {name: OfflineDevice(name, f"AMD {model}", amd_compiler, model)}
    if re.fullmatch(rf"{_PTXAS}sm_\d{{2,3}}", name):
        model = name.removeprefix(_PTXAS)
        return {name: OfflineDevice(name, f"NVIDIA {model}", nvidia_compiler, model)}
    return {}
