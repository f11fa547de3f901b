"""The Metal device: wgpu on Metal, or, with SG_WGPU_BACKEND=vulkan, on Vulkan through MoltenVK."""

from __future__ import annotations

from spirograd.runtime.devices import wgpu
from spirograd.runtime.devices.wgpu.device import WgpuDevice


def open(
    debug: bool = False, max_threads: int = 0, device_memory_bytes: int | None = None, device: str = "", profile: str = ""
) -> WgpuDevice:
    """Open a device for Metal, see `wgpu.open`."""
    return wgpu.open(debug, max_threads, device_memory_bytes, "metal", device, profile)


def available() -> str | None:
    """Return None if Metal can be used here, else the reason why not."""
    return wgpu.available("metal")


def devices() -> list[tuple[str, str]]:
    """Return the adapters, see `wgpu.devices`."""
    return wgpu.devices("metal")
