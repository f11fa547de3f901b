"""What a driver tells about its machine code: statistics and listings, from VK_KHR_pipeline_executable_properties."""

from __future__ import annotations

import time
from typing import Union

import vulkan as vk

from spirograd.base.artifact import CompiledKernel, Stage
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import dataclass
from spirograd.runtime.devices.vulkan.api import NULL, check, device_extensions, device_functions, ffi, lib, struct, text
from spirograd.runtime.devices.vulkan.features import EXECUTABLES, Features, create_device, with_executables
from spirograd.runtime.devices.vulkan.pipelines import Pipelines

_CAPTURE_STATISTICS, _CAPTURE_LISTINGS = 0x40, 0x80  # VK_PIPELINE_CREATE_CAPTURE_..._BIT_KHR
_BOOL, _SIGNED, _UNSIGNED = range(3)  # VkPipelineExecutableStatisticFormatKHR; the last is a float
_ENTRY = "main"
Statistic = Union[bool, int, float]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A compiled pipeline. ``seconds``: the time that the driver took. ``statistics``: numbers by the driver's names. ``listings``: text by
    the driver's names, in the order of compilation. Both are empty if the driver tells nothing."""

    seconds: float
    statistics: dict[str, Statistic]
    listings: dict[str, str]


def tells_code(physical: object) -> bool:
    """Return whether the driver of a physical device has the extension."""
    return EXECUTABLES in device_extensions(physical)


class Inspector:
    """A logical device that only compiles, next to the one that computes: capturing code slows some drivers down.

    ``listings``: whether text is captured as well as statistics.
    """

    def __init__(self, features: Features, listings: bool = True) -> None:
        self._tells = tells_code(features.physical)
        self._device, _, _ = create_device(with_executables(features) if self._tells else features)
        self._fn = device_functions(self._device)
        flags = (_CAPTURE_STATISTICS | (_CAPTURE_LISTINGS if listings else 0)) if self._tells else 0
        self._listings = listings
        self._pipelines = Pipelines(self._device, self._fn, features.caps.max_push_constants, b"", None, features.subgroup_size, flags)

    def inspect(self, module: bytes, name: str, subgroup_size: int = 0) -> Inspection:
        """Compile a module, see `Pipelines.create`. Raises SpirogradRuntimeError if the driver refuses the module."""
        begin = time.perf_counter()
        pipeline = self._pipelines.create(module, _ENTRY, name, subgroup_size)
        seconds = time.perf_counter() - begin
        statistics: dict[str, Statistic] = {}
        listings: dict[str, str] = {}
        try:
            for number in range(self._executables(pipeline)) if self._tells else ():
                of = struct("VkPipelineExecutableInfoKHR", pipeline=pipeline, executableIndex=number)
                statistics |= self._statistics(of)
                listings |= self._texts(of) if self._listings else {}
        finally:
            self._pipelines.destroy(pipeline)
        return Inspection(seconds, statistics, listings)

    def _executables(self, pipeline: ffi.CData) -> int:
        info = ffi.new("VkPipelineInfoKHR*", {"sType": vk.VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, "pipeline": pipeline})
        return len(self._all("vkGetPipelineExecutablePropertiesKHR", "VkPipelineExecutablePropertiesKHR", info))

    def _statistics(self, of: ffi.CData) -> dict[str, Statistic]:
        found = self._all("vkGetPipelineExecutableStatisticsKHR", "VkPipelineExecutableStatisticKHR", of)
        return {text(one.name): _value(one) for one in found}

    def _texts(self, of: ffi.CData) -> dict[str, str]:
        """Return the listings of one executable: the first call says how long each is, the second fills them in."""
        function, element = "vkGetPipelineExecutableInternalRepresentationsKHR", "VkPipelineExecutableInternalRepresentationKHR"
        found = self._all(function, element, of)
        data = [ffi.new("char[]", one.dataSize) for one in found]
        for one, memory in zip(found, data):
            one.pData = memory
        self._call(function, of, ffi.new("uint32_t*", len(found)), found)
        return {text(one.name): text(memory) for one, memory in zip(found, data) if one.isText and one.dataSize}

    def _all(self, function: str, element: str, of: ffi.CData) -> ffi.CData:
        count = ffi.new("uint32_t*")
        self._call(function, of, count, NULL)
        found = ffi.new(f"{element}[]", count[0])
        for one in found:
            one.sType = getattr(vk, _STRUCTURE_TYPES[element])
        self._call(function, of, count, found)
        return found

    def _call(self, function: str, of: ffi.CData, count: ffi.CData, found: ffi.CData) -> None:
        pointer = lib.vkGetDeviceProcAddr(self._device, function.encode())
        if pointer == NULL:
            raise SpirogradRuntimeError(f"the Vulkan driver lacks {function}")
        check(ffi.cast(f"PFN_{function}", pointer)(self._device, of, count, found), "read the code of a pipeline")

    def close(self) -> None:
        """Destroy the device."""
        self._pipelines.close()
        self._fn.DestroyDevice(self._device, NULL)


_STRUCTURE_TYPES = {
    "VkPipelineExecutablePropertiesKHR": "VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR",
    "VkPipelineExecutableStatisticKHR": "VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR",
    "VkPipelineExecutableInternalRepresentationKHR": "VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR",
}


def _value(statistic: ffi.CData) -> Statistic:
    value = statistic.value
    if statistic.format == _BOOL:
        return bool(value.b32)
    if statistic.format == _SIGNED:
        return int(value.i64)
    return int(value.u64) if statistic.format == _UNSIGNED else float(value.f64)


def code_stages(features: Features, kernel: CompiledKernel) -> dict[str, Stage]:
    """See `ShowsMachineCode`. Empty if the driver tells nothing."""
    if not tells_code(features.physical):
        return {}
    result: dict[str, Stage] = {}
    usage: list[str] = []
    inspector = Inspector(features)
    try:
        for task in kernel.tasks:
            inspection = inspector.inspect(kernel.binaries[task.binary], f"{kernel.name} ({task.name})")
            code = machine_code(inspection.listings)
            result |= {f"{task.name}.{name}.txt": listing for name, listing in inspection.listings.items() if name != code}
            if code is not None:
                result[f"{task.name}.s"] = inspection.listings[code]
            usage.append(f"{task.name}: {', '.join(f'{name} {value}' for name, value in inspection.statistics.items())}\n")
    finally:
        inspector.close()
    return result | {"kernel.usage": "".join(usage)}


def machine_code(listings: dict[str, str]) -> str | None:
    """Return the name of the listing that is machine code: the last that says so, else the last of all; None if there is none."""
    named = [name for name in listings if "assembly" in name.lower()]
    return (named or list(listings))[-1] if listings else None
