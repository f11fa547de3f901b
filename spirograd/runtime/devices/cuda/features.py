"""CUDA devices, and what they can do: the choice among them, attributes, the capability record."""

from __future__ import annotations

import ctypes
import re
from ctypes import byref, c_int, c_size_t
from dataclasses import dataclass, replace
from pathlib import Path

from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.llvmgen import ptx, toolchain
from spirograd.runtime.device import DeviceInfo
from spirograd.runtime.devices.choice import named_device
from spirograd.runtime.devices.cuda.driver import Driver

# CUdevice_attribute.
_MAX_GROUP, _MAX_GRID, _SHARED, _PROCESSORS, _INTEGRATED, _MAJOR, _MINOR, _POOLS = 1, 5, 8, 16, 18, 75, 76, 115
# Architectures that LLVM 22 generates code for. PTX for an older one runs on all newer devices.
_ARCHITECTURES = (70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
_VERSION_FILE = Path("/proc/driver/nvidia/version")


@dataclass(slots=True)
class Features:
    """A device as the rest of this package sees it. ``handle``: what the driver calls it. ``total``: bytes of its memory.
    ``processors``: how many multiprocessors it has."""

    ordinal: int
    handle: int
    info: DeviceInfo
    caps: Capabilities
    total: int
    processors: int


def count(driver: Driver) -> int:
    """How many devices there are."""
    number = c_int()
    driver.call("count the devices", driver.device_count, byref(number))
    return number.value


def name(driver: Driver, ordinal: int) -> str:
    """What the device is called."""
    text = ctypes.create_string_buffer(256)
    driver.call(f"read the name of device {ordinal}", driver.device_name, text, len(text), device_handle(driver, ordinal))
    return text.value.decode(errors="replace")


def choose(driver: Driver) -> int:
    """The number of the device to use: what SG_DEVICE names (number, or part of the name), else the first one that can be used.

    Raises SpirogradRuntimeError, listing what there is, if nothing fits.
    """
    names = [name(driver, ordinal) for ordinal in range(count(driver))]
    if not names:
        raise SpirogradRuntimeError("the CUDA driver is installed, but finds no device")
    wanted = named_device(names, "CUDA device")
    if wanted is not None:
        return wanted
    return next((i for i in range(len(names)) if not unusable(driver, i)), 0)


def unusable(driver: Driver, ordinal: int) -> str:
    """Why a device cannot be used, or ""."""
    major, minor = (_attribute(driver, ordinal, attribute) for attribute in (_MAJOR, _MINOR))
    if (major, minor) < (7, 0):
        return f"the CUDA device {name(driver, ordinal)} has compute capability {major}.{minor}; 7.0 is needed"
    if not _attribute(driver, ordinal, _POOLS):
        return f"the CUDA device {name(driver, ordinal)} cannot be used: its driver offers no memory pools"
    return ""


def query(driver: Driver, ordinal: int) -> Features:
    """Everything about a device. Raises SpirogradRuntimeError if it cannot be used, with the reason."""
    reason = unusable(driver, ordinal)
    if reason:
        raise SpirogradRuntimeError(reason)

    def attribute(number: int) -> int:
        return _attribute(driver, ordinal, number)

    total = c_size_t()
    driver.call(f"read the memory of device {ordinal}", driver.device_memory, byref(total), device_handle(driver, ordinal))
    major, minor = attribute(_MAJOR), attribute(_MINOR)
    architecture = max(sm for sm in _ARCHITECTURES if sm <= 10 * major + minor)
    version = _driver_version(driver)
    caps = replace(
        ptx.capabilities(f"sm_{architecture}"),
        shared_memory=attribute(_SHARED),
        max_group_size=attribute(_MAX_GROUP),
        max_groups=attribute(_MAX_GRID),
        max_allocation=total.value,
        toolchain=f"{toolchain.version()}, CUDA {driver.version}",
    )
    detail = (
        ("kind", "integrated" if attribute(_INTEGRATED) else "discrete"),
        ("compute capability", f"{major}.{minor}"),
        ("multiprocessors", str(attribute(_PROCESSORS))),
        ("memory", f"{total.value / 2**30:.1f} GiB"),
    )
    handle = device_handle(driver, ordinal)
    return Features(ordinal, handle, DeviceInfo("cuda", name(driver, ordinal), version, detail), caps, total.value, attribute(_PROCESSORS))


def _driver_version(driver: Driver) -> str:
    """Of the driver, where Linux tells it, and of the CUDA that it implements."""
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", _VERSION_FILE.read_text(errors="replace"))
    except OSError:
        found = None
    return f"{found.group()}, CUDA {driver.version}" if found else f"CUDA {driver.version}"


def device_handle(driver: Driver, ordinal: int) -> int:
    device = c_int()
    driver.call(f"open device {ordinal}", driver.device_get, byref(device), ordinal)
    return device.value


def _attribute(driver: Driver, ordinal: int, number: int) -> int:
    value = c_int()
    driver.check(
        driver.device_attribute(byref(value), number, device_handle(driver, ordinal)), f"read attribute {number} of device {ordinal}"
    )
    return value.value
