"""Find and open devices by name. A device's module is imported when the device is first used, so a broken driver does not affect other
devices."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import cast

from spirograd.base import knobs
from spirograd.base.device import Device
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.python_limits import gc_paused

# Modules of devices, best first.
DEVICES = {
    "cuda": "spirograd.runtime.devices.gpu.cuda",
    "amdgpu": "spirograd.runtime.devices.gpu.hip",
    "vulkan": "spirograd.runtime.devices.vulkan",
    "wgpu": "spirograd.runtime.devices.wgpu",
    "metal": "spirograd.runtime.devices.metal",
    "cpu": "spirograd.runtime.devices.cpu",
    "interpreter": "spirograd.runtime.devices.interpreter",
}
# Devices whose memory other back ends use.
_MEMORY_OF = {"python": "interpreter"}


def open_device(arch: str, device: str = "", profile: str = "", **options: object) -> Device:
    """Open the device called ``arch`` (a key of `DEVICES`); ``device`` chooses among several by number or part of the name. ``profile``:
    the key of `PROFILES` to whose capabilities the device is restricted; it must describe devices of ``arch``.

    Options that every device takes: ``debug`` (bool), ``max_threads`` (int, 0: all), ``device_memory_bytes`` (int or None: unlimited).
    Raises SpirogradRuntimeError with the reason if there is no such device on this machine.
    """
    module = _import(arch)
    if profile:
        options["profile"] = profile
    if device and hasattr(module, "devices"):
        options["device"] = device
    elif device and device != knobs.get("SG_DEVICE"):  # The variable is set for a GPU, and may stay set.
        raise SpirogradRuntimeError(f"the option `device={device}` chooses among several devices, and `{arch}` has only one: omit it")
    return cast(Device, module.open(**options))


def available(arch: str) -> str | None:
    """Return None if ``arch`` can be opened on this machine, else the reason in one line. Never raises for a broken driver."""
    try:
        module = _import(arch)
        probe = getattr(module, "available", None)
        return None if probe is None else cast("str | None", probe())
    except Exception as error:
        return str(error) or type(error).__name__


def devices(arch: str) -> list[tuple[str, str]]:
    """Return the devices among which SG_DEVICE and the option `device` choose, with the reason why each cannot be used, or "".

    Returns an empty list if there is no choice.
    """
    if available(arch) is not None:
        return []
    listing = getattr(_import(arch), "devices", None)
    return [] if listing is None else cast("list[tuple[str, str]]", listing())


def _import(arch: str) -> ModuleType:
    name = DEVICES.get(_MEMORY_OF.get(arch, arch))
    if name is None:
        raise SpirogradRuntimeError(f"there is no device called {arch!r}; known are {', '.join(sorted(DEVICES))}")
    try:
        with gc_paused():
            return importlib.import_module(name)
    except Exception as error:  # A native library that does not load may raise any exception.
        raise SpirogradRuntimeError(f"the device {arch!r} cannot be used here: {type(error).__name__}: {error}") from error
