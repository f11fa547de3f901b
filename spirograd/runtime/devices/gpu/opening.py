"""The choice of a GPU of a driver, and opening it."""

from __future__ import annotations

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.devices.choice import named_device
from spirograd.runtime.devices.gpu.device import GpuDevice
from spirograd.runtime.devices.gpu.driver import Driver


def choose(driver: Driver, requested: str = "") -> int:
    """Return the number of the device that SG_DEVICE or ``requested`` names (number, or part of the name), else the first usable one.

    Raises SpirogradRuntimeError with a list of the devices if no device fits.
    """
    names = [driver.name(ordinal) for ordinal in range(driver.count())]
    if not names:
        raise SpirogradRuntimeError(f"the {driver.api} driver is installed, but finds no device")
    wanted = named_device(names, f"{driver.api} device", requested)
    if wanted is not None:
        return wanted
    return next((i for i in range(len(names)) if not driver.unusable(i)), 0)


def open_gpu(kind: type[Driver], device_memory_bytes: int | None, requested: str) -> GpuDevice:
    """Open the device that SG_DEVICE or ``requested`` names, or the first one that can be used.

    Raises SpirogradRuntimeError if there is no driver, or no device that fits.
    """
    driver = kind.take()
    ordinal = choose(driver, requested)
    reason = driver.unusable(ordinal)
    if reason:
        raise SpirogradRuntimeError(reason)
    return GpuDevice(driver, driver.query(ordinal), device_memory_bytes)


def available(kind: type[Driver]) -> str | None:
    """Return None if a device can be opened, else the reason why not."""
    try:
        driver = kind.take()
        return driver.unusable(choose(driver)) or None
    except SpirogradRuntimeError as error:
        return str(error)


def devices(kind: type[Driver]) -> list[tuple[str, str]]:
    """Return every device in the order of the numbers of SG_DEVICE: its name, and the reason why it cannot be used, or ""."""
    driver = kind.take()
    return [(driver.name(i), driver.unusable(i)) for i in range(driver.count())]
