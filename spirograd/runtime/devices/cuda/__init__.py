"""The CUDA device. `open` makes one; the parts are: driver, features, memory, transfer, fetching, modules, call, device."""

from __future__ import annotations

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.devices.cuda import features
from spirograd.runtime.devices.cuda.device import CudaDevice
from spirograd.runtime.devices.cuda.driver import take_driver

__all__ = ["CudaDevice", "available", "devices", "open"]


def open(debug: bool = False, max_threads: int = 0, device_memory_bytes: int | None = None) -> CudaDevice:
    """Open the CUDA device that SG_DEVICE names, or the first one.

    ``debug`` changes nothing here: checks are compiled into kernels. ``max_threads`` is for CPU devices and ignored.
    Raises SpirogradRuntimeError if there is no driver, or no device that fits.
    """
    driver = take_driver()
    return CudaDevice(driver, features.query(driver, features.choose(driver)), device_memory_bytes)


def available() -> str | None:
    """None if a CUDA device can be opened, else the reason why not."""
    try:
        driver = take_driver()
        return features.unusable(driver, features.choose(driver)) or None
    except SpirogradRuntimeError as error:
        return str(error)


def devices() -> list[tuple[str, str]]:
    """Every CUDA device in the order of the numbers of SG_DEVICE: its name, and the reason why it cannot be used ("" if it can)."""
    driver = take_driver()
    return [(features.name(driver, i), features.unusable(driver, i)) for i in range(features.count(driver))]
