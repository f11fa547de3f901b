"""The Vulkan device. `open` opens one. Modules: instance, features, allocator, stream, transfer, pipelines, device."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from spirograd.base import knobs
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.devices.vulkan.api import text
from spirograd.runtime.devices.vulkan.device import VulkanDevice
from spirograd.runtime.devices.vulkan.features import query
from spirograd.runtime.devices.vulkan.instance import LAYER_HINT, basic_properties, choose, has_validation_layer, take_instance
from spirograd.runtime.offline_cache import default_folder

logger = logging.getLogger("spirograd")

__all__ = ["VulkanDevice", "available", "devices", "open"]


def open(
    debug: bool = False,
    max_threads: int = 0,
    device_memory_bytes: int | None = None,
    mappable: bool | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
    device: str = "",
    profile: str = "",
) -> VulkanDevice:
    """Open the Vulkan device that SG_DEVICE or ``device`` names, or the most capable one.

    ``debug``: use the validation layer if it is installed, else warn; SG_VALIDATION=1 requires it. ``max_threads`` is for CPU devices and
    ignored. ``mappable`` False: never map device memory. ``cache_folder``: the folder of the pipeline cache; by default the folder of the
    offline cache, unless that is off. ``profile``: see `loader.open_device`. Raises SpirogradRuntimeError if no device fits, or if the
    layer is required and not installed.
    """
    folder = Path(cache_folder) if cache_folder is not None else default_folder() if knobs.flag("SG_OFFLINE_CACHE") else None
    return VulkanDevice(_validation(debug), device_memory_bytes, mappable, folder, device, profile)


def _validation(debug: bool) -> bool:
    if knobs.flag("SG_VALIDATION") or not debug:
        return knobs.flag("SG_VALIDATION")
    if not has_validation_layer():
        logger.warning("debug mode goes without the Vulkan validation layer, which is not installed (%s)", LAYER_HINT)
        return False
    return True


def available() -> str | None:
    """Return None if a Vulkan device can be opened, else the reason why not."""
    try:
        instance = take_instance(validation=False)
    except SpirogradRuntimeError as error:
        return str(error)
    try:
        query(choose(instance), instance)
    except SpirogradRuntimeError as error:
        instance.close(reuse=False)
        return str(error)
    instance.close()
    return None


def devices() -> list[tuple[str, str]]:
    """Return every Vulkan device in the order of the numbers of SG_DEVICE: its name, and the reason why it cannot be used, or ""."""
    instance = take_instance(validation=False)
    described = []
    try:
        for physical in instance.physical_devices():
            try:
                query(physical, instance)
                reason = ""
            except SpirogradRuntimeError as error:
                reason = str(error)
            described.append((text(basic_properties(physical).deviceName), reason))
    finally:
        instance.close()
    return described
