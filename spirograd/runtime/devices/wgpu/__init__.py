"""The wgpu device. `open` opens one. Modules: api, features, address_space, stream, pipelines, device."""

from __future__ import annotations

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.devices.wgpu.device import WgpuDevice
from spirograd.runtime.devices.wgpu.features import adapter_name, adapters, backend_name, choose, query

__all__ = ["WgpuDevice", "available", "devices", "open"]


def open(
    debug: bool = False,
    max_threads: int = 0,
    device_memory_bytes: int | None = None,
    arch: str = "wgpu",
    device: str = "",
    profile: str = "",
) -> WgpuDevice:
    """Open the adapter that SG_DEVICE or ``device`` names, or the most capable one.

    The backend is the one that SG_WGPU_BACKEND names, or the platform's default. ``debug``: use wgpu's checks of accesses and loops.
    ``max_threads`` is for CPU devices and ignored. ``arch``: "wgpu" or "metal". ``profile``: see `loader.open_device`. Raises
    SpirogradRuntimeError if no adapter fits.
    """
    return WgpuDevice(query(choose(arch, device), arch, profile), debug, device_memory_bytes)


def available(arch: str = "wgpu") -> str | None:
    """Return None if an adapter can be opened, else the reason why not."""
    try:
        choose(arch)
    except SpirogradRuntimeError as error:
        return str(error)
    return None


def devices(arch: str = "wgpu") -> list[tuple[str, str]]:
    """Return every adapter in the order of the numbers of SG_DEVICE, with "" because each can be used."""
    return [(adapter_name(adapter), "") for adapter in adapters(backend_name(arch))]
